"""Candidates assembled from recorded captures: standalone, readable, repeatable, and refusing what is not understood."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
import tempfile
from pathlib import Path

import pytest

from agent.bundle.sections import cut
from agent.compiler.capture import Capture
from agent.compiler.standalone import standalone_source
from agent.compiler.triton_kernels import cast_sizes
from agent.errors import ProposalFailed
from tests.agent.compiler.extraction import recorded, task_text

RECORDED = [
    ("layernorm_relu_add", "cpu"),
    ("matmul_bias_relu", "cpu"),
    ("layernorm_relu_add", "cuda"),
    ("softmax", "cuda"),
    ("swiglu", "cuda"),
    ("matmul_bias_relu", "cuda"),
]


def source_of(name: str, device: str) -> str:
    return standalone_source(recorded(name, device), task_text(name), name, device)


def imported(source: str) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return modules


@pytest.mark.parametrize(("name", "device"), RECORDED)
def test_the_file_stands_alone(name: str, device: str) -> None:
    source = source_of(name, device)
    assert {module.partition(".")[0] for module in imported(source)} <= {
        "__future__",
        "ctypes",
        "inspect",
        "torch",
        "triton",
    }
    for internal in (
        "async_compile",
        "triton_heuristics",
        "reinterpret_tensor",
        "extern_kernels",
        "empty_strided_c",
    ):
        assert internal not in source
    assert not re.search(r"\b(s\d+|arg\d+_1)\b", source), "a name of the compiler's own is left"
    assert cut(source, "ModelNew").text, "optimized.py takes its members apart with this function"


@pytest.mark.parametrize(("name", "device"), RECORDED)
def test_the_same_capture_gives_the_same_bytes(name: str, device: str) -> None:
    assert source_of(name, device) == source_of(name, device)


def test_kernels_speak_of_the_task() -> None:
    source = source_of("layernorm_relu_add", "cpu")
    assert "const float* __restrict__ norm_weight" in source
    assert "const float* __restrict__ residual" in source
    assert "#pragma omp parallel if (rows * cols >= 32768)" in source
    assert "Computes, in one kernel: add native layer norm relu." in source
    # What only one kernel uses is the kernel's own memory: the wrapper allocates the output and nothing else.
    assert source.count("torch.empty") == len(recorded("layernorm_relu_add", "cpu").variants)


def test_triton_kernels_are_plain_functions() -> None:
    source = source_of("swiglu", "cuda")
    assert "@triton.jit\ndef fused_mul_silu_split(buf0, buf1, " in source
    assert "fused_mul_silu_split[(triton.cdiv(16 * rows * width_by_8, block),)](" in source
    assert "torch.mm(x, up_weight.t(), out=buf0)" in source


def test_ranges_and_guards_are_checked_before_anything_runs() -> None:
    source = source_of("layernorm_relu_add", "cpu")
    assert "not 8 <= cols <= 8192" in source
    assert "not cols <= 4096" in source.replace("(", "").replace(")", "")
    assert "model._configuration['cols'] != cols" in source.replace('"', "'")


def changed(capture: Capture, old: str, new: str) -> Capture:
    variant = capture.variants[0]
    assert old in variant.module
    return dataclasses.replace(
        capture, variants=(dataclasses.replace(variant, module=variant.module.replace(old, new)),)
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("extern_kernels.addmm(", "extern_kernels.surprise("),
        ("extern_kernels.addmm(", "__import__('os').system("),
        ("return (buf1, )", "return (arg3_1, )"),
        ("return (buf1, )", "return (buf1, None)"),
        ("return (buf1, )", "while True: pass"),
        ("del arg3_1", "global arg3_1"),
        ("async_compile.cpp_pybinding(", "async_compile.cuda("),
        ('extern "C"', 'extern "D"'),
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str) -> None:
    capture = changed(recorded("matmul_bias_relu", "cpu"), old, new)
    with pytest.raises(ProposalFailed):
        standalone_source(capture, task_text("matmul_bias_relu"), "task", "cpu")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@triton_heuristics.reduction(", "@triton_heuristics.template("),
        ("'grid_type': 'Grid1D'", "'grid_type': 'CooperativeReductionGrid'"),
        ("R0_BLOCK : tl.constexpr", "R0_BLOCK : tl.constexpr, RSPLIT : tl.constexpr"),
    ],
)
def test_launches_of_an_unknown_kind_are_refused(old: str, new: str) -> None:
    capture = changed(recorded("layernorm_relu_add", "cuda"), old, new)
    with pytest.raises(ProposalFailed, match="plain Triton form"):
        standalone_source(capture, task_text("layernorm_relu_add"), "task", "cuda")


def test_a_reference_whose_names_collide_is_refused() -> None:
    reference = task_text("matmul_bias_relu").replace(
        "class Model(", "def usable(x): return x\n\n\nclass Model("
    )
    reference = reference.replace("return torch.relu(", "return usable(torch.relu)(")
    with pytest.raises(ProposalFailed, match="usable"):
        standalone_source(recorded("matmul_bias_relu", "cpu"), reference, "task", "cpu")


def test_a_variable_number_of_inputs_is_refused() -> None:
    reference = task_text("matmul_bias_relu").replace("def forward(self, x)", "def forward(self, *x)")
    with pytest.raises(ProposalFailed, match="variable number"):
        standalone_source(recorded("matmul_bias_relu", "cpu"), reference, "task", "cpu")


def test_arguments_that_are_called_like_the_compiler_s_own_variables_get_other_names() -> None:
    """Looking for a free name in `x1_`, `x1__`, ... never ended: all of them look like Inductor's."""
    capture = recorded("softmax", "cuda")
    variants = tuple(
        dataclasses.replace(
            variant, arguments=tuple(dataclasses.replace(one, name="x1") for one in variant.arguments)
        )
        for variant in capture.variants
    )
    text = re.sub(r"\bx\b", "x1", task_text("softmax"))
    source = standalone_source(dataclasses.replace(capture, variants=variants), text, "softmax", "cuda")
    assert "(model, given_x1, checked)" in source
    assert "(self, x1, False)" in source
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    body = next(node for node in functions if node.name.startswith("run_kernels"))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    assert "given_x1" in read
    assert "x1" not in read


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("tmp1 = ks0.to(tl.int32)", "tmp1 = tl.cast(ks0, tl.int32)"),
        ("tmp1 = (ks0).to(tl.int32)", "tmp1 = tl.cast((ks0), tl.int32)"),
        ("a = ((3 + ks0*ks1) // 4).to(tl.float32) + b", "a = tl.cast(((3 + ks0*ks1) // 4), tl.float32) + b"),
        ("a = (r0_1 + x0*ks0).to(tl.int32)", "a = (r0_1 + x0*ks0).to(tl.int32)"),
        ("a = tl.sum(_tmp, 1)[:, None].to(tl.float32)", "a = tl.sum(_tmp, 1)[:, None].to(tl.float32)"),
        ("a = libdevice.sqrt(ks0).to(tl.float32)", "a = libdevice.sqrt(ks0).to(tl.float32)"),
        ("a = tmp5.to(tl.int64)", "a = tmp5.to(tl.int64)"),
    ],
)
def test_what_is_computed_of_sizes_is_converted_without_a_method(text: str, printed: str) -> None:
    assert cast_sizes(text, {"ks0", "ks1"}) == printed


def test_kernels_compile_where_sizes_are_one() -> None:
    """By Triton's front end, which needs no device: it makes a constant of an argument of 1, and constants have no `to`."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    kernel = """
import triton
import triton.language as tl

@triton.jit
def mean(out, ks0, ks1, BLOCK: tl.constexpr):
    count = ((3 + ks0*ks1) // 4).to(tl.float32)
    tl.store(out + tl.arange(0, BLOCK), tl.full([BLOCK], 1.0, tl.float32) / count)
"""

    def compiled(text: str, folder: Path) -> None:
        path = folder / "kernel.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        signature = {"out": "*fp32", "ks0": "constexpr", "ks1": "constexpr", "BLOCK": "constexpr"}
        source = triton.compiler.ASTSource(module.mean, signature, {(1,): 1, (2,): 1, (3,): 64})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with pytest.raises(triton.compiler.errors.CompilationError, match="no attribute 'to'"):
            compiled(kernel, Path(one))
        compiled(cast_sizes(kernel, {"ks0", "ks1"}), Path(other))
