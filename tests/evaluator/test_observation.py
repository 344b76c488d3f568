"""What a correct candidate is said to be made of: own kernels, library calls, decoys, fallbacks. Real processes, no clock."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from evaluator.integrity.observation import Observation, labels, read
from evaluator.integrity.static import Analysis
from evaluator.referee.checking.correctness import cases, check
from evaluator.referee.checking.investigation import Investigation
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.outcome import Explanation, Outcome
from evaluator.roles import watch
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import KernelShare

TASK = TaskSource(
    "scaled",
    """
import torch
from torch import nn
from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 512, default=32), "cols": Dim(8, 512, default=48)}

class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        return torch.relu(x * self.scale)

def get_inputs(rows: int = 32, cols: int = 48):
    return [torch.randn(rows, cols)]

def get_init_inputs(cols: int = 48):
    return [cols]
""",
)
SHAPES = ({"rows": 32, "cols": 48}, {"rows": 5, "cols": 16})

#: Called through ctypes with addresses, as the library's kernels are; compiles in a second, without torch's headers.
CPP = '''
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <cstdint>
extern "C" void scaled(const float* x, const float* s, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const float v = x[i * cols + j] * s[j];
      y[i * cols + j] = v > 0 ? v : 0;
    }
}
"""
kernel = ctypes.CDLL(load_inline("scaled_cpu", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)).scaled
kernel.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
kernel.restype = None

