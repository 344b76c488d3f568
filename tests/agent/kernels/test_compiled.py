"""The library's kernels compiled for GPUs that are not here: they compile, and registers hold what they need."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from agent.compiler.inductor import CAPTURE_PROGRAM
from agent.kernels.gpu import (
    attention,
    bags,
    contractions,
    convolutions,
    direct,
    distances,
    gathered,
    hopper,
    hopper_convolutions,
    lists,
    parts,
    products,
    ranks,
    recurrent,
    rows,
    scans,
    scatters,
    streamed,
    thin,
    tiny,
    windows,
)
from tests.agent.kernels.recurrence import follow, follow_along

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
#: Of a thread; a convolution with an operand of its output's size spills 144 bytes after its loop, a product of wide tiles 8.
MOST_STACK_BYTES = 150
MOST_SHARED_BYTES = 227 << 10  # of a program on 9.0 and 10.0

PRODUCT = {
    "HAS_BIAS": False,
    "ONE": False,
    "IN_TILES": False,
    "BM": 128,
    "BN": 128,
    "STEP": 64,
    "BLOCK": 256,
    "GROUP": 8,
}
FEW = {"EVEN": True, "BM": 128, "BN": 128, "STEP": 64, "BLOCK": 256}
TILES = {"HAS_BIAS": False, "BLOCK": 256, "GROUP": 8}
HALVES_OF_64, HALVES_OF_128 = (f"tensordesc<fp16[{rows},64],{hopper.HALF_TILES!r}>" for rows in (64, 128))
PARTS_ON_HOPPER = {"a_tiles": HALVES_OF_64, "b_tiles": HALVES_OF_128}
CONVOLUTION = {
    "TAPS_H": 3, "TAPS_W": 3, "HAS_BIAS": False, "AFTER": None, "ONE": 0, "TWO": 0, "NEAR": True, "PARTS": 2, "EVEN": False,
}  # fmt: skip


ON_HOPPER_CONVOLUTION = {
    "TAPS_H": 3, "TAPS_W": 3, "HAS_BIAS": True, "AFTER": None, "ONE": 0, "TWO": 0, "LAST": False, "WIDE": 1, "CHANNELS": 64,
    "STEP": 32, "SHARED": 3, "APART": 1, "MORE": 2, "COLS": 64, "PARTS": 2,
}  # fmt: skip


def _convolution_tiles(groups: int) -> dict[str, str]:
    """Descriptors of `_convolve_hopper` with so many groups of eight places in half a tile."""
    layout = "NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank={})"
    return {
        "x_tiles": f"tensordesc<fp16[{groups},8,32],{layout.format(3)}>",
        "x_more": f"tensordesc<fp16[2,8,32],{layout.format(3)}>",
        "w_tiles": f"tensordesc<fp16[64,32],{layout.format(2)}>",
    }


ATTENTION = {
    "SPLITS": False, "HAS_MASK": True, "CAUSAL": False, "SAFE": True, "QUERIES": 128, "KEYS": 32, "DIMS": 128, "BLOCK": 256,
}  # fmt: skip
ATTENTION_TILES = {
    "q_tiles": "tensordesc<fp16[128,128]>",
    "k_tiles": "tensordesc<fp16[32,128]>",
    "v_tiles": "tensordesc<fp16[128,32]>",
}


@triton.jit
def _of_int8(batch, head, row, j, there, row_there, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    x = tl.load(p0 + (batch * 8 + head) * 262144 + row * 64 + j, mask=there, other=0).to(tl.float32)
    return x * tl.load(p1 + (batch * 8 + head) * 4096 + row, mask=row_there, other=0)


@triton.jit
def _relu_of(x, m):  # type: ignore[no-untyped-def]
    return tl.where(x * m < 0.0, 0.0, x * m)


@triton.jit
def _gelu_and_more(x, a, b):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071)) + a + b


@triton.jit
def _four_bits(row, j, first, there, row_there, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    codes = tl.load(p0 + row * 2048 + j, mask=there, other=0)
    code = tl.join((codes & 15).to(tl.float32), (codes >> 4).to(tl.float32))
    zero = tl.load(p1 + row * 64 + first // 64, mask=row_there, other=0).to(tl.float32)
    scale = tl.load(p2 + row * 64 + first // 64, mask=row_there, other=0)
    return code - zero[:, :, None], scale


SCAN = {"FIRST": None, "JOIN": follow, "ALONG": follow_along, "COUNT": 2, "Y_IS_FLAG": False}
SOURCES = {"p0": "*u8", "p1": "*u8", "p2": "*fp32", "p3": "*fp32"}

THIN = {"HAS_MASK": True, "HAS_BIAS": True, "CHANGE": _relu_of}
STREAMED = {
    "HAS_MASK": True,
    "HAS_BIAS": True,
    "CHANGE": _relu_of,
    "EXACT": False,
    "ROWS": 16,
    "KEYS": 64,
    "DIMS": 64,
}
KERNELS: dict[str, tuple[Any, dict[str, Any], dict[str, str], dict[str, int]]] = {
    "product": (
        products._multiply,
        PRODUCT,
        dict.fromkeys(("a_tiles", "b_tiles", "out_tiles"), "tensordesc<fp16[128,64]>"),
        {"num_warps": 8, "num_stages": 3},
    ),
    "product of one step": (
        products._multiply,
        PRODUCT | {"ONE": True, "IN_TILES": True},
        dict.fromkeys(("a_tiles", "b_tiles"), "tensordesc<fp16[128,64]>")
        | {"out_tiles": "tensordesc<fp32[128,64]>"},
        {"num_warps": 8, "num_stages": 1, "maxnreg": 128},
    ),
    "parts": (
        parts._split,
        {"X_ROWS": 8, "Y_ROWS": 32, "BLOCK": 256, "X_WIDE": True, "Y_WIDE": False},
        dict.fromkeys(("x_halves", "y_halves"), "*fp16") | dict.fromkeys(("x_scale", "y_scale"), "*fp32"),
        {"num_warps": 4, "num_stages": 3},
    ),
    "mended product": (
        products._mend,
        {"UNPACK": None, "PARTS": 1, "HAS_BIAS": True, "TILE": 128, "PART": 32, "AT_ONCE": 64},
        dict.fromkeys(("p1", "p2", "p3"), "*fp32"),
        {"num_warps": 4, "num_stages": 3},
    ),
    "product on Hopper": (
        hopper._multiply_hopper,
        TILES | {"PIECES": 2, "STAGES": 3},
        PARTS_ON_HOPPER,
        {"num_warps": 4},
    ),
    "wide product on Hopper": (
        hopper._multiply_hopper,
        TILES | {"PIECES": 4, "STAGES": 2},
        PARTS_ON_HOPPER,
        {"num_warps": 4},
    ),
    "few rows on Hopper": (
        hopper._multiply_few_hopper,
        {"BM": 128, "STAGES": 3, "BLOCK": 256},
        {"x_tiles": HALVES_OF_128, "w_tiles": f"tensordesc<fp32[64,64],{hopper.FLOAT_TILES!r}>"},
        {"num_warps": 4},
    ),
    "sixteen rows on Hopper": (
        hopper._multiply_few_hopper,
        {"BM": 16, "STAGES": 4, "BLOCK": 256},
        {
            "x_tiles": f"tensordesc<fp16[16,64],{hopper.HALF_TILES!r}>",
            "w_tiles": f"tensordesc<fp32[64,64],{hopper.FLOAT_TILES!r}>",
        },
        {"num_warps": 4},
    ),
    "few rows": (
        products._multiply_few,
        FEW | {"UNPACK": None, "PARTS": 1},
        {"x_tiles": "tensordesc<fp16[128,64]>", "w_tiles": "tensordesc<fp32[128,64]>"} | SOURCES,
        {"num_warps": 8, "num_stages": 3},
    ),
    "packed weights": (
        products._multiply_few,
        FEW | {"UNPACK": _four_bits, "PARTS": 2},
        dict.fromkeys(("x_tiles", "w_tiles"), "tensordesc<fp16[128,64]>") | SOURCES,
        {"num_warps": 8, "num_stages": 3},
    ),
    "unpacked weights": (
        products._unpack,
        {"UNPACK": _four_bits, "PARTS": 2, "ROWS": 32, "STEP": 64, "EVEN": True},
        SOURCES,
        {"num_warps": 4, "num_stages": 3},
    ),
    "convolution": (
        convolutions._convolve,
        CONVOLUTION | {"CHANNELS": 8, "WIDE": 1, "BM": 128, "BN": 64, "BLOCK": 32},
        dict.fromkeys(("w_high_tiles", "w_low_tiles"), "tensordesc<fp16[64,32]>"),
        {"num_warps": 4, "num_stages": 3},
    ),
    "convolution and more": (
        convolutions._convolve,
        CONVOLUTION
        | {"CHANNELS": 8, "WIDE": 1, "BM": 128, "BN": 64, "BLOCK": 32}
        | {"AFTER": _gelu_and_more, "ONE": 5, "TWO": 0},
        dict.fromkeys(("w_high_tiles", "w_low_tiles"), "tensordesc<fp16[64,32]>"),
        {"num_warps": 4, "num_stages": 3},
    ),
    "transposed convolution": (
        convolutions._convolve,
        CONVOLUTION | {"CHANNELS": 32, "WIDE": 2, "BM": 64, "BN": 128, "BLOCK": 64},
        dict.fromkeys(("w_high_tiles", "w_low_tiles"), "tensordesc<fp16[128,64]>"),
        {"num_warps": 4, "num_stages": 1},
    ),
    "convolution on Hopper": (
        hopper_convolutions._convolve_hopper,
        ON_HOPPER_CONVOLUTION | {"PIECES": 2, "STAGES": 3},
        _convolution_tiles(16),
        {"num_warps": 4},
    ),
    "convolution and more on Hopper": (
        hopper_convolutions._convolve_hopper,
        ON_HOPPER_CONVOLUTION
        | {
            "PIECES": 2,
            "STAGES": 3,
            "AFTER": _gelu_and_more,
            "ONE": 5,
            "TWO": 1,
            "WIDE": 2,
        },
        _convolution_tiles(16),
        {"num_warps": 4},
    ),
    "attention": (
        attention._attend,
        ATTENTION | {"ELEMENT": None},
        ATTENTION_TILES,
        {"num_warps": 8, "num_stages": 2},
    ),
    "attention without a mask": (
        attention._attend,
        ATTENTION | {"ELEMENT": None, "CAUSAL": True, "HAS_MASK": False, "KEYS": 64},
        ATTENTION_TILES | {"k_tiles": "tensordesc<fp16[64,128]>", "v_tiles": "tensordesc<fp16[128,64]>"},
        {"num_warps": 8, "num_stages": 2},
    ),
    "attention of small heads": (
        attention._attend,
        ATTENTION
        | {
            "ELEMENT": None,
            "SPLITS": True,
            "CAUSAL": True,
            "QUERIES": 64,
            "KEYS": 64,
            "DIMS": 64,
            "q_dim": 1,
        },
        dict.fromkeys(ATTENTION_TILES, "tensordesc<fp16[64,64]>"),
        {"num_warps": 4, "num_stages": 2},
    ),
    "attention in float32": (
        attention._attend_exactly,
        {
            "HAS_MASK": True,
            "CAUSAL": True,
            "SAFE": True,
            "ELEMENT": None,
            "QUERIES": 16,
            "KEYS": 32,
            "DIMS": 128,
            "BLOCK": 256,
        },
        {},
        {},
    ),
    "attention, streamed": (
        streamed._stream,
        STREAMED | {"KEY": None, "VALUE": None},
        dict.fromkeys(("k1", "k2", "k3", "v1", "v2", "v3"), "*fp32"),
        {"num_warps": 4, "num_stages": 1},
    ),
    "attention of int8 keys": (
        streamed._stream,
        STREAMED | {"KEY": _of_int8, "VALUE": _of_int8},
        dict.fromkeys(("k_ptr", "v_ptr", "k2", "k3", "v2", "v3"), "*i8")
        | dict.fromkeys(("k1", "v1"), "*fp32"),
        {"num_warps": 4, "num_stages": 1},
    ),
    "attention of one row": (
        streamed._stream_thin,
        THIN | {"KEY": None, "VALUE": None, "ROWS": 1, "KEYS": 16, "SLOTS": 8, "WIDTH": 64, "SLICES": 2},
        dict.fromkeys(("k1", "k2", "k3", "v1", "v2", "v3"), "*fp32"),
        {"num_warps": 4, "num_stages": 1},
    ),
    "attention of four rows": (
        streamed._stream_thin,
        THIN
        | {"KEY": _of_int8, "VALUE": _of_int8, "ROWS": 4, "KEYS": 64, "SLOTS": 16, "WIDTH": 128, "SLICES": 1},
        dict.fromkeys(("k_ptr", "v_ptr", "k2", "k3", "v2", "v3"), "*i8")
        | dict.fromkeys(("k1", "v1"), "*fp32"),
        {"num_warps": 4, "num_stages": 1},
    ),
    "attention of ReLU": (
        attention._attend,
        ATTENTION | {"ELEMENT": _relu_of},
        ATTENTION_TILES,
        {"num_warps": 8, "num_stages": 2},
    ),
    **{
        name: (
            recurrent._steps,
            {
                "KIND": kind,
                "STACKED": stacked,
                "HAS_BIAS": True,
                "BM": 16,
                "BN": 16,
                "BK": terms,
                "SLICES": 8,
                "AT_ONCE": True,
                "MOST_LOOKS": 99,
            },
            {"count_ptr": "*i32"},
            {"num_warps": 8, "num_stages": 1},
        )
        for name, kind, stacked, terms in (
            ("steps of recurrent layers", "lstm", True, 64),
            ("steps of both directions", "gru", False, 32),
            ("steps of plain layers", "tanh", True, 128),
        )
    },
    "packed images": (
        convolutions._pack,
        {"CHANNELS": 64, "TILE_C": 64, "PIXELS": 32},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "window": (
        windows._windows,
        {
            "TAPS_D": 3,
            "TAPS_H": 3,
            "TAPS_W": 3,
            "KIND": "mean",
            "CHANNELS": 1,
            "APART": True,
            "ROWS": 4,
            "COLS": 128,
        },
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "small groups": (
        windows._windows,
        {
            "TAPS_D": 1,
            "TAPS_H": 3,
            "TAPS_W": 3,
            "KIND": "convolution",
            "CHANNELS": 5,
            "APART": False,
            "ROWS": 4,
            "COLS": 64,
        },
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "convolution of few channels": (
        direct._direct,
        {
            "TAPS_W": 3,
            "PADDED": True,
            "HAS_BIAS": True,
            "AFTER": None,
            "ONE": 0,
            "TWO": 0,
            "PLACES": 1024,
            "OUTS": 16,
        },
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "sums of lists": (
        lists._sum_piece,
        {"SQUARES": True, "ALIGNED": True, "PIECE": 65536, "BLOCK": 4096},
        {},
        {"num_warps": 8, "num_stages": 3},
    ),
    "parts of lists": (lists._sum_parts, {"ROOT": True, "BLOCK": 64}, {}, {"num_warps": 1, "num_stages": 3}),
    "tiny products": (
        tiny._multiply_tiny,
        {"M": 5, "N": 3, "KS": 7, "BLOCK": 1024},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "gathered matrices": (
        gathered._multiply_gathered,
        {"BM": 16, "BK": 512},
        {"index_ptr": "*i64"},
        {"num_warps": 4, "num_stages": 3},
    ),
    "contraction": (
        contractions._contract,
        {"HAS_FACTOR": True, "BM": 64, "BN": 64, "BK": 32, "a_m": 1, "b_n": 1, "out_n": 1},
        {},
        {"num_warps": 4, "num_stages": 1},
    ),
    "contraction of few columns": (
        contractions._contract,
        {"HAS_FACTOR": False, "BM": 16, "BN": 64, "BK": 32},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "scattered elements": (
        scatters._scatter_elements,
        {"KIND": "max", "BLOCK": 2048},
        {"index_ptr": "*i64"},
        {"num_warps": 8, "num_stages": 3},
    ),
    "scattered rows": (
        scatters._scatter_rows,
        {"KIND": "sum", "ROWS": 64, "COLS": 128},
        {"index_ptr": "*i64"},
        {"num_warps": 1, "num_stages": 3},
    ),
    "counts": (
        scatters._count,
        {"PART": 4096, "BLOCK": 1024, "BINS": 256},
        {"index_ptr": "*i32", "out_ptr": "*i64"},
        {"num_warps": 4, "num_stages": 3},
    ),
    "top": (
        ranks._top,
        {"LARGEST": True, "ROWS": 1, "COLS": 32768},
        {},
        {"num_warps": 16, "num_stages": 3},
    ),
    "leaders": (
        ranks._leaders,
        {"LARGEST": True, "ROWS": 1, "COLS": 16384, "TAKEN": 64},
        {"key_ptr": "*i32", "col_ptr": "*i32"},
        {"num_warps": 16, "num_stages": 3},
    ),
    "best": (
        ranks._best,
        {"TAKEN": 64, "ALL": 512},
        {"key_ptr": "*i32", "col_ptr": "*i32"},
        {"num_warps": 4, "num_stages": 3},
    ),
    "running logsumexp": (
        scans._running_logsumexp,
        {"PART": 4096},
        {},
        {"num_warps": 8, "num_stages": 3},
    ),
    "scan": (
        scans._scan,
        SCAN | {"ENDS": False, "AXIS": 1, "TIME": 2048, "LANES": 1, "UNIT": 16},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "ends of chunks": (
        scans._scan,
        SCAN | {"ENDS": True, "AXIS": 0, "TIME": 64, "LANES": 32, "UNIT": 1},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "sums of bags": (
        bags._sum_bags,
        {"WEIGHTED": True, "LAST": True, "WRAPS": True, "PART": 8, "COLS": 64},
        {"ids_ptr": "*i64", "offsets_ptr": "*i64"},
        {"num_warps": 1, "num_stages": 3},
    ),
    "thin product": (
        thin._multiply_thin,
        {"ROWS": 4, "BK": 128, "BN": 32, "ALONG_K": True},
        {},
        {"num_warps": 8, "num_stages": 3},
    ),
    "thin product along columns": (
        thin._multiply_thin,
        {"ROWS": 4, "BK": 16, "BN": 128, "ALONG_K": False},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "ranked": (
        ranks._ranked,
        {"NAN_WINS": True, "ROWS": 4, "COLS": 512},
        {},
        {"num_warps": 4, "num_stages": 3},
    ),
    "distances": (
        distances._distances,
        {"EUCLID": True, "BM": 64, "BN": 128},
        {},
        {"num_warps": 8, "num_stages": 3},
    ),
    "softmax": (
        rows._softmax,
        {"LOG": False, "PIECE": 32768, "PIECES": 16, "WIDE": True, "MOST_LOOKS": 20_000},
        {},
        {"num_warps": 32, "num_stages": 3},
    ),
}
INTEGERS = ("again", "bits", "exponent", "bad", "flag", "count", "pieces", "spans")
LONGS = ("place_ptr",)
HALVES = ("high_ptr", "low_ptr")


#: What `hopper.on_hopper` keeps from other GPUs: below 9.0 for want of units, and the product on 10.0, see there.
ABOVE_8 = (
    "product of one step",
    "product",
    *(
        ON_HOPPER := (
            "product on Hopper",
            "wide product on Hopper",
            "few rows on Hopper",
            "sixteen rows on Hopper",
            "convolution on Hopper",
            "convolution and more on Hopper",
        )
    ),
    "few rows",
    "packed weights",
    "convolution",
    "convolution and more",
    "transposed convolution",
    "attention",
    "attention without a mask",
    "attention of small heads",
    "attention of ReLU",
    "contraction",
)
#: Compiled for each generation by day, with and without its matrix units; at night all are.
SAMPLE = ("contraction", "sums of lists")
#: Compiled at night alone, since each takes seconds; most are further forms of a kernel that is compiled by day.
LONG = (
    "leaders",
    "wide product on Hopper",
    "few rows on Hopper",
    "convolution and more on Hopper",
    "transposed convolution",
    "attention without a mask",
    "attention of small heads",
    "attention of ReLU",
    "attention of four rows",
)
#: Kind, units and whether layers are stacked, of kernels that hold weights in shared memory.
HELD = {
    "steps of recurrent layers": ("lstm", 256, True),
    "steps of both directions": ("gru", 256, False),
    "steps of plain layers": ("tanh", 512, True),
}
#: Numbers that are multiples of 16 wherever the kernel is chosen and its rows are dense.
ALIGNED = dict.fromkeys(
    ("attention, streamed", "attention of int8 keys", "attention of one row", "attention of four rows"),
    ("dims", "k_row", "k_head", "k_batch", "v_row", "v_head", "v_batch"),
)


def compiled(
    name: str, arch: int, changed: dict[str, Any] | None = None, multiples_of_16: tuple[str, ...] = ()
) -> Any:
    """A kernel's compilation, with some constants in place of its own."""
    kernel, constants, descriptors, options = KERNELS[name]
    constants = constants | (changed or {})
    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in descriptors:
            signature[argument] = descriptors[argument]
            if descriptors[argument].startswith("*"):
                attributes[(place,)] = [["tt.divisibility", 16]]
        elif argument.endswith("_ptr"):
            is_integer = any(word in argument for word in INTEGERS)
            kind = (
                "i32"
                if is_integer
                else "i64"
                if argument in LONGS
                else "fp16"
                if argument in HALVES
                else "fp32"
            )
            signature[argument] = f"*{kind}"
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[argument] = "fp32" if argument in ("alpha", "beta", "divisor", "scale") else "i32"
            if argument in multiples_of_16:
                attributes[(place,)] = [["tt.divisibility", 16]]
    made = GluonASTSource if name in ON_HOPPER else ASTSource
    source = made(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def test_neighbors_of_a_scan_are_in_one_thread_where_loads_may_be_wide() -> None:
    """Between threads, a scan shuffles; a transposed tile would besides load from as many rows as there are threads."""
    shuffles = [compiled("scan", 90, {"UNIT": unit}).asm["ptx"].count("shfl") for unit in (16, 4, 1)]
    assert shuffles[0] == shuffles[1] < shuffles[2] / 3
    assert "threadsPerWarp = [1, 32]" in compiled("ends of chunks", 90).asm["ttgir"]


@pytest.mark.parametrize("step", [1, 16])
def test_stores_are_wide_only_where_outputs_are_neighbors(step: int) -> None:
    """A transposed convolution writes every 16th element of a row: all numbers are multiples of 16, and no two outputs are neighbors."""
    near = {"to_w": 1} if step == 1 else {"NEAR": False}
    multiples = ("to_image", "to_channel", "to_d", "to_h", "to_w", "out_w", "columns")
    ptx = compiled("convolution", 90, near, multiples).asm["ptx"]
    assert ("st.global.v4" in ptx) == (step == 1)


@pytest.mark.parametrize("wide", [False, True])
def test_softmax_loads_four_neighbors_at_once_where_rows_begin_at_multiples(wide: bool) -> None:
    """Also where the row's length is a number that only a call knows."""
    ptx = compiled("softmax", 90, {"WIDE": wide}).asm["ptx"]
    assert bool(re.search(r"ld\.global\S*\.v4", ptx)) == ("st.global.v4" in ptx) == wide


@pytest.mark.parametrize(("name", "changed"), [("packed images", {"w_stride": 1}), ("window", {})])
def test_a_warp_loads_from_neighbors_where_the_compiler_knows_none(
    name: str, changed: dict[str, Any]
) -> None:
    """With lanes along another axis, each of a warp's loads came from a line of its own: images were packed at 1.5 of 4 TB/s."""
    ir = compiled(name, 90, changed).asm["ttgir"]
    layouts = set(re.findall(r"tt\.load .*: tensor<\d+x\d+x!tt\.ptr<f32>, #(\w+)>", ir))
    assert layouts
    for layout in layouts:
        assert f"#{layout} = #ttg.blocked<{{sizePerThread = [1, 1], threadsPerWarp = [32, 1]" in ir


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(
            name, arch, marks=[] if (arch == 90 and name not in LONG) or name in SAMPLE else pytest.mark.slow
        )
        for name in KERNELS
        for arch in (80, 90, 100)
        if (arch > 80 or name not in ABOVE_8)
        and (name, arch)
        not in (("product", 100), ("convolution and more", 100), ("attention without a mask", 100))
        and (arch == 90 or name not in ON_HOPPER)
    ],
)
def test_it_compiles_and_does_not_spill(
    name: str, arch: int, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    made = compiled(name, arch, None, ALIGNED.get(name, ()))
    assert "trap;" not in made.asm["ptx"], (
        "what the compiler takes to be impossible is a trap and nothing else"
    )
    assert ("wgmma" in made.asm["ptx"] or "tcgen05" in made.asm["ptx"]) == (name in ABOVE_8)
    (tmp_path / "kernel.cubin").write_bytes(made.asm["cubin"])
    command = [TOOLS / "cuobjdump", "--dump-resource-usage", tmp_path / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+)", said)  # a file may have several functions
    assert found, said
    registers, stack_bytes = (max(int(one[place]) for one in found) for place in (0, 1))
    record_property("registers", registers)
    record_property("stack_bytes", stack_bytes)
    print(
        f"{name}, sm_{arch}: {registers} registers, {stack_bytes} bytes of stack, {made.metadata.shared} of shared memory"
    )
    assert stack_bytes <= MOST_STACK_BYTES
    assert made.metadata.shared <= MOST_SHARED_BYTES
    if name in HELD:
        kind, units, stacked = HELD[name]
        assert KERNELS[name][1]["BK"] == recurrent._terms(units, stacked)
        assert (
            0 <= recurrent.needed_bytes(kind, units, stacked) - made.metadata.shared <= recurrent._SPARE_BYTES
        )


def test_lists_name_kernels() -> None:
    assert {*ABOVE_8, *SAMPLE, *LONG, *ALIGNED, *HELD} <= {*KERNELS}


HASHED = """
import triton
import triton.language as tl

@triton.jit
def hashed(out_ptr, XBLOCK: tl.constexpr):
    x2 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tmp4 = (PRODUCT).to(tl.int64)
    tl.store(out_ptr + x2, tmp4)
"""


@pytest.mark.parametrize("product", ["2654435769*x2", "3000000000*(x2 // 64)", "3000000000 + x2"])
def test_numbers_beyond_32_bits_compile_once_they_are_mended(product: str, tmp_path: Path) -> None:
    """As torch.compile writes them Triton 3.6 refuses them; when it does not, the mend can go."""
    mended = runpy.run_path(str(CAPTURE_PROGRAM))["with_long_numbers"]

    def made(text: str, name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        source = ASTSource(module.hashed, {"out_ptr": "*i64", "XBLOCK": "constexpr"}, {"XBLOCK": 128})
        return triton.compile(source, target=GPUTarget("cuda", 90, 32))

    text = HASHED.replace("PRODUCT", product)
    with pytest.raises(triton.CompilationError):
        made(text, "as_written")
    assert "st.global" in made(mended(text), "mended").asm["ptx"]


@pytest.mark.parametrize(
    "sizes", [(1, 256, 256, 524288), (1, 1024, 1024, 8192), (1, 4096, 4096, 64), (3, 256, 256, 524288)]
)
def test_a_cut_sum_has_all_its_steps_and_few_tiles_use_all_multiprocessors(
    sizes: tuple[int, int, int, int],
) -> None:
    units, steps = 132, -(-sizes[3] // parts.STEP_K)
    _, tiles, cuts, per = hopper.cut_hopper(*sizes, units)
    assert (cuts - 1) * per < steps <= cuts * per
    assert tiles * cuts > 0.9 * units or sizes[0] > 1
    assert cuts == 1 or sizes[0] == 1  # sums of cuts have no batches
