"""Triton on a machine without a GPU: right and wrong kernels are told apart, and nothing is said of speed."""

from __future__ import annotations

import importlib.util

import pytest

from evaluator.client import Referee
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session import candidate as candidate_module
from evaluator.request import Request
from evaluator.roles.interpreted import imports_triton
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog

# Triton candidates are checked by its interpreter and never timed.
TASK = TaskSource("row_sum", catalog.load("row_sum").source)
SHAPES = {
    "visible": [{"rows": 4, "cols": 70, "dtype": "float32"}, {"rows": 2, "cols": 300, "dtype": "float32"}]
}
KERNEL = """
import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune([triton.Config({"BLOCK": size}) for size in (32, 64, 128)], key=["cols"])
@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < LIMIT, other=0.0)
        total += value + 0.0 * libdevice.tanh(libdevice.erf(value))
    ones = tl.full((16, 16), 1.0, tl.float32)
    product = tl.dot(ones, ones, input_precision="bf16x6")  # which a GPU has
    tl.store(y + row, tl.sum(total, 0) * tl.sum(tl.sum(product, 0), 0) / 4096.0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=DEVICE)
        kernel[(x.shape[0],)](x, y, x.shape[1])
        return y
"""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@needs_triton
def test_a_right_kernel_is_accepted_and_not_timed(referee: Referee) -> None:
    right = CandidateSource(KERNEL.replace("LIMIT", "cols"), "external", "right")
    verdict = referee.evaluate(TASK, right, splits=["visible"], shapes=SHAPES)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert [(f.rule, f.severity) for f in verdict.findings] == [("interpreted", "info")]
    assert "interpreter" in verdict.reason and "not timed" in verdict.reason
    assert [shape.timed for shape in verdict.shapes] == [False, False]
    assert verdict.summary.geomean_speedup is None
    assert "baselines" not in verdict.stages_s


@needs_triton
def test_a_wrong_kernel_is_rejected(referee: Referee) -> None:
    wrong = CandidateSource(KERNEL.replace("LIMIT", "cols - 1"), "external", "wrong")
    verdict = referee.evaluate(TASK, wrong, splits=["visible"], shapes=SHAPES)
    assert (verdict.verdict, verdict.findings[-1].rule) == ("incorrect", "wrong_result")


@pytest.mark.slow
@needs_triton
def test_shapes_drawn_for_the_interpreter_are_small(referee: Referee) -> None:
    drawn = referee.describe(TASK).shapes["visible"]
    assert max(dims["rows"] * dims["cols"] for dims in drawn) > 1 << 17
    right = CandidateSource(KERNEL.replace("LIMIT", "cols"), "external", "right")
    verdict = referee.evaluate(TASK, right, splits=["adversarial"])
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert max(shape.dims["rows"] * shape.dims["cols"] for shape in verdict.shapes) <= 1 << 14
    strata = [shape.stratum for shape in verdict.shapes]
    assert {"lowest", "prime", "power of two + 1"} <= set(strata) and None not in strata


@needs_triton
def test_splits_that_cannot_lie_apart_are_told(referee: Referee) -> None:
    narrow = TASK.source.replace("Dim(1, 16384, default=512, gpu=8192)", "Dim(5, 6, default=6)")
    narrow = narrow.replace("Dim(8, 8192, default=1024, gpu=4096)", "Dim(8, 10, default=8)")
    assert narrow.count("gpu=") == 0
    right = CandidateSource(KERNEL.replace("LIMIT", "cols"), "external", "right")
    verdict = referee.evaluate(TaskSource("narrow", narrow), right, splits=["visible", "validation"])
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    told = [f.evidence for f in verdict.findings if f.rule == "shapes_not_apart"]
    assert len(told) == 1 and "3 of 3 validation shapes are within 16 steps" in told[0]
    assert {shape.stratum for shape in verdict.shapes} <= {"own", "near", "small"}


@needs_triton
def test_large_shapes_that_were_asked_for_are_left_out(referee: Referee) -> None:
    large = {"rows": 4096, "cols": 4096, "dtype": "float32"}
    right = CandidateSource(KERNEL.replace("LIMIT", "cols"), "external", "right")
    shapes = {"visible": [large, *SHAPES["visible"]]}
    verdict = referee.evaluate(TASK, right, splits=["visible"], shapes=shapes)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert large not in [shape.dims for shape in verdict.shapes] and len(verdict.shapes) == 2


def test_without_triton_nothing_is_judged(core: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_module, "find_spec", lambda name: None)
    source = CandidateSource(KERNEL.replace("LIMIT", "cols"), "external", "right")
    request = Request(TASK, source, splits=("visible",), shapes=SHAPES)
    verdict = core.evaluate(request, lambda *_: None)
    assert verdict.verdict == "not_judged"
    assert "triton" in verdict.reason and "not installed" in verdict.reason


def test_what_counts_as_an_import() -> None:
    assert imports_triton("import triton\n") and imports_triton("    from triton.language import core")
    assert not imports_triton("# import triton\nimport tritonclient\nfrom triton_kernels import x")
