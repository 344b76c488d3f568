"""Modules taken out of a running model: what is noted, that nothing changes, and that the task file stands on its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kernelwright
from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource

REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = [(2, 16), (2, 16), (3, 20), (8, 12), (5, 20)]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        return {"scores": self.last(self.norm(torch.relu(self.first(x)))) * scale, "scale": scale}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4, batch_first=True)
        self.register_buffer("order", torch.tensor([3, 1, 2, 0] * 8))

    def forward(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mixed = self.inner(query, key, key, attn_mask=mask, need_weights=False)[0]
        assert isinstance(mixed, torch.Tensor)
        return mixed + torch.arange(mixed.shape[1], device=mixed.device)[:, None] * self.order


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv1d(4, 8, 5, stride=2), nn.BatchNorm1d(8)
        self.two, self.drop = nn.Conv1d(8, 8, 3, padding=1), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.one(x)))
        return self.drop(self.two(hidden)).transpose(1, 2)


class Whole(nn.Module):
    """Nested, with one module in two places and keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.perceptron, self.attention, self.convolution = Perceptron(), Attention(), Convolution()
        self.same = self.perceptron
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, batch: int, length: int) -> list[torch.Tensor]:
        x = torch.randn(batch, length, 32)
        mask = torch.full((length, length), -torch.inf).triu(1)
        scores = self.perceptron(x, scale=0.5)["scores"]
        again = self.same(x=x, scale=0.5)["scores"]
        return [
            scores,
            again,
            self.attention(x, x, mask=mask),
            # neither contiguous nor of the length of the others
            self.convolution(torch.randn(batch, length * 8, 4).transpose(1, 2)),
            self.block(x, src_mask=mask),
        ]


def _run(model: Whole) -> list[torch.Tensor]:
    torch.manual_seed(7)
    with torch.no_grad():
        return [result for sizes in SIZES for result in model(*sizes)]


@pytest.fixture(scope="module")
def model() -> Whole:
    torch.manual_seed(1)
    return Whole().eval()


@pytest.fixture(scope="module")
def recording(model: Whole) -> kernelwright.Recording:
    with kernelwright.capture(model) as recording:
        _run(model)
    return recording


def test_results_are_the_same_to_the_bit_and_nothing_stays_behind(model: Whole) -> None:
    before = _run(model)
    with kernelwright.capture(model):
        during = _run(model)
    assert all(torch.equal(one, other) for one, other in zip(before, during, strict=True))
    with kernelwright.capture(model) as empty:
        pass
    _run(model)
    assert empty.modules == []
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_length_of_one_in_the_dearest_call_does_not_fix_it(tmp_path: Path) -> None:
    layer = nn.Linear(32, 32)
    sizes = [(1, 500), (3, 4), (2, 6)]
    with torch.no_grad(), kernelwright.capture(layer) as recording:
        for batch, length in sizes:
            layer(torch.randn(batch, length, 32))
    written = recording.write("", tmp_path / "task.py")
    assert set(written.dims) == {"batch", "length"}
    assert sorted((dims["batch"], dims["length"]) for dims, _ in written.traffic) == sorted(sizes)


def test_ranking_counts_calls_and_adds_up(recording: kernelwright.Recording) -> None:
    costs = {cost.name: cost for cost in recording.modules}
    assert recording.modules[0].name == ""
    assert costs[""].share == 1.0
    # Found under two names, called under both.
    assert (costs["perceptron"].calls, costs["perceptron"].shapes) == (10, 8)
    assert "same" not in costs
    assert (costs["perceptron.first"].calls, costs["perceptron.first"].shapes) == (10, 4)
    # torch's fast path runs the layer as one operator; hooks on the modules would have made it call them.
    assert costs["block"].calls == 5
    assert "block.linear1" not in costs
    parts = [cost for name, cost in costs.items() if name and "." not in name]
    inside_s = sum(cost.total_s for cost in parts)
    assert inside_s <= costs[""].total_s
    assert costs[""].self_s == pytest.approx(costs[""].total_s - inside_s, abs=1e-6)
    assert "watching took" in str(recording)


def test_an_exception_is_not_a_call() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            if x.numel() == 0:
                raise ValueError("empty")

    model = nn.Sequential(nn.Identity(), Fails())
    with kernelwright.capture(model) as recording:
        with pytest.raises(ValueError, match="empty"):
            model(torch.ones(0))
        model(torch.ones(3))
    assert {cost.name: cost.calls for cost in recording.modules} == {"": 1, "0": 2, "1": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("attention", {"batch", "length"}),
        pytest.param("perceptron", {"batch", "length"}, marks=pytest.mark.slow),
        pytest.param("convolution", {"batch", "length"}, marks=pytest.mark.slow),
        pytest.param("block", {"batch", "length"}, marks=pytest.mark.slow),
    ],
)
def test_a_written_task_passes_the_referee_as_its_own_candidate(
    name: str, dims: set[str], recording: kernelwright.Recording, referee: Referee, tmp_path: Path
) -> None:
    written = recording.write(name, tmp_path / "task.py")
    text = written.path.read_text()
    assert set(written.dims) == dims
    assert sum(weight for _, weight in written.traffic) == 5
    assert written.traffic[0][1] == 2
    source = TaskSource(name, text)
    described = referee.describe(source)
    assert described.ok, described
    assert described.shapes["visible"][0] == written.traffic[0][0]
    twin = CandidateSource(text.replace("class Model(", "class ModelNew("), "external", "twin")
    shapes = [written.traffic[0][0], written.traffic[-1][0], {"batch": 7}]
    verdict = referee.evaluate(source, twin, splits=["adversarial"], shapes={"adversarial": shapes})
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


