"""Kernels for any size get code of their own at large sizes: constants in place of divisors, a limited number of times."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.inductor import _module_of, assemble
from agent.compiler.per_size import per_size, with_class
from agent.kernels.writing import rewriting_text, with_library
from tests.agent.compiler.extraction import capture_text, run_program

#: In the form of Inductor: element x of the result is element x % ks0 of row x // ks0, divided by the row's length.
SOURCE = """\
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 65536},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ks0': 'i64', 'ks1': 'i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32), 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'triton_poi_fused_div_0', 'mutated_arg_names': []},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_div_0(in_ptr0, out_ptr0, ks0, ks1, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % ks0)
    x1 = triton_helpers.div_floor_integer(xindex, ks0)
    tmp0 = tl.load(in_ptr0 + (x0 + ks1*x1), xmask, eviction_policy='evict_last')
    tmp1 = ((0) * ((0) >= ((-2) + ks0)) + ((-2) + ks0) * (((-2) + ks0) > (0)))
    tmp2 = tmp1.to(tl.float32)
    tl.store(out_ptr0 + (xindex), tmp0 / tmp2, xmask)
"""
NAME = "triton_poi_fused_div_0"


def module(source: str) -> str:
    """A module that holds the kernel."""
    return f"import torch\n\n{NAME} = async_compile.triton('{NAME}', '''\n{source}''', device_str='cuda')\n\ndef call(args):\n    pass\n"


#: The same without divisions; its last rows are where a mask ends.
POINTWISE = (
    SOURCE.replace("(xindex % ks0)", "xindex")
    .replace("triton_helpers.div_floor_integer(xindex, ks0)", "0")
    .replace("ks0, ks1, xnumel", "xnumel")
    .replace("'ks0': 'i64', 'ks1': 'i64', ", "")
    .replace(
        "tl.load(in_ptr0 + (x0 + ks1*x1), xmask, eviction_policy='evict_last')",
        "tl.load(in_ptr0 + (x0), xmask)",
    )
    .replace("((0) * ((0) >= ((-2) + ks0)) + ((-2) + ks0) * (((-2) + ks0) > (0)))", "tmp0")
)


@cache
def _counted() -> Any:
    # It loads the compiler, for which collecting the tests need not wait.
    from agent.compiler.sandboxed.sized_kernel import SizedKernel

    class Counted(SizedKernel):
        """Keeps the texts that it would compile, and calls nothing."""

        def __init__(self, source: str = SOURCE, multiples: tuple[str, ...] | None = None) -> None:
            super().__init__(NAME, source, multiples)
            self.texts: list[str] = []
            self.ran: list[str] = []

        def compiled(self, text: str) -> Any:
            self.texts.append(text)
            ran = self.ran

            class Kernel:
                def run(self, *args: Any, stream: int) -> None:
                    ran.append(text)

            return Kernel()

    return Counted


def counted(*given: Any) -> Any:
    """A kernel that keeps the texts which it would compile."""
    return _counted()(*given)


def test_only_kernels_that_gain_by_sizes_are_replaced() -> None:
    text = per_size(module(SOURCE))
    assert f"{NAME} = SizedKernel('{NAME}', '''" in text
    assert "''')\n" in text
    assert "class SizedKernel:" in with_class(text)
    compile(with_class(text), "module", "exec")
    assert "''', ('xnumel',))\n" in per_size(module(POINTWISE))
    mark = "'configs': [{(2,): [['tt.divisibility', 16]], "
    marked = POINTWISE.replace("'configs': [{", mark)
    fixed = POINTWISE.replace("    xoffset =", "    xnumel = 4096\n    xoffset =")
    constant = SOURCE.replace("'constants': {}", "'constants': {'ks1': 4}")
    others = SOURCE.replace("ks0, ks1, xnumel", "ks0, ks1, seed, xnumel")
    for unchanged in (marked, fixed, constant, others):
        assert with_class(per_size(module(unchanged))) == module(unchanged)


def test_kernels_of_a_backward_are_sized_too_by_one_class() -> None:
    both = {"module": module(SOURCE), "library": ""}
    text = with_class(_module_of({**both, "backward": both}, with_library=False))
    assert text.count("class SizedKernel:") == 1
    assert f"\n{NAME} = SizedKernel('{NAME}'" in text
    assert f"\n{NAME}_backward = SizedKernel('{NAME}'" in text


def test_large_sizes_get_code_of_their_own_and_small_ones_share_it() -> None:
    kernel = counted()
    for rows, cols in ((3, 5), (1000, 1000), (3, 5), (1000, 1000), (7, 9), (1000, 999)):
        kernel.run("x", "y", cols, cols, rows * cols, stream=0)
    assert len(kernel.texts) == 3
    assert [kernel.texts.index(text) for text in kernel.ran] == [0, 1, 0, 1, 0, 2]
    assert kernel.texts[0] == SOURCE
    assert "    ks0 = tl.full([], 1000, tl.int32)\n" in kernel.texts[1]
    assert "    xnumel = 1000000\n" in kernel.texts[1]
    assert "size_hints={'x': 1048576}" in kernel.texts[1]
    assert "size_hints={'x': 1048576}" in kernel.texts[2]
    assert "    xnumel = 999000\n" in kernel.texts[2]


def test_the_number_of_sizes_is_limited_and_those_beyond_32_bits_have_no_constants() -> None:
    kernel = counted()
    kernel.run("x", "y", 1 << 31, 1 << 31, 1 << 31, stream=0)
    assert kernel.ran == [SOURCE]
    for cols in range(1000, 1000 + 2 * kernel.MOST):
        kernel.run("x", "y", cols, cols, 1000 * cols, stream=0)
    assert len(kernel.texts) == 1 + kernel.MOST
    assert kernel.ran[-kernel.MOST :] == [SOURCE] * kernel.MOST
    kernel.run("x", "y", 1000, 1000, 1000 * 1000, stream=0)
    assert kernel.ran[-1] != SOURCE


def test_without_divisions_all_multiples_of_16_share_one_code() -> None:
    kernel = counted(POINTWISE, ("xnumel",))
    for numel in (1 << 20, 1 << 21, (1 << 20) + 1, 32, (1 << 22) - 16):
        kernel.run("x", "y", numel, stream=0)
    assert len(kernel.texts) == 2
    assert [kernel.texts.index(text) for text in kernel.ran] == [0, 0, 1, 1, 0]
    assert kernel.texts[1] == POINTWISE
    assert "'configs': [{(2,): [['tt.divisibility', 16]], (0,)" in kernel.texts[0]


def test_the_memory_of_sizes_is_bounded() -> None:
    kernel = counted(POINTWISE, ("xnumel",))
    for numel in range(1, 3 * kernel.REMEMBERED):
        kernel.run("x", "y", numel, stream=0)
        assert len(kernel.recent) <= kernel.REMEMBERED
    assert len(kernel.texts) == 1


COMPILES = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

spec = importlib.util.spec_from_file_location("one", sys.argv[1])
found = importlib.util.module_from_spec(spec)
spec.loader.exec_module(found)
kinds = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "ks0": "i64", "ks1": "i64", "xnumel": "i32", "XBLOCK": "constexpr"}
names = found.kernel.arg_names
source = ASTSource(found.kernel, {name: kinds[name] for name in names}, {(len(names) - 1,): 512}, found.CONFIGS[0])
print(json.dumps({"ptx": triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]}))
"""


