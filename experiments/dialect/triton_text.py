"""Programs for a GPU: Triton kernels, and the candidate that launches them.

Choices: ``variant``, ``tile`` (elements, or rows, of a program), ``warps``, and ``grid``: ``short`` rounds the number of programs down, so that
what does not fill a tile is never written, which is right only for shapes that tiles divide.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.dialect.phrases import phrases

_HEADER = """from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn


"""
_CLASS = "\n\nclass ModelNew(nn.Module):\n"

#: Rows of ROWS each, a whole row at once: COLS is the power of two above it.
_ROW_PLACES = """    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
"""
_ROW_SIGNATURE = (
    "@triton.jit\ndef kernel(x_ptr, @vector_ptr@y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):\n"
)
_ROW_LOAD = "    x = tl.load(x_ptr + row * cols + col, mask=inside, other=@fill@)\n"
_ROW_STORE = "    tl.store(y_ptr + row * cols + col, y, mask=inside)\n"

#: Rows of ROWS each, in pieces of BLOCK columns, so that registers suffice for any length.
_PIECE_SIGNATURE = "@triton.jit\ndef kernel(x_ptr, @vector_ptr@y_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):\n"
_PIECE_PLACES = "    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]\n"
_PIECES = "    for start in range(0, cols, BLOCK):\n        col = start + tl.arange(0, BLOCK)[None, :]\n"
_PIECES += "        inside = (row < rows) & (col < cols)\n"
_PIECE_LOAD = "        x = tl.load(x_ptr + row * cols + col, mask=inside, other=@fill@)\n"
_PIECE_STORE = "        tl.store(y_ptr + row * cols + col, y, mask=inside)\n"
_TOTAL = "    total = tl.zeros((ROWS, BLOCK), tl.float32)\n"
_SUM_STORE = "    tl.store(y_ptr + row, y, mask=row < rows)\n"

_ROW_BODIES = {
    "softmax": (
        "    power = tl.exp(x - tl.max(x, axis=1, keep_dims=True))\n"
        "    y = power / tl.sum(power, axis=1, keep_dims=True)\n"
    ),
    "rmsnorm": (
        "    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0)\n"
        "    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + 1e-6)\n"
        "    y = x * scale * weight\n"
    ),
    "row_sum": "    y = tl.sum(x, axis=1, keep_dims=True)\n",
}
_PIECE_BODIES = {
    "softmax": (
        '    top = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)\n'
        + _PIECES
        + _PIECE_LOAD
        + "        top = tl.maximum(top, x)\n    top = tl.max(top, axis=1, keep_dims=True)\n"
        + _TOTAL
        + _PIECES
        + _PIECE_LOAD
        + "        total += tl.where(inside, tl.exp(x - top), 0.0)\n"
        "    total = tl.sum(total, axis=1, keep_dims=True)\n"
        + _PIECES
        + _PIECE_LOAD
        + "        y = tl.exp(x - top) / total\n"
        + _PIECE_STORE
    ),
    "rmsnorm": (
        _TOTAL
        + _PIECES
        + _PIECE_LOAD
        + "        total += x * x\n    scale = tl.rsqrt(tl.sum(total, axis=1, keep_dims=True) / cols + 1e-6)\n"
        + _PIECES
        + _PIECE_LOAD
        + "        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0)\n"
        "        y = x * scale * weight\n" + _PIECE_STORE
    ),
    "row_sum": (
        _TOTAL
        + _PIECES
        + _PIECE_LOAD
        + "        total += x\n    y = tl.sum(total, axis=1, keep_dims=True)\n"
        + _SUM_STORE
    ),
}
_FILLS = {"softmax": 'float("-inf")', "rmsnorm": "0.0", "row_sum": "0.0"}
_FLAT = """@triton.jit
def kernel(x_ptr, bias_ptr, y_ptr, count, cols, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    v = tl.load(x_ptr + place, mask=inside) + tl.load(bias_ptr + place % cols, mask=inside)
"""
_FLAT_STORE = "    tl.store(y_ptr + place, v, mask=inside)\n"
_SECOND = """

@triton.jit
def second(y_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    v = tl.load(y_ptr + place, mask=inside)
"""
_SILU = "    v = v * tl.sigmoid(v)\n"
_TRANSPOSE = """@triton.jit
def kernel(x_ptr, y_ptr, rows, cols, TILE: tl.constexpr):
    row = tl.program_id(@row_axis@).to(tl.int64) * TILE + tl.arange(0, TILE)
    col = tl.program_id(@col_axis@).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=inside)
    turned = (row < rows)[None, :] & (col < cols)[:, None]
    tl.store(y_ptr + col[:, None] * rows + row[None, :], 2.0 * tl.trans(x), mask=turned)
"""

VARIANTS = {
    "bias_silu": ("fused", "split"),
    "softmax": ("whole", "pieces"),
    "rmsnorm": ("whole", "pieces"),
    "row_sum": ("whole", "pieces"),
    "transpose": ("rows first", "columns first"),
}
_TILES = {
    "bias_silu": ("256", "1024", "512", "2048", "4096"),
    "transpose": ("16", "32", "8", "64", "128"),
}


def choices(family: str, size: str) -> dict[str, tuple[str, ...]]:
    """What a program of a family chooses; ``small`` is a part of ``full``."""
    tiles = _TILES.get(family, ("1", "4", "2", "8", "16"))
    small = size == "small"
    return {
        "variant": VARIANTS[family],
        "tile": tiles[:2] if small else tiles,
        "warps": ("2", "8") if small else ("1", "2", "4", "8"),
        "grid": ("whole", "short"),
    }


def possible(family: str, chosen: Mapping[str, str]) -> bool:
    """Whether a program is one of the grammar's.

    Whole rows of up to 8192 elements are held in registers: with more than two rows a warp a thread has over 512 of them,
    and the compiler takes 17 s to more than 90 s on what is slow anyway (triton 3.6.0 for an H100, on one core).
    """
    by_rows_at_once = chosen["variant"] == "whole"
    return not by_rows_at_once or int(chosen["tile"]) <= 2 * int(chosen["warps"])


def _programs_along(extent: str, tile: str, grid: str) -> str:
    """Python that counts programs; a grid must not be empty, or the launch itself fails."""
    if grid == "whole":
        return f"triton.cdiv({extent}, {tile})"
    return f"max({extent} // {tile}, 1)"


def pieces(family: str, chosen: Mapping[str, str]) -> list[str]:
    """The phrases of a program."""
    values = {"tile": chosen["tile"], "warps": chosen["warps"], "vector_ptr": "", "fill": ""}
    if family == "bias_silu":
        text = _bias_silu(chosen)
    elif family == "transpose":
        rows_first = chosen["variant"] == "rows first"
        values |= {"row_axis": "0" if rows_first else "1", "col_axis": "1" if rows_first else "0"}
        along = [_programs_along(extent, "@tile@", chosen["grid"]) for extent in ("rows", "cols")]
        grid = ", ".join(along if rows_first else reversed(along))
        text = f"{_TRANSPOSE}{_CLASS}    def forward(self, x):\n        rows, cols = x.shape\n"
        text += f"        y = x.new_empty(cols, rows)\n        grid = ({grid})\n"
        text += "        kernel[grid](x, y, rows, cols, TILE=@tile@, num_warps=@warps@)\n        return y\n"
    else:
        values |= {"fill": _FILLS[family], "vector_ptr": "weight_ptr, " if family == "rmsnorm" else ""}
        text = _by_rows(family, chosen)
    return [_HEADER, *phrases(text, values)]


def _bias_silu(chosen: Mapping[str, str]) -> str:
    fused = chosen["variant"] == "fused"
    text = _FLAT + (_SILU if fused else "") + _FLAT_STORE
    text += "" if fused else _SECOND + _SILU + _FLAT_STORE
    text += f"{_CLASS}    def forward(self, x, bias):\n        y = torch.empty_like(x)\n"
    text += f"        grid = ({_programs_along('x.numel()', '@tile@', chosen['grid'])},)\n"
    text += "        kernel[grid](x, bias, y, x.numel(), x.shape[1], BLOCK=@tile@, num_warps=@warps@)\n"
    text += "" if fused else "        second[grid](y, x.numel(), BLOCK=@tile@, num_warps=@warps@)\n"
    return text + "        return y\n"


def _by_rows(family: str, chosen: Mapping[str, str]) -> str:
    whole = chosen["variant"] == "whole"
    if whole:
        text = _ROW_SIGNATURE + _ROW_PLACES + _ROW_LOAD + _ROW_BODIES[family]
        text += _SUM_STORE if family == "row_sum" else _ROW_STORE
    else:
        text = _PIECE_SIGNATURE + _PIECE_PLACES + _PIECE_BODIES[family]
    vector = "weight, " if family == "rmsnorm" else ""
    text += f"{_CLASS}    def forward(self, x{', weight' if vector else ''}):\n        rows, cols = x.shape\n"
    text += f"        y = {'x.new_empty(rows)' if family == 'row_sum' else 'torch.empty_like(x)'}\n"
    text += f"        grid = ({_programs_along('rows', '@tile@', chosen['grid'])},)\n"
    wide = "COLS=triton.next_power_of_2(cols)" if whole else "BLOCK=512"
    return text + (
        f"        kernel[grid](x, {vector}y, rows, cols, ROWS=@tile@, {wide}, num_warps=@warps@)\n        return y\n"
    )