def call(x, scale, y):
    kernel(x.data_ptr(), scale.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
    return y

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        FORWARD
'''
LIBRARY = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        FORWARD
"""


TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def scaled(x_ptr, scale_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=inside)
    scale = tl.load(scale_ptr + col, mask=inside)
    tl.store(y_ptr + row * cols + col, tl.maximum(x * scale, 0.0), mask=inside)

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        scaled[(x.shape[0],)](x, self.scale, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return FORWARD
"""


def with_forward(text: str, *lines: str) -> str:
    return text.replace("FORWARD", "\n        ".join(lines))


HONEST = with_forward(CPP, "return call(x.contiguous(), self.scale, torch.empty_like(x))")
PURE = with_forward(LIBRARY, "return torch.relu(x * self.scale)")


def explain(core: RefereeCore, source: str, effort: str = "confirm", *, runs: bool = True) -> Explanation:
    session = core.session(TASK)
    candidate = CandidateSource(source, "external", "test")
    shapes = [session.open(dims) for dims in SHAPES]
    made = [cases(session, shape) for shape in shapes]
    run = CandidateRun(core.fleet, session, candidate)
    try:
        run.build(shapes)
        if runs:  # only what is right is explained
            run.start()
            for shape, todo in zip(shapes, made, strict=True):
                check(run.open(shape), shape, todo, Outcome())
    finally:
        run.close()
    return Investigation(core.fleet, session, run, shapes, effort).run()


def rules(explanation: Explanation) -> dict[str, str]:
    return {finding.rule: finding.evidence for finding in explanation.findings}


def test_own_kernel_called_through_ctypes_is_seen_as_own(core: RefereeCore) -> None:
    found = explain(core, HONEST)
    assert found.labels == ("own_kernel",)
    own = [kernel for kernel in found.kernels if kernel.kind == "own"]
    assert [kernel.name for kernel in own] == ["scaled"] and own[0].calls == 1 and own[0].share > 0.1
    assert not {"not_observed", "decoy_kernel", "fallback_ran", "not_analyzed"} & set(rules(found))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("result", ["y", "torch.relu(x * self.scale) + 0 * y"], ids=["kernel", "decoy"])
def test_triton_kernel_is_seen_through_the_interpreter(core: RefereeCore, result: str) -> None:
    found = explain(core, with_forward(TRITON, result), runs=False)
    assert "not_observed" not in rules(found), found
    own = [(kernel.name, kernel.calls) for kernel in found.kernels if kernel.kind == "own"]
    assert own == [("scaled", 1)]
    assert ("decoy_kernel" in rules(found)) is (result != "y")
    assert ("own_kernel" in found.labels) is (result == "y")


def test_it_is_told_where_kernels_cannot_be_replaced(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Observation((KernelShare("scaled", "own", 1.0, 1),), frozenset(), 0, True, False, 0, False)
    monkeypatch.setattr(Investigation, "_observe", lambda *given: seen)
    found = explain(core, HONEST)
    assert "rows=32" in rules(found)["not_replaced"] and "fallback_ran" not in rules(found)
    assert found.labels == ("own_kernel",)


@pytest.mark.gpu
def test_kernels_on_a_gpu_are_seen_through_the_profiler(tmp_path: Path) -> None:
    core = RefereeCore("cuda", tmp_path, "landlock")
    try:
        honest, decoy, pure = (
            explain(core, text)
            for text in (
                with_forward(TRITON, "y"),
                with_forward(TRITON, "torch.relu(x * self.scale) + 0 * y"),
                PURE,
            )
        )
    finally:
        core.close()
    assert honest.labels == ("own_kernel",)
    assert [kernel.name for kernel in honest.kernels if kernel.kind == "own"] == ["scaled"]
    assert "decoy_kernel" in rules(decoy) and "own_kernel" not in decoy.labels
    assert pure.labels == ("library_call",)


def test_a_launch_past_the_language_s_calls_is_seen_by_the_kernel_s_name() -> None:
    rows = [
        ["void at::native::vectorized_elementwise_kernel<4>(int)", True, 90.0, 1],
        ["_convolve_hopper", True, 10.0, 1],
    ]
    answer = {"own": {}, "rows": rows, "graphs": 0}
    found = read(answer, Analysis(kernels=("_convolve_hopper",)), gpu=True)
    assert (found.own_calls, found.runs_own) == (0, True)
    assert labels([found], decoy=False, reference=None) == ("own_kernel", "library_call")
    other = read(answer, Analysis(kernels=("another",)), gpu=True)
    assert not other.runs_own


def test_pure_torch_is_a_library_call_and_no_rewrite_of_the_same_operations(core: RefereeCore) -> None:
    found = explain(core, PURE)
    assert found.labels == ("library_call",)
    assert {kernel.name for kernel in found.kernels} >= {"aten::mul", "aten::clamp_min"}
    assert {kernel.kind for kernel in found.kernels} <= {"library", "none"}
    assert "library_call" in rules(found)
    assert abs(sum(kernel.share for kernel in found.kernels) - 1) < 0.01


def test_other_operations_than_the_reference_are_a_graph_rewrite(core: RefereeCore) -> None:
    found = explain(
        core, with_forward(LIBRARY, "return torch.where(x * self.scale > 0, x * self.scale, 0.0)")
    )
    assert "graph_rewrite" in found.labels


def test_narrow_arithmetic_is_a_precision_change(core: RefereeCore) -> None:
    # Right all the same: what is computed in half precision is thrown away.
    found = explain(core, with_forward(LIBRARY, "x.half().sum()", "return torch.relu(x * self.scale)"))
    assert "precision_change" in found.labels and "autocast_or_half" in rules(found)


@pytest.mark.parametrize(
    "lines",
    [
        ("call(x.contiguous(), self.scale, torch.empty_like(x))", "return torch.relu(x * self.scale)"),
        (
            "y = call(x.contiguous(), self.scale, torch.empty_like(x))",
            "return torch.relu(x * self.scale) + 0.0 * y",
        ),
    ],
    ids=["thrown away", "times zero"],
)
def test_kernel_that_does_not_matter_is_a_decoy(core: RefereeCore, lines: tuple[str, ...]) -> None:
    found = explain(core, with_forward(CPP, *lines))
    assert "decoy_kernel" in rules(found), found
    assert "own_kernel" not in found.labels and "library_call" in found.labels
    assert {finding.severity for finding in found.findings} <= {"info", "warning"}


def test_fallback_that_ran_instead_is_named_with_its_shapes(core: RefereeCore) -> None:
    lines = (
        "try:",
        "    if x.shape[0] != 32:",
        "        raise RuntimeError",
        "    return call(x.contiguous(), self.scale, torch.empty_like(x))",
        "except RuntimeError:",
        "    return torch.relu(x * self.scale)",
    )
    found = rules(explain(core, with_forward(CPP, *lines)))
    assert "rows=5, cols=16" in found["fallback_ran"] and "rows=32" not in found["fallback_ran"]
    assert "except RuntimeError" in found["uses_try_fallback"]
    assert "hard_coded_shape" in found


def test_screen_looks_at_the_largest_shape_alone(core: RefereeCore) -> None:
    lines = ("if len(x) > 8:", "    return torch.relu(x * self.scale)")
    honest_below = with_forward(CPP, *lines, "return call(x.contiguous(), self.scale, torch.empty_like(x))")
    found = rules(explain(core, honest_below, "screen"))
    assert "rows=32" in found["fallback_ran"] and "rows=5" not in found["fallback_ran"]


LIES = {
    "not a number": 'Watch.observe = lambda *a: {"rows": [["own\\ud800", False, float("nan"), 1]], "own": {}, "graphs": 0}',
    "other types": 'Watch.observe = lambda *a: {"rows": [[1, 2, 3, 4]], "own": [], "graphs": "many"}',
    "nested": 'module_host.json.dumps = lambda *a: "[" * 500_000',
    "too long": 'module_host.json.dumps = lambda *a: "x" * (2 << 20)',
    "exits": "Watch.observe = lambda *a: __import__('os')._exit(0)",
}


def test_process_that_spoils_its_profile_harms_nobody(core: RefereeCore) -> None:
    head = "from evaluator.roles import module_host\nfrom evaluator.roles.watch import Watch\n"
    for name, lie in LIES.items():
        found = explain(core, f"{head}{PURE}\n{lie}\n", "screen")
        assert "not_observed" in rules(found), (name, found)
        assert found.labels == () and found.kernels == (), name
        "".join(finding.evidence for finding in found.findings).encode("utf-8")
    assert explain(core, PURE, "screen").labels == ("library_call",)


def test_process_that_lies_well_gets_its_label_and_no_more(core: RefereeCore) -> None:
    lie = 'Watch.observe = lambda *a: {"rows": [["kernelwright_own::\x1b[31mbest", False, 9.0, 1]], "own": {"b": 1}, "graphs": 0}'
    text = f"from evaluator.roles.watch import Watch\n{PURE}\n{lie}\n"
    found = explain(core, text, "screen")
    assert [(kernel.name, kernel.share) for kernel in found.kernels] == [("?[31mbest", 1.0)]
    assert found.labels == ("own_kernel",)
    assert {finding.severity for finding in found.findings} <= {"info", "warning"}


def test_profile_from_a_process_is_cut_to_size() -> None:
    rows = [[f"aten::op{i}" + "x" * 9999, False, 1e300, 10**12] for i in range(9999)]
    answer = {
        "rows": rows,
        "own": {"\x1b[31m" + "k" * 999: 10**15},
        "graphs": 10**15,
        "compiled": 1,
        "narrow": "yes",
    }
    seen = read(answer, Analysis(), gpu=False)
    assert len(seen.kernels) <= 12 and all(len(kernel.name) <= 120 for kernel in seen.kernels)
    assert all(0 <= kernel.share <= 1 for kernel in seen.kernels)
    assert seen.own_calls <= 1_000_000 and seen.graphs <= 1_000_000
    assert not seen.compiled and not seen.narrow


@pytest.mark.parametrize(
    "answer", [{}, [], None, {"rows": 3, "own": {}, "graphs": 0}, {"rows": [], "own": {}, "graphs": True}]
)
def test_profile_of_another_form_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="not the form"):
        read(answer, Analysis(), gpu=False)


def test_kernels_of_a_gpu_are_told_apart_by_name() -> None:
    rows = [
        ["_softmax", True, 60.0, 1],
        ["void mine<float, 4>(float const*, int)", True, 10.0, 2],
        ["void at::native::vectorized_elementwise_kernel<4, at::native::X>(int)", True, 10.0, 1],
        ["sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", True, 10.0, 1],
        ["triton_per_fused_native_layer_norm_0", True, 5.0, 1],
        ["Memset (Device)", True, 5.0, 1],
        ["aten::mm", False, 500.0, 1],
    ]
    answer = {"rows": rows, "own": {"_softmax": 1}, "graphs": 1}
    seen = read(answer, Analysis(kernels=("mine",)), gpu=True)
    kinds = {kernel.name: kernel.kind for kernel in seen.kernels}
    assert kinds == {
        "_softmax": "own",
        "mine": "own",
        "at::native::vectorized_elementwise_kernel": "library",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32": "library",
        "triton_per_fused_native_layer_norm_0": "compiler",
        "Memset": "none",
    }
    assert seen.share("own") == pytest.approx(0.7)


def test_nothing_in_place_of_a_function_has_the_form_of_its_results() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    result = (x, x.t(), x.t().contiguous().half(), 7)
    made = watch._fill(watch._outline(result, (x,)), (x,))
    assert made[0].data_ptr() == x.data_ptr() and torch.equal(made[1], x.t())
    assert made[2].dtype is torch.float16 and made[2].shape == (4, 3) and not made[2].any()
    assert made[3] == 7 and type(made) is tuple