def ptx(folder: Path, text: str) -> str:
    """A kernel for an H100, which needs no GPU; Inductor's decorator does, and only what it says of arguments stays."""
    head, _, body = text.partition("@triton_heuristics")
    head = head.replace("triton_helpers.set_driver_to_gpu()\n", "")
    configs = re.search(r"'configs': (\[.*\])\}", body)
    assert configs
    kernel = body[body.index("@triton.jit") :].replace(f"def {NAME}(", "def kernel(")
    (folder / "one.py").write_text(f"{head}\nCONFIGS = {configs[1]}\n{kernel}")
    return str(run_program(folder, COMPILES, "one.py")["ptx"])


@pytest.mark.slow
def test_machine_code_for_known_sizes_does_not_divide(tmp_path: Path) -> None:
    divisions = re.compile(r"\b(?:div|rem)\.[su]")
    assert len(divisions.findall(ptx(tmp_path, SOURCE))) >= 2
    assert not divisions.search(
        ptx(tmp_path, counted().with_constants({"xnumel": 999000}, (999, 999, 999000)))
    )


def test_four_elements_are_loaded_at_once_where_the_size_is_a_multiple_of_16(tmp_path: Path) -> None:
    several = re.compile(r"ld\.global\S*\.v4\.")
    assert not several.search(ptx(tmp_path, POINTWISE))
    assert several.search(ptx(tmp_path, counted(POINTWISE, ("xnumel",)).with_multiples(("xnumel",))))