@pytest.mark.slow
def test_a_stranger_can_import_a_written_task(recording: kernelwright.Recording, tmp_path: Path) -> None:
    written = recording.write("attention", tmp_path / "task.py")
    stranger = textwrap.dedent("""
        import runpy, sys
        task = runpy.run_path(sys.argv[1])
        model = task["Model"](*task["get_init_inputs"]()).eval()
        print(model(*task["get_inputs"]())[0].isfinite().all().item())
        print(sorted(name for name in sys.modules if name.startswith(("tests", "kernelwright"))))
        """)
    seen = subprocess.run(
        [sys.executable, "-c", stranger, str(written.path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )
    assert seen.stdout.split("\n")[:2] == ["True", "[]"], seen.stderr


def test_weights_are_kept_only_where_it_is_asked_for(
    model: Whole, recording: kernelwright.Recording, tmp_path: Path
) -> None:
    written = recording.write("attention", tmp_path / "task.py", keep_weights=tmp_path / "weights.pt")
    defined: dict[str, Any] = {}
    exec(written.path.read_text(), defined)
    task_model = defined["Model"]().eval()
    given = defined["get_inputs"](batch=4, length=9)
    assert [tuple(tensor.shape) for tensor in given] == [(4, 9, 32), (9, 9)]  # query is key
    with torch.no_grad():
        expected = model.attention(given[0], given[0], given[1])
        assert not torch.allclose(task_model(*given), expected, atol=1e-3)
        task_model.load_state_dict(torch.load(tmp_path / "weights.pt"))
        torch.testing.assert_close(task_model(*given), expected)
    assert torch.equal(defined["Model"]().order, model.attention.order)


def test_lengths_that_the_program_depends_on_are_found_out(tmp_path: Path) -> None:
    class Patches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(1, (-1, 4)).mean(2)

    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > 4 else x + 1

    model = nn.ModuleList([Patches(), Branches()])
    with kernelwright.capture(model) as recording:
        for batch, length in ((2, 16), (3, 24), (2, 48), (6, 24)):
            for part in model:
                part(torch.randn(batch, length))
    patches = recording.write("0", tmp_path / "patches.py")
    # It works at 16 and at 24, not at 17.
    assert "multiple_of=8" in patches.dims["length"]
    branches = recording.write("1", tmp_path / "branches.py")
    defined: dict[str, Any] = {}
    exec(branches.path.read_text(), defined)
    for dims, _ in branches.traffic:
        (x,) = defined["get_inputs"](**dims)
        assert torch.equal(defined["Model"]()(x), model[1](x))


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    class Foreign(nn.Module):
        def forward(self, x: torch.Tensor, how: object) -> torch.Tensor:
            return x

    class Unsteady(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    model = nn.ModuleDict({"foreign": Foreign(), "unsteady": Unsteady(), "drop": nn.Dropout(0.5)})
    with kernelwright.capture(model) as recording:
        model["foreign"](torch.ones(3), how=object())
        model["unsteady"](torch.ones(3))
        model["drop"](torch.ones(3))

    def refusal(name: str, **options: Any) -> str:
        with pytest.raises(kernelwright.CaptureError) as caught:
            recording.write(name, tmp_path / "task.py", **options)
        assert not (tmp_path / "task.py").exists()
        return str(caught.value)

    assert "builtins.object" in refusal("foreign")
    assert "torch.export cannot follow Unsteady" in refusal("unsteady")
    assert "random numbers" in refusal("drop", training=True)
    assert "no submodule 'nowhere'" in refusal("nowhere")
    assert "was not called" in refusal("")


@pytest.mark.alone
def test_watching_costs_little() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(50)])
    x = torch.randn(4, 8)
    with torch.no_grad(), kernelwright.capture(model) as recording:
        model(x)
        first_s = recording.overhead_s
        began_s = time.perf_counter()
        for _ in range(20):
            model(x)
        spent_s = time.perf_counter() - began_s
    # A call is a few tens of microseconds; the bound is for a machine that does other things as well.
    assert 0 < recording.overhead_s - first_s < min(spent_s, 20 * 51 * 400e-6)
