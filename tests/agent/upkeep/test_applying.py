"""A bundle back in a user's model: what is written, that it gives the same, and that a wrong or slow one is refused."""

from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import kernelwright
from agent.errors import CannotApply
from agent.upkeep import applying
from agent.upkeep.applying import Application, apply
from agent.upkeep.reading import read_bundle
from tests.agent import programs
from tests.agent.upkeep.bundles import write
from tests.services.service import ROOT, Service

# The block's own class takes a flag and gives a tuple with None; capture writes it as operators on flat weights.
USER = """
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)
        self.pause_s = 0.0

    def forward(self, x, scale=None, *, flag=False):
        if self.pause_s and not torch.compiler.is_compiling():
            time.sleep(self.pause_s)
        out = self.drop(torch.relu(self.first(self.norm(x))))
        return (-out if flag else out), None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.blocks = nn.ModuleList([Block(32), Block(32)])
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)[0]
        return {"logits": self.head(x)}


def make():
    torch.manual_seed(1)
    return Net()


def make_slow():
    net = make()
    net.blocks[1].pause_s = 0.02
    return net


def make_doubled():
    return make().double()


def get_inputs():
    return [torch.randn(8, 16)]


def flagged():
    return {"x": torch.randn(8, 16)}
"""


def imported(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's file, and the task that capture writes of one of its blocks."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "net.py").write_text(USER)
    user = imported(folder / "net.py", "net")
    model = user.make().eval()
    with kernelwright.capture(model) as recording, torch.no_grad():
        for rows in (4, 8, 12):
            model(torch.randn(rows, 16))
    recording.write("blocks.1", folder / "task.py")
    return folder


def bundle(place: Path, folder: Path, change: tuple[str, str] | None = None, delay_s: float = 0.0) -> Path:
    """A bundle whose module is the captured one, perhaps with a fault or made slow."""
    task = (place / "task.py").read_text()
    source = task.replace("class Model(", "class ModelNew(")
    if change is not None:
        assert change[0] in source
        source = source.replace(*change)
    if delay_s:
        head = f"import time\n        time.sleep({delay_s})\n        "
        before = source.index("def forward(")
        body = source.index("\n        ", before) + len("\n        ")
        source = source[:body] + head + source[body:]
    return write(folder, (1.0,), source=source, task=task)


def applied(place: Path, tmp_path: Path, path: Path, **options: Any) -> Application:
    options = {"model": "make", "module": "blocks.1", "processes": 2, "seconds": 0.3, **options}
    return apply(read_bundle(path), file=place / "net.py", folder=tmp_path / "out", **options)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with the model fork from one that has imported torch. Other tests start the command itself."""

    def run(_: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        return programs.run(ROOT, "agent/upkeep/apply_program.py", given=given["input"])

    monkeypatch.setattr(applying, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")  # hooks of other tests
def test_a_captured_block_goes_back_with_its_own_weights(place: Path, tmp_path: Path) -> None:
    found = applied(place, tmp_path, bundle(place, tmp_path), max_slowdown=0.99)
    assert found.sound, found.sentences
    assert found.differences == ()
    assert found.runs == ("optimized.py, which has no fall-back",)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file()) == [
        "optimized.py",
        "result.json",
        "splice.py",
        "test_splice.py",
    ]
    assert json.loads((tmp_path / "out" / "result.json").read_text())["sound"] is True
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_splice.py"],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout
    _behaves(imported(place / "net.py", "net"), imported(tmp_path / "out" / "splice.py", "splice_0"))


def _behaves(user: ModuleType, patch: ModuleType) -> None:
    """The spliced model among what a program does to a model."""
    model = user.make().eval()
    x = torch.randn(8, 16)
    with torch.no_grad():
        expected = model(x)["logits"]
        keys = list(model.state_dict())
        patch.splice(patch.splice(model))
        block = model.blocks[1]
        assert isinstance(block, user.Block)
        assert list(model.state_dict()) == keys
        for _ in range(3):
            torch.testing.assert_close(model(x)["logits"], expected)
        kept = block._kernelwright_optimized
        assert kept.module is not None
        assert {id(tensor) for tensor in kept.module.parameters()} == {
            id(tensor) for tensor in block.parameters()
        }
        assert block(x.new_ones(8, 32), flag=True)[0].max() <= 0, (
            "a form that was not compared is the block's own"
        )
        assert block(x.new_ones(8, 32))[1] is None
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        changed = model(x)["logits"]
        assert not torch.allclose(changed, expected)
        torch.testing.assert_close(changed, patch.unsplice(copy.deepcopy(model))(x)["logits"])
        block.first = torch.nn.Linear(32, 32)
        torch.testing.assert_close(model(x)["logits"], patch.unsplice(copy.deepcopy(model))(x)["logits"])
        assert block._kernelwright_optimized.module is not None, (
            "another one of its kind has its weights linked"
        )
        block.first = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
        torch.testing.assert_close(model(x)["logits"], patch.unsplice(copy.deepcopy(model))(x)["logits"])
        assert "children" in block.kernelwright_explain(x)
        block.first = torch.nn.Linear(32, 32)
        torch.testing.assert_close(model(x)["logits"], patch.unsplice(copy.deepcopy(model))(x)["logits"])
        again = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(again(x)["logits"], model(x)["logits"])
        model.double()
        wide = x.double()
        torch.testing.assert_close(
            model(wide)["logits"], patch.unsplice(copy.deepcopy(model))(wide)["logits"]
        )
    model.float().train()
    torch.manual_seed(3)
    first = model(x)["logits"]
    torch.manual_seed(3)
    torch.testing.assert_close(first, patch.unsplice(copy.deepcopy(model))(x)["logits"])
    first.sum().backward()
    assert model.blocks[1].first.weight.grad is not None
    model.eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x)["logits"], model(x)["logits"])
    assert type(patch.unsplice(model).blocks[1]) is user.Block


@pytest.mark.usefixtures("forked")
def test_a_wrong_kernel_is_refused(place: Path, tmp_path: Path) -> None:
    wrong = bundle(place, tmp_path, ("torch.ops.aten.relu.default(", "1.001 * torch.ops.aten.relu.default("))
    found = applied(place, tmp_path, wrong)
    assert not found.sound
    assert any("blocks.1" in one and "is allowed" in one for one in found.differences)
    assert found.speedup is None


@pytest.mark.alone
@pytest.mark.slow
def test_a_step_that_gets_faster_or_slower_is_told_apart(place: Path, tmp_path: Path) -> None:
    """The block's own class sleeps and the operators that were captured do not; and the other way round."""
    fast = applied(place, tmp_path, bundle(place, tmp_path / "fast"), model="make_slow", processes=4)
    assert fast.sound, fast.sentences
    assert fast.speedup is not None
    assert fast.speedup[1] > 1.2, fast.sentences
    slow = applied(place, tmp_path, bundle(place, tmp_path / "slow", delay_s=0.02), processes=4)
    assert slow.differences == ()
    assert slow.slower, slow.sentences
    assert not slow.sound
    assert "slower by more than 2.0%" in " ".join(slow.sentences)


def test_kernels_that_run_forward_and_backward_are_not_spliced(place: Path, tmp_path: Path) -> None:
    other = bundle(place, tmp_path, ("import torch\n", "import torch\nWITH_GRADIENTS = True\n"))
    with pytest.raises(CannotApply, match=r"put optimized\.ModelNew in the submodule's place"):
        applied(place, tmp_path, other)


@pytest.mark.slow
def test_weights_of_another_kind_are_told(place: Path, tmp_path: Path) -> None:
    other = bundle(place, tmp_path)
    with pytest.raises(CannotApply, match=r"has no submodule 'blocks\.7'; it has"):
        applied(place, tmp_path, other, module="blocks.7")
    with pytest.raises(CannotApply, match="does not fit 'head'"):
        applied(place, tmp_path, other, module="head")
    with pytest.raises(CannotApply, match="defines no nothing"):
        applied(place, tmp_path, other, model="nothing")
    with pytest.raises(CannotApply, match="defines no no_inputs"):
        applied(place, tmp_path, other, inputs="no_inputs")


OWN_CLASS = """
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, cols=8):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(cols))

    def forward(self, x):
        return torch.relu(x) * self.weight + 1.0


def make():
    return nn.Sequential(nn.Linear(24, 24), Scale(24))


def get_inputs():
    return {"input": torch.randn(3, 24)}
"""


@pytest.mark.usefixtures("forked")
def test_a_catalogue_task_s_module_finds_its_constructor_s_arguments(tmp_path: Path) -> None:
    """Neither the task's default nor a recorded shape has 24 columns; the submodule's weights have."""
    (tmp_path / "own.py").write_text(OWN_CLASS)
    found = apply(
        read_bundle(write(tmp_path)),
        file=tmp_path / "own.py",
        model="make",
        module="1",
        folder=tmp_path / "out",
        processes=2,
        seconds=0.3,
        max_slowdown=0.9,
    )
    assert found.sound, found.sentences
    assert "ARGUMENTS = [24]" in (tmp_path / "out" / "splice.py").read_text()


@pytest.mark.slow
def test_the_command_ends_as_a_ci_job_needs_it(place: Path, tmp_path: Path) -> None:
    path = bundle(place, tmp_path, ("torch.ops.aten.relu.default(", "1.001 * torch.ops.aten.relu.default("))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "services.cli",
                "apply",
                str(path),
                *words,
                "--out",
                str(tmp_path / "out"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
            env=Service(tmp_path / "data").environment,
            check=False,
        )

    done = run("--model", f"{place / 'net.py'}:make", "--module", "blocks.1", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["sound"] is False
    assert "outside the sandbox" in " ".join(done.stderr.split())
    done = run("--model", f"{place / 'net.py'}:make", "--module", "blocks.9")
    assert done.returncode == 2
    assert "has no submodule" in " ".join(done.stderr.split())
    assert run("--model", "nowhere.py:make", "--module", "x").returncode == 2
