"""A candidate that replaces the loop around its calls by a quicker one, with a right chain and right results.

Its calls are not made through Python one by one, as everybody's are. The same kernel is judged as everybody's is, and with the
harness in its process replaced in whole, in part, beside a busy main thread, or in other places than by name.
"""

from __future__ import annotations

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict
from tests.attacks.test_candidates import TASK
from tests.evaluator.judging import until_timed

pytestmark = [pytest.mark.attacks, pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.alone]

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
    states[call] = state = kw_marked(kw_digest((const uint8_t*)y, rows * cols * 4, kw_stirred(state, 7)), 7);
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

import threading

from evaluator.roles import blocks, chain, module_host, turns

original = blocks._walk


def native(forward, slots, state):
    calls, x = len(slots), slots[0].arguments[0]
    rows, cols = x.shape
    y = torch.empty(calls, rows, cols)
    tables = (P * calls)(*[slot.address for slot in slots])
    xs = (P * calls)(*[slot.entries[0].data for slot in slots])
    states = (ctypes.c_uint64 * calls)()
    weight, bias = forward.norm.weight.data_ptr(), forward.norm.bias.data_ptr()
    library.walk(calls, tables, xs, weight, bias, y.data_ptr(), rows, cols, forward.norm.eps, state, states)
    return [[part] for part in y.unbind()], list(states)


def run(forward, slots, chain, state, chained, *device):
    if not chained or not isinstance(forward, ModelNew):
        return original(forward, slots, chain, state, chained)
    return native(forward, slots, state)


def half(forward, slots, chain, state, chained, *device):
    if not chained or not isinstance(forward, ModelNew) or len(slots) < 2:
        return original(forward, slots, chain, state, chained)
    middle = len(slots) // 2
    outputs, states = native(forward, slots[:middle], state)
    more, later = original(forward, slots[middle:], chain, states[-1], chained)
    return outputs + more, states + later


def beside(forward, slots, chain, state, chained, *device):
    if not chained or not isinstance(forward, ModelNew):
        return original(forward, slots, chain, state, chained)
    found = []
    thread = threading.Thread(target=lambda: found.append(native(forward, slots, state)))
    thread.start()
    while not found:
        pass
    thread.join()
    return found[0]


def of_c(python, forward, arguments, tables, count, calls, state, outputs, states):
    "What stands in for the function of C has to find the slots itself; it is enough that it stands there."
    return walk(python, forward, arguments, tables, count, calls, state, outputs, states)


"""
_PLACES = {
    "in place of the loop": "turns.blocks.run = run",
    "in place of a part of the loop": "blocks._walk = half",
    "beside a busy main thread": "turns.blocks.run = beside",
    "in the loop's own code": """
blocks.original, blocks.native, blocks.ModelNew = original, native, ModelNew
blocks.run.__code__ = run.__code__
""",
    "hiding a method of the host": """
module_host.ModuleHost._slots_of = lambda self, *given: turns.Turns._slots_of(self, *given)
""",
    "in place of the function of C": """
import gc
found = next(each for each in gc.get_objects() if type(each) is chain.CompiledChain)
walk = found.walk
found.walk = of_c
""",
}
_SMALL = [{"rows": 128, "cols": 512}]


def judge(referee: Referee, source: str, label: str) -> Verdict:
    candidate = CandidateSource(source, "external", label)
    return until_timed(
        lambda: referee.evaluate(TASK, candidate, shapes={"visible": _SMALL}, splits=["visible"])
    )


def test_the_kernel_itself_is_accepted(referee: Referee) -> None:
    verdict = judge(referee, _KERNEL + _LOOP, "called as everybody is")
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


@pytest.mark.parametrize("place", _PLACES)
def test_a_loop_of_its_own_is_cheating(place: str, referee: Referee) -> None:
    verdict = judge(referee, _KERNEL + _LOOP + _PLACES[place] + "\n", place)
    assert verdict.verdict == "cheating", (verdict.reason, verdict.detail)
    assert "harness_replaced" in [finding.rule for finding in verdict.findings]
    assert verdict.summary.geomean_speedup is None
