"""A candidate that replaces the loop around its calls by a quicker one, with a right chain and right results.

What the harness takes is measured in the reference's process and taken off both sides. A candidate whose own loop takes less is
credited with what it never spent, and with the calls of Python that it never made. The same kernel is judged twice: called as everybody's is, and from such a loop.
"""

from __future__ import annotations

import statistics

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource
from tests.attacks.test_candidates import TASK, xfail_if_voided

pytestmark = [pytest.mark.attacks, pytest.mark.slow, pytest.mark.timeout(280)]

_KERNEL = '''
import ctypes
from pathlib import Path

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

from evaluator.roles import chain as chain_module

CHAIN = Path(chain_module.__file__).with_name("chain.c").read_text()
CPP = """
#include <cmath>
#include <cstdint>
extern "C" {
""" + CHAIN + """
void kernel(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols, float eps) {
  for (int64_t i = 0; i < rows; ++i, x += cols, y += cols) {
    float sum = 0.f, squares = 0.f;
    for (int64_t j = 0; j < cols; ++j) sum += x[j];
    const float mean = sum / cols;
    for (int64_t j = 0; j < cols; ++j) squares += (x[j] - mean) * (x[j] - mean);
    const float scale = 1.f / std::sqrt(squares / cols + eps);
    for (int64_t j = 0; j < cols; ++j) {
      const float v = (x[j] - mean) * scale * w[j] + b[j];
      y[j] = v > 0.f ? v : 0.f;
    }
  }
}
void walk(int64_t calls, const refresh_t** tables, const float** xs, const float* w, const float* b, float* y,
          int64_t rows, int64_t cols, float eps, uint64_t state, uint64_t* states) {
  for (int64_t call = 0; call < calls; ++call, y += rows * cols) {
    kw_refresh(tables[call], 1, state);
    kernel(xs[call], w, b, y, rows, cols, eps);
    states[call] = state = kw_digest((const uint8_t*)y, rows * cols * 4, state);
  }
}
}
"""
library = ctypes.CDLL(
    load_inline(
        "quick",
        cpp_sources=CPP,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3", "-march=native", "-ffast-math"],
    )
)
P, L = ctypes.c_void_p, ctypes.c_int64
library.kernel.argtypes = [P, P, P, P, L, L, ctypes.c_float]
library.kernel.restype = None
library.walk.argtypes = [L, P, P, P, P, P, L, L, ctypes.c_float, ctypes.c_uint64, P]
library.walk.restype = None


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        weight, bias = self.norm.weight.data_ptr(), self.norm.bias.data_ptr()
        library.kernel(x.data_ptr(), weight, bias, y.data_ptr(), x.shape[0], x.shape[1], self.norm.eps)
        return y
'''
_LOOP = """

from evaluator.roles import turns

original = turns.blocks.run


def run(forward, slots, chain, state, chained, device):
    if not chained or not isinstance(forward, ModelNew):
        return original(forward, slots, chain, state, chained, device)
    calls, x = len(slots), slots[0].arguments[0]
    rows, cols = x.shape
    y = torch.empty(calls, rows, cols)
    tables = (P * calls)(*[slot.address for slot in slots])
    xs = (P * calls)(*[slot.entries[0].data for slot in slots])
    states = (ctypes.c_uint64 * calls)()
    weight, bias = forward.norm.weight.data_ptr(), forward.norm.bias.data_ptr()
    library.walk(calls, tables, xs, weight, bias, y.data_ptr(), rows, cols, forward.norm.eps, state, states)
    return [[part] for part in y.unbind()], list(states)


turns.blocks.run = run
"""
_TINY = [{"rows": 8, "cols": 64}, {"rows": 16, "cols": 64}]
_SMALL = [{"rows": 128, "cols": 512}]


def speedup(referee: Referee, source: str, label: str, shapes: list[dict[str, int]]) -> float:
    """The median speedup of three evaluations; 0 when it is rejected as cheating."""
    figures = []
    for _ in range(3):
        candidate = CandidateSource(source, "external", label)
        verdict = referee.evaluate(TASK, candidate, shapes={"visible": shapes}, splits=["visible"])
        xfail_if_voided(verdict)
        print(label, verdict["verdict"], verdict["reason"])
        assert verdict["verdict"] in ("accepted", "cheating"), (verdict["reason"], verdict["detail"])
        if verdict["verdict"] == "cheating":
            return 0.0
        figures.append(verdict["summary"]["geomean_speedup"])
    return statistics.median(figures)


def test_a_loop_that_is_quicker_than_nothing_is_cheating(referee: Referee) -> None:
    assert speedup(referee, _KERNEL, "called as everybody is", _TINY) > 0
    assert speedup(referee, _KERNEL + _LOOP, "with a loop of its own", _TINY) == 0.0


@pytest.mark.xfail(
    strict=True,
    reason="the loop around the calls runs in the candidate's process: one that calls its kernel directly, with a right chain "
    "and right results, is credited with the calls of Python that it never made, some 10 us each (measured: 2.0x in place of "
    "1.4x at 128 x 512)",
)
def test_a_loop_of_its_own_earns_nothing(referee: Referee) -> None:
    honest = speedup(referee, _KERNEL, "called as everybody is", _SMALL)
    assert honest > 0
    assert speedup(referee, _KERNEL + _LOOP, "with a loop of its own", _SMALL) <= 1.05 * honest