def test_values_of_sizes_keep_their_64_bits(tmp_path: Path) -> None:
    """256 to the fourth is 0 in 32 bits."""
    kernel = counted()
    kernel.source = SOURCE.replace(
        "((0) * ((0) >= ((-2) + ks0)) + ((-2) + ks0) * (((-2) + ks0) > (0)))", "ks0*ks0*ks1*ks1"
    )
    text = kernel.with_constants({"xnumel": 65536}, (256, 256, 65536))
    assert "tmp1 = tl.full([], 256, tl.int64)*tl.full([], 256, tl.int64)*" in text
    assert "ks0 = tl.full([], 256, tl.int32)" in text
    found = ptx(tmp_path, text)
    assert any(power in found for power in ("0f4F800000", "0f2F800000"))  # 2 to the 32, or one over it


REFERENCE = """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {name: Dim(2, 64, default=20) for name in ("batch", "depth", "height", "width")}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 16, 4)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x):
        return self.norm(torch.nn.functional.hardswish(self.conv(x))).mean(dim=(2, 3, 4))


def get_inputs(batch=20, depth=20, height=20, width=20):
    return [torch.randn(batch, 3, depth, height, width)]


def get_init_inputs():
    return []
"""
RUN = """
import importlib.util, json, sys
import torch

def load(name):
    spec = importlib.util.spec_from_file_location(name, f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found

torch.backends.cudnn.allow_tf32 = False
candidate, reference = load("candidate"), load("reference")
new, old = candidate.ModelNew().cuda(), reference.Model().cuda()
new.load_state_dict(old.state_dict())
error = 0.0
with torch.no_grad():
    for sizes in ((20, 20, 20, 20), (31, 19, 23, 21), (4, 5, 6, 7), (31, 19, 23, 21), (20, 31, 17, 20)):
        x = torch.randn(sizes[0], 3, *sizes[1:], device="cuda")
        error = max(error, (new(x) - old(x)).abs().max().item())
kernels = [one for one in vars(candidate).values() if type(one).__name__ == "SizedKernel"]
own = max(sum(map(bool, one.own)) for one in kernels if one.multiples is None)
print(json.dumps({"error": error, "own": own, "shared": any(() in one.own for one in kernels)}))
"""


@pytest.mark.gpu
def test_a_convolution_with_a_norm_behind_it_is_right_at_every_size(tmp_path: Path) -> None:
    dims = {
        name: {"min": 4, "max": 64, "multiple_of": 1, "default": 20}
        for name in ("batch", "depth", "height", "width")
    }
    captured = capture_text(
        tmp_path / "capture", REFERENCE, dims, "cuda", files={"rewriting.py": rewriting_text()}
    )
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(
        assemble(captured, REFERENCE, "t", changed=lambda text: with_library(text)[0])
    )
    answer = run_program(tmp_path, RUN)
    assert answer["error"] < 1e-5
    assert answer["own"] == 3
    assert answer["shared"]
