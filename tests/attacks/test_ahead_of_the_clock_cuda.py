"""What :mod:`tests.attacks.test_ahead_of_the_clock` tries, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.judging import until_timed

pytestmark = [pytest.mark.attacks, pytest.mark.gpu, pytest.mark.timeout(400)]

LINEAR = TaskSource(
    "few_rows_and_many_weights",
    """
import torch
import torch.nn.functional as F
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(8, 8, default=8), "cols": Dim(1024, 8192, multiple_of=1024, default=8192)}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 8192)

    def forward(self, x):
        return F.relu(self.linear(x))

def get_inputs(rows=8, cols=8192):
    return [torch.randn(rows, cols)]

def get_init_inputs(cols=8192):
    return [cols]
""",
)
#: The link looked at 1024 words of a large output, which followed from the state before it; that lies in the frame of the caller.
DEFERS = """
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

SAMPLES, COLS = 1024, 4


@triton.jit
def first_of(state, LENGTH: tl.constexpr, STRIDE: tl.constexpr):
    mixed = (tl.load(state).to(tl.uint64, bitcast=True) ^ LENGTH) * 0x9E3779B97F4A7C15
    mixed = mixed ^ (mixed >> 29)
    return ((mixed >> 32).to(tl.int64) % (STRIDE - 3)).to(tl.int32) // 4


@triton.jit
def looked_at(x, w, b, out, said, state, K: tl.constexpr, OUTS: tl.constexpr, COUNT: tl.constexpr, LENGTH: tl.constexpr,
              STRIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BK: tl.constexpr):
    number = tl.program_id(0) * COLS + tl.arange(0, COLS)
    column = (first_of(state, LENGTH, STRIDE) + number // 2 * (STRIDE // 4) + number % 2) % OUTS
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        given = tl.load(x + row[:, None] * K + k[None, :])
        weights = tl.load(w + column[:, None] * K + k[None, :])
        total += tl.sum(given[:, None, :] * weights[None, :, :], 2)
    total = tl.maximum(total + tl.load(b + column)[None, :], 0.0)
    tl.store(out + row[:, None] * OUTS + column[None, :], total)
    tl.store(said + row[:, None] * COUNT + number[None, :], total)


@triton.jit
def said_again(out, said, states, OUTS: tl.constexpr, COUNT: tl.constexpr, LENGTH: tl.constexpr, STRIDE: tl.constexpr,
               ROWS: tl.constexpr):
    call = tl.program_id(0)
    number = tl.arange(0, COUNT)
    column = (first_of(states + call, LENGTH, STRIDE) + number // 2 * (STRIDE // 4) + number % 2) % OUTS
    row = tl.program_id(1)
    value = tl.load(said + (call * ROWS + row) * COUNT + number)
    tl.store(out + (call * ROWS + row) * OUTS + column, value)


def of_the_caller():
    frame = sys._getframe(1)
    while frame is not None and not {"slots", "states", "outputs"} <= frame.f_locals.keys():
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


class ModelNew(nn.Module):
    "Computes of each output what the chain will look at; the last call computes all the rest at once."

    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 8192)

    def forward(self, x):
        found = of_the_caller()
        slots, words = found.get("slots"), getattr(found.get("states"), "_words", None)
        w, b = self.linear.weight, self.linear.bias
        if words is None or len(slots) < 3:
            return F.relu(F.linear(x, w, b))
        return self.deferred(x, [slot.arguments[0] for slot in slots], words, len(found["outputs"]))

    def deferred(self, x, given, words, call):
        w, b = self.linear.weight, self.linear.bias
        rows, outs = x.shape[0], w.shape[0]
        length = rows * outs * 4
        stride = length // SAMPLES
        count = 2 * outs // (stride // 4)
        if call == 0:
            self.all = torch.empty(len(given), rows, outs, device=x.device)
            self.said = torch.empty(len(given), rows, count, device=x.device)
        y = self.all[call]
        looked_at[(count // COLS,)](x, w, b, y, self.said[call], words[call:], x.shape[1], outs, count, length, stride, rows,
                                    COLS, 256)
        if call == len(given) - 1:
            everything = F.linear(torch.cat(given), w, b)
            torch.clamp(everything, min=0, out=self.all.view(-1, outs))
            said_again[(len(given), rows)](self.all, self.said, words, outs, count, length, stride, rows)
        return y
"""
#: The same in links that begin when it says: its places follow from the state again.
SAYS_WHEN = (
    DEFERS.replace(
        "    mixed = (tl.load(state).to(tl.uint64, bitcast=True) ^ LENGTH) * 0x9E3779B97F4A7C15",
        """    stirred = tl.load(state).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    stirred = stirred ^ (stirred >> 29)
    mixed = (stirred ^ LENGTH) * 0x9E3779B97F4A7C15""",
    )
    + """

from evaluator.devices.cuda import chain as device_chain

device_chain.States.link.__defaults__ = (0,)
"""
)
#: A chain that goes on from a state of its own in the middle of each block. Both parts could be computed at a time, and of a block's
#: links two were looked at.
BREAKS = """
import sys

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    "Right results all the same: what it would gain is left out."

    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 8192)

    def forward(self, x):
        frame = sys._getframe(1)
        while frame is not None and not {"slots", "states", "outputs"} <= frame.f_locals.keys():
            frame = frame.f_back
        found = {} if frame is None else frame.f_locals
        calls, call = len(found.get("slots", ())), len(found.get("outputs", ()))
        y = F.relu(self.linear(x))
        if calls > 8 and call == calls // 2:
            # Its inputs were refreshed by the state before that.
            found["states"]._words[call] ^= 1 << 40
        return y
"""


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cuda", work_dir=tmp_path_factory.mktemp("referee-ahead")) as running:
        yield running


@pytest.mark.parametrize(("source", "rule"), [(SAYS_WHEN, "harness_replaced"), (BREAKS, "broken_chain")])
def test_a_chain_of_its_own_is_seen(referee: Referee, source: str, rule: str) -> None:
    candidate = CandidateSource(source, "external", rule)
    shapes = {"visible": [{"rows": 8, "cols": 8192}]}
    verdict = until_timed(lambda: referee.evaluate(LINEAR, candidate, shapes=shapes, splits=["visible"]))
    assert verdict.verdict == "cheating", (verdict.reason, verdict.summary)
    assert rule in [finding.rule for finding in verdict.findings]


def test_an_output_of_which_only_the_looked_at_is_there_gains_nothing(referee: Referee) -> None:
    candidate = CandidateSource(DEFERS, "external", "defers what is not looked at")
    shapes = {"visible": [{"rows": 8, "cols": 8192}]}
    verdict = until_timed(lambda: referee.evaluate(LINEAR, candidate, shapes=shapes, splits=["visible"]))
    assert verdict.verdict == "cheating", (verdict.reason, verdict.summary)
    assert "broken_chain" in [finding.rule for finding in verdict.findings]
