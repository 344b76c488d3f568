"""The profile of a task: planted waits and graph breaks are found at their lines, and the diagnosis follows the experiments."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluator.commands.ceilings import show
from evaluator.devices import open_device
from evaluator.devices.cpu.ceilings import best_s
from evaluator.devices.sizes import Tried
from evaluator.profiling import ceilings
from evaluator.profiling.bottleneck import ceilings_told
from evaluator.profiling.diagnosis import diagnose, fixed_share
from evaluator.profiling.measured import Measured, Operation, OtherSize, parse
from evaluator.profiling.profile import ProfileFailed, profile_task
from evaluator.referee.judging.core import RefereeCore

HEAD = "import torch\nfrom torch import nn\n\n\nclass Inner(nn.Module):\n    def forward(self, x):\n        return torch.exp(x)\n\n\n"
TAIL = "\n\ndef get_inputs(rows=64):\n    return [torch.randn(rows, 32)]\n\n\ndef get_init_inputs():\n    return []\n"
#: Figures as of a large GPU.
GPU: dict[str, Any] = {
    "dram_bytes_per_s": 4e12, "l2_bytes_per_s": 8e12, "cache_bytes": 50 << 20, "float32_flops_per_s": 5e13,
    "vector_flops_per_s": 5e13, "exp_per_s": 2e12, "operation_s": 4e-6, "graph_node_s": 1.5e-6,
}  # fmt: skip
CPU: dict[str, Any] = {
    "dram_bytes_per_s": 2e10, "l2_bytes_per_s": 1e11, "l3_bytes_per_s": 8e10, "cache_bytes": 32 << 20,
    "float32_flops_per_s": 1e11, "exp_per_s": 2e9, "operation_s": 1e-6,
}  # fmt: skip


def task(*body: str) -> str:
    """A task file whose forward has these lines; the first of them is line 14."""
    lines = "".join(f"        {line}\n" for line in body)
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.inner = Inner()\n"
        f"    def forward(self, x):\n{lines}{TAIL}"
    )


def line(text: str, part: str) -> int:
    """Where a text stands."""
    return next(number for number, found in enumerate(text.splitlines(), 1) if part in found)


@pytest.mark.parametrize(
    ("planted", "breaks"),
    [
        ("if x.sum().item() > 1e9: x = x + 1", True),
        pytest.param("if x.mean() > 1e9: x = x + 1", True, marks=pytest.mark.slow),
        pytest.param("n = x[0].tolist(); x = x * len(n)", False, marks=pytest.mark.slow),
        ("x = x[x.sum(1) > 0]", False),
    ],
)
def test_a_planted_wait_is_found_at_its_line(core: RefereeCore, planted: str, breaks: bool) -> None:
    text = task("x = self.inner(x)", planted, "return x * 2")
    found = profile_task(core, text, CPU, device="cpu", deadline_s=1.0)
    assert {number for number, _, _ in found.waits} == {line(text, planted)}
    assert any(f"Line {line(text, planted)}: the host would wait" in said for said in found.sentences)
    if breaks:
        assert {number for number, _ in found.breaks} == {line(text, planted)}


def test_a_break_in_a_loop_is_found_though_dynamo_gives_up_the_frame(core: RefereeCore) -> None:
    text = task("for _ in range(3):", "    if x.sum() > 1e9:", "        x = self.inner(x)", "return x")
    found = profile_task(core, text, CPU, device="cpu", deadline_s=1.0)
    assert line(text, "if x.sum()") in {number for number, _ in found.breaks}
    assert (line(text, "if x.sum()"), 3) in {(number, count) for number, _, count in found.waits}


def test_a_module_without_either_has_none_and_its_time_is_told_by_module(core: RefereeCore) -> None:
    text = task("return self.inner(x) * 2")
    found = profile_task(core, text, CPU, device="cpu", dims={"rows": 128}, deadline_s=1.0)
    assert (found.waits, found.breaks, found.graphs) == ((), (), 1)
    assert {"inner", "(the model itself)"} == {part.name for part in found.modules}
    assert sum(part.share for part in found.lines) == pytest.approx(1, abs=0.01)
    assert 0 < found.roofline <= 1


def test_what_does_not_run_is_said_in_words(core: RefereeCore) -> None:
    with pytest.raises(ProfileFailed, match="ZeroDivisionError"):
        profile_task(core, task("return x / (1 // 0)"), CPU, device="cpu")
    with pytest.raises(ProfileFailed, match="without an answer"):
        profile_task(core, task("import os; os._exit(0)"), CPU, device="cpu")
    with pytest.raises(ProfileFailed, match="no dimension"):
        profile_task(core, task("return x"), CPU, device="cpu", dims={"rows": [1]})


def test_a_process_that_lies_about_its_form_is_not_believed(core: RefereeCore) -> None:
    lie = "import json, os; open('out/profile.json', 'w').write(json.dumps({'ok': True, 'steady_s': 'fast'})); os._exit(0)"
    with pytest.raises(ProfileFailed):
        profile_task(core, task(lie), CPU, device="cpu")


def measured(**changes: Any) -> Measured:
    """A call of 1 ms that spends it in one large operation."""
    plain: dict[str, Any] = {
        "steady_s": 1e-3, "sizes": [], "input_bytes": 1 << 31, "state_bytes": 0, "output_bytes": 1 << 31,
        "operation_count": 1, "operations": [], "waits": [], "transfers": [], "kernels": [["kernel", 9.9e-4, 1]],
    }  # fmt: skip
    base = parse(plain, {"graphs": 1, "breaks": [], "problem": ""})
    big = Operation("aten::add", 3, "", "", 1, 1e-3, 1 << 32, 0, 1 << 29, False)
    return replace(base, **{"operations": (big,), "replay_s": 9.9e-4, **changes})


PRODUCT = Operation("aten::mm", 3, "", "float32", 1, 1e-3, 3 << 24, 4 * 10**10, 1 << 22, False)


@pytest.mark.parametrize(
    ("changes", "label", "confirmed"),
    [
        ({}, "memory", None),
        ({"narrow_s": 5e-4}, "memory", True),
        ({"narrow_s": 1e-4}, "memory", False),
        ({"operations": (PRODUCT,), "narrow_s": 1e-4}, "compute", True),
        ({"replay_s": 3e-4}, "launch", True),
        ({"replay_s": 9.9e-4, "kernels": (("tiny", 5e-4, 400),)}, "launch", True),
        (
            {"replay_s": None, "kernels": (("k", 3e-4, 9),), "waits": ((3, "equal", 1),)},
            "synchronization",
            True,
        ),
        # A wait beside work that fills the device costs nothing.
        ({"replay_s": None, "waits": ((3, "equal", 1),)}, "memory", None),
    ],
)
def test_the_label_on_a_gpu_follows_the_experiments(
    changes: dict[str, Any], label: str, confirmed: bool | None
) -> None:
    found = diagnose(measured(**changes), GPU, gpu=True)
    assert (found.label, found.confirmed) == (label, confirmed)


def test_on_a_cpu_the_time_that_does_not_follow_the_batch_is_overhead() -> None:
    flat = (OtherSize("rows", 0.5, 0.98e-3), OtherSize("rows", 2.0, 1.04e-3))
    steep = (OtherSize("rows", 0.5, 0.51e-3), OtherSize("rows", 2.0, 1.97e-3))
    many = measured(replay_s=None, sizes=flat, operation_count=700)
    assert fixed_share(many) == pytest.approx(0.96, abs=0.01)
    assert diagnose(many, CPU, gpu=False).label == "launch"
    one = diagnose(replace(many, sizes=steep, operation_count=3), CPU, gpu=False)
    assert (one.label, one.confirmed) == ("memory", True)


def test_the_roofline_counts_what_a_fused_call_must_move() -> None:
    found = diagnose(measured(), GPU, gpu=True)
    assert found.least_s == pytest.approx((1 << 32) / 4e12)
    assert diagnose(measured(steady_s=2e-3), GPU, gpu=True).roofline == pytest.approx(
        found.least_s / 2e-3, abs=1e-3
    )
    twice = diagnose(measured(operations=measured().operations * 2), GPU, gpu=True)
    assert twice.fusion_gain == pytest.approx(2 * found.fusion_gain, rel=1e-3)


def test_kept_ceilings_are_not_measured_again_and_broken_ones_are_none(tmp_path: Path) -> None:
    path = ceilings.kept_path(tmp_path, open_device("cpu"))
    assert ceilings.kept(tmp_path, "cpu") is None
    path.parent.mkdir()
    kept = {"schema": ceilings.SCHEMA, "rates": {"dram_bytes_per_s": 12345.0}}
    path.write_text(json.dumps(kept))
    assert ceilings.ceilings(tmp_path, "cpu") == kept
    path.write_text("{")
    assert ceilings.kept(tmp_path, "cpu") is None


def test_a_rate_is_that_of_the_call() -> None:
    assert 0.002 <= best_s(lambda: time.sleep(0.002), least_s=0.004, rounds=2) < 0.02


@pytest.mark.slow
def test_the_ceilings_of_this_cpu(tmp_path: Path) -> None:
    found = ceilings.ceilings(tmp_path, "cpu")
    rates = found["rates"]
    assert ceilings.kept(tmp_path, "cpu") == found
    # Nobody's memory is slower, and no two cores' product faster than a supercomputer's.
    assert 1e8 < rates["dram_bytes_per_s"] < 1e13
    assert 1e8 < rates["float32_flops_per_s"] < 1e15
    assert 0 < rates["operation_s"] < 1e-2
    # What counts is the best of the sizes that are told.
    assert {"dram_bytes_per_s", "float32_flops_per_s"} <= set(found["tried"])
    for name, rows in found["tried"].items():
        assert max(row["rate"] for row in rows) == rates[name]
    assert len(found["tried"]["dram_bytes_per_s"]) >= 2


def test_a_diagnosis_tells_the_ceilings_that_it_rests_on() -> None:
    rates = {**GPU, "dram_read_bytes_per_s": 4.2e12, "bfloat16_flops_per_s": 7e14}
    rows = tuple(replace(PRODUCT, kind=kind) for kind in ("bfloat16", "<b>no such kind</b>"))
    assert diagnose(measured(operations=rows), rates, gpu=True).ceilings == {
        "memory_bytes_per_s": 4.2e12,
        "cache_bytes_per_s": 8e12,
        "bfloat16_flops_per_s": 7e14,
        "float32_flops_per_s": 5e13,
        "vector_flops_per_s": 5e13,
    }


def test_float32_products_may_take_the_time_of_three_float16_ones() -> None:
    rates = {**GPU, "float16_flops_per_s": 7.5e14}
    plain, split = (diagnose(measured(operations=(PRODUCT,)), some, gpu=True) for some in (GPU, rates))
    assert "float32_flops_per_s" in plain.ceilings and "float32_flops_per_s" not in split.ceilings
    assert split.ceilings["float32_as_three_float16_flops_per_s"] == 2.5e14
    assert split.least_s == pytest.approx(PRODUCT.flops / 2.5e14)
    assert plain.least_s == pytest.approx(PRODUCT.flops / 5e13)
    assert "float32 as three float16 250 TFLOP/s" in ceilings_told(split.ceilings)
    slow = {**GPU, "float16_flops_per_s": 1e14}
    assert diagnose(measured(operations=(PRODUCT,)), slow, gpu=True).ceilings == plain.ceilings


def test_damaged_ceilings_are_left_out_of_the_line() -> None:
    rates = {"memory_bytes_per_s": 4.01e12, "a": 1.0, "b_flops_per_s": float("nan"), "c_flops_per_s": "x"}
    assert ceilings_told(rates) == "memory 4.01 TB/s"


def test_the_best_of_several_sizes_counts_and_all_are_told() -> None:
    tried = Tried()
    rates = {1: 5.0, 2: 9.0, 3: None, 4: 8.0}
    assert tried.best("some_flops_per_s", rates, lambda size: rates[size]) == 9.0
    assert tried.best("none_flops_per_s", (1, 2), lambda _: None) is None
    # A product with a side of 8 takes 1024 operations: at 100 a second, ten seconds.
    assert tried.best("slow_flops_per_s", (4, 8), lambda _: 100.0, longest_s=10) == 100.0
    assert tried.as_json == {
        "some_flops_per_s": [{"size": 1, "rate": 5.0}, {"size": 2, "rate": 9.0}, {"size": 4, "rate": 8.0}],
        "slow_flops_per_s": [{"size": 4, "rate": 100.0}],
    }


def test_ceilings_are_shown_with_every_size_that_was_tried() -> None:
    found = {
        "environment": {"device_name": "a card", "driver": "1.2", "torch": "2.9"},
        "measured_at": "today",
        "elapsed_s": 1.0,
        "rates": {
            "dram_bytes_per_s": 4.0e12,
            "bfloat16_flops_per_s": 7.0e14,
            "item_s": 1e-5,
            "float8_flops_per_s": None,
        },
        "tried": {
            "dram_bytes_per_s": [{"size": 1 << 30, "rate": 3.9e12}, {"size": 1 << 32, "rate": 4.0e12}],
            "bfloat16_flops_per_s": [{"size": 4096, "rate": 7.0e14}, {"size": 8192, "rate": 6.5e14}],
        },
    }
    printed = io.StringIO()
    show(Console(file=printed, width=200), found)
    text = printed.getvalue()
    assert "1024 MiB 3900, 4096 MiB 4000 (best)" in text
    assert "4096² 700 (best), 8192² 650" in text
    assert "not here" in text
