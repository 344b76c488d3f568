"""Programs for a CPU: C++ that the candidate has compiled by ``load_inline`` and calls through ctypes.

Choices: ``variant`` (passes over memory, or the order of loops), ``lanes`` (elements a step), ``threads`` (``serial``, or rows a chunk),
``flags`` of the compiler, and ``tail``: ``dropped`` forgets what does not fill a step, which is right only for shapes without any.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.dialect.phrases import phrases

_HEADER = '''from __future__ import annotations

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
'''
_FLAGS = {
    "O2": '"-O2", ',
    "O3 native": '"-O3", "-march=native", ',
    "O3 native fast": '"-O3", "-march=native", "-ffast-math", ',
}
_LOAD = '''"""
library = load_inline(
    "kernel",
    cpp_sources=SOURCE,
    is_python_module=False,
    no_implicit_headers=True,
    extra_ldflags=["-fopenmp"],
    extra_cflags=['''
_CLASS = """"-fopenmp"],
)
kernel = ctypes.CDLL(library).kernel
kernel.restype = None


class ModelNew(nn.Module):
"""
_LONGS = "ctypes.c_int64(x.shape[0]), ctypes.c_int64(x.shape[1])"
_POINTER = "ctypes.c_void_p({}.data_ptr())"


def _forward(output: str, vector: str | None) -> str:
    pointers = ["x", *([vector] if vector else []), "y"]
    arguments = ", ".join(_POINTER.format(name) for name in pointers)
    return (
        f"    def forward(self, {', '.join(pointers[:-1])}):\n        y = {output}\n"
        f"        kernel({arguments}, {_LONGS})\n        return y\n"
    )


_SIGNATURE = 'extern "C" void kernel(const float* x, {}float* y, int64_t rows, int64_t cols) {{\n'
_ROWS = "@parallel@  for (int64_t i = 0; i < rows; ++i) {\n    const float* in = x + i * cols;\n"
_OUT = "    float* out = y + i * cols;\n"
_CLOSE = "  }\n"
_END = "}\n"


def _loop(body: str, tail: str) -> str:
    """A loop over a row in steps of LANES; ``k`` is the lane. In ``body``, ``#`` is the element's index."""
    steps = (
        "    for (int64_t j = 0; j + LANES <= cols; j += LANES)\n      for (int64_t k = 0; k < LANES; ++k)\n"
    )
    steps += f"        {body.replace('#', 'j + k')}\n"
    if tail == "dropped":
        return steps
    single = body.replace("[k]", "[0]").replace("#", "j")
    return f"{steps}    for (int64_t j = cols / LANES * LANES; j < cols; ++j)\n      {single}\n"


def _fold(name: str, call: str = "") -> str:
    """The lanes of an accumulator as one number."""
    how = f"{name} = {call}({name}, {name}s[k]);" if call else f"{name} += {name}s[k];"
    start = f"{name}s[0]" if call else "0.f"
    return f"    float {name} = {start};\n    for (int64_t k = 0; k < LANES; ++k) {how}\n"


def _body(family: str, variant: str, tail: str) -> str:
    def loop(text: str) -> str:
        return _loop(text, tail)

    if family == "bias_silu":
        top = _ROWS + _OUT
        if variant == "fused":
            return (
                top + loop("{ const float v = in[#] + bias[#]; out[#] = v / (1.f + std::exp(-v)); }") + _CLOSE
            )
        added = top + loop("out[#] = in[#] + bias[#];") + _CLOSE
        return added + top + loop("out[#] = out[#] / (1.f + std::exp(-out[#]));") + _CLOSE
    if family == "softmax":
        largest = "    float tops[LANES];\n    std::fill(tops, tops + LANES, in[0]);\n"
        largest += loop("tops[k] = std::max(tops[k], in[#]);") + _fold("top", "std::max")
        sums = "    float sums[LANES] = {};\n"
        if variant == "stored":
            sums += loop("{ out[#] = std::exp(in[#] - top); sums[k] += out[#]; }") + _fold("sum")
            return _ROWS + _OUT + largest + sums + loop("out[#] = out[#] / sum;") + _CLOSE
        sums += loop("sums[k] += std::exp(in[#] - top);") + _fold("sum")
        return _ROWS + _OUT + largest + sums + loop("out[#] = std::exp(in[#] - top) / sum;") + _CLOSE
    if family == "rmsnorm":
        sums = "    float sums[LANES] = {};\n" + loop("sums[k] += in[#] * in[#];") + _fold("sum")
        if variant == "scaled":
            sums += "    const float scale = 1.f / std::sqrt(sum / cols + 1e-6f);\n"
            return _ROWS + _OUT + sums + loop("out[#] = in[#] * scale * weight[#];") + _CLOSE
        return (
            _ROWS + _OUT + sums + loop("out[#] = in[#] / std::sqrt(sum / cols + 1e-6f) * weight[#];") + _CLOSE
        )
    if family == "row_sum":
        if variant == "lanes":
            sums = "    float sums[LANES] = {};\n" + loop("sums[k] += in[#];") + _fold("sum")
        else:
            sums = "    float sum = 0.f;\n" + loop("sum += in[#];")
        return _ROWS + sums + "    y[i] = sum;\n" + _CLOSE
    return _transpose(variant, tail)


def _transpose(variant: str, tail: str) -> str:
    """Tiles of LANES x LANES; ``reading`` walks x in order within a tile, ``writing`` y."""
    row_end, col_end = (
        ("rows - rows % LANES", "cols - cols % LANES") if tail == "dropped" else ("rows", "cols")
    )
    tiles = f"@parallel@  for (int64_t r = 0; r < {row_end}; r += LANES)\n    for (int64_t c = 0; c < {col_end}; c += LANES)\n"
    by_row = "        for (int64_t i = r; i < std::min(r + LANES, rows); ++i)\n"
    by_col = "        for (int64_t j = c; j < std::min(c + LANES, cols); ++j)\n"
    loops = by_row + by_col if variant == "reading" else by_col + by_row
    return tiles + loops + "          y[j * rows + i] = 2.f * x[i * cols + j];\n"


VARIANTS = {
    "bias_silu": ("fused", "split"),
    "softmax": ("stored", "recomputed"),
    "rmsnorm": ("scaled", "divided"),
    "row_sum": ("lanes", "single"),
    "transpose": ("reading", "writing"),
}
_VECTORS = {"bias_silu": "bias", "rmsnorm": "weight"}
_OUTPUTS = {
    "row_sum": "x.new_empty(x.shape[0])",
    "transpose": "x.new_empty(x.shape[1], x.shape[0])",
}


def choices(family: str, size: str) -> dict[str, tuple[str, ...]]:
    """What a program of a family chooses; ``small`` is a part of ``full`` that can be measured within minutes."""
    small = size == "small"
    return {
        "variant": VARIANTS[family],
        "lanes": ("8", "32") if small else ("4", "8", "16", "32"),
        "threads": ("serial",) if small else ("serial", "1", "16"),
        "flags": tuple(_FLAGS),
        "tail": ("kept", "dropped"),
    }


def possible(family: str, chosen: Mapping[str, str]) -> bool:
    """Whether a program is one of the grammar's: here all are."""
    return True


def pieces(family: str, chosen: Mapping[str, str]) -> list[str]:
    """The phrases of a program."""
    parallel = ""
    if chosen["threads"] != "serial":
        parallel = "  #pragma omp parallel for schedule(static, @chunk@)\n"
    vector = _VECTORS.get(family)
    text = "constexpr int64_t LANES = @lanes@;\n" + _SIGNATURE.format(
        f"const float* {vector}, " if vector else ""
    )
    text += _body(family, chosen["variant"], chosen["tail"]).replace("@parallel@", parallel) + _END
    body = phrases(text, {"lanes": chosen["lanes"], "chunk": chosen["threads"]})
    flags = [f"{flag}, " for flag in _FLAGS[chosen["flags"]].split(", ") if flag]
    forward = _forward(_OUTPUTS.get(family, "torch.empty_like(x)"), vector)
    return [_HEADER, *body, _LOAD, *flags, _CLASS, forward]
