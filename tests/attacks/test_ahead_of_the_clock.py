"""Candidates that keep to the harness's loop and still do not do a call's work within that call.

They read what is readable in their own process: the slots of a block and the chain's state (frames of the caller), and every content
that was ever theirs. What each gained before it was held back is in its text.
"""

from __future__ import annotations

from functools import partial

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.judging import until_timed

pytestmark = [pytest.mark.attacks, pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.alone]

LINEAR = TaskSource(
    "few_rows_and_many_weights",
    """
import torch
import torch.nn.functional as F
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 16, default=4), "cols": Dim(256, 4096, default=2048)}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 2048)

    def forward(self, x):
        return F.relu(self.linear(x))

def get_inputs(rows=4, cols=2048):
    return [torch.randn(rows, cols)]

def get_init_inputs(cols=2048):
    return [cols]
""",
)
SUMS = TaskSource(
    "sums_of_rows",
    """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=1024), "cols": Dim(8, 8192, default=2048)}

class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=1)

def get_inputs(rows=1024, cols=2048):
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
""",
)
ROWS = TaskSource(
    "rows_apart",
    """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(16, 16, default=16), "cols": Dim(1, 4096, default=64)}

class Model(nn.Module):
    def forward(self, x):
        return [torch.relu(row) for row in x]

def get_inputs(rows=16, cols=64):
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
""",
)
_FRAMES = """
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def of_the_caller():
    frame = sys._getframe(1)
    while frame is not None and "slots" not in frame.f_locals:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals
"""
#: 1.8 times as fast as the best baseline at 4 x 2048, while one element in 61 was replaced within a block.
AHEAD = (
    _FRAMES
    + """

class ModelNew(nn.Module):
    "The first call multiplies for all calls of its block, the others add what has changed in their inputs since."

    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 2048)
        self.packed = None

    def forward(self, x):
        slots = of_the_caller().get("slots")
        w, b = self.linear.weight, self.linear.bias
        if not isinstance(slots, list) or len(slots) < 3:
            return F.relu(F.linear(x, w, b))
        if x is slots[0].arguments[0]:
            if self.packed is None:
                self.packed = w.t().contiguous()
            self.given = torch.stack([slot.arguments[0] for slot in slots])
            self.ahead = list(F.linear(self.given, w, b))
            self.call = 0
            return F.relu(self.ahead[0])
        self.call += 1
        change = x - self.given[self.call]
        columns = change.any(0).nonzero().view(-1)
        return torch.addmm(self.ahead[self.call], change[:, columns], self.packed[columns]).relu_()
"""
)
#: The chain looks at 256 words of a large output. Which ones followed from the state alone, which is in the caller's frame.
DEFERS = (
    _FRAMES
    + """
MASK = (1 << 64) - 1


def mix(state, value):
    state = ((state ^ value) * 0x9E3779B97F4A7C15) & MASK
    return state ^ (state >> 29)


class ModelNew(nn.Module):
    "Computes of each output what the chain will look at; the last call computes all the rest at once."

    def __init__(self, cols):
        super().__init__()
        self.linear = nn.Linear(cols, 2048)

    def forward(self, x):
        found = of_the_caller()
        slots, chain = found.get("slots"), found.get("chain")
        w, b = self.linear.weight, self.linear.bias
        outs = w.shape[0]
        length = x.shape[0] * outs * 4
        if not isinstance(slots, list) or chain is None or len(slots) < 3 or length <= 16384:
            return F.relu(F.linear(x, w, b))
        if x is slots[0].arguments[0]:
            self.state, self.call, self.said = found["state"], 0, []
            self.all = torch.empty(len(slots), x.shape[0], outs)
        else:
            self.call += 1
        y = self.all[self.call]
        if self.call == len(slots) - 1:
            given = torch.cat([slot.arguments[0] for slot in slots])
            torch.clamp(F.linear(given, w, b), min=0, out=self.all.view(-1, outs))
            for call, (columns, values) in enumerate(self.said):
                self.all[call][:, columns] = values
            return y
        stride = length // 256
        starts = mix(self.state, length) % (stride - 7) + stride * np.arange(256)
        columns = np.unique(np.concatenate([starts // 4, (starts + 7) // 4]) % outs)
        columns = torch.from_numpy(columns)
        values = F.relu(F.linear(x, w[columns], b[columns]))
        y[:, columns] = values
        self.said.append((columns, values))
        self.state = chain.digest(y.data_ptr(), length, self.state)
        return y
"""
)
#: Up to 5 times as fast at 2048 x 4096, while every content was a single window of one of three draws.
REMEMBERS = """
from collections import Counter

import numpy as np
import torch
from torch import nn

_CLEAN, _MOST = 5, 6


class ModelNew(nn.Module):
    "Learns the draws, keeps running sums of them, and reads of an input only where it lies and what the chain has replaced."

    def __init__(self):
        super().__init__()
        self.known = []

    def learn(self, flat):
        order = np.argsort(flat.view(np.uint32), kind="stable")
        twice = np.concatenate([[0.0], np.cumsum(np.concatenate([flat, flat]), dtype=np.float64)])
        return flat, flat.view(np.uint32)[order], order, twice

    def find(self, head):
        bits = head.view(np.uint32)
        for which, (entry, _) in enumerate(self.known):
            flat, keys, order, _ = entry
            at = np.minimum(np.searchsorted(keys, bits), len(keys) - 1)
            ok = keys[at] == bits
            if ok.sum() >= len(bits) // 2:
                shifts = (order[at[ok]] - np.flatnonzero(ok)) % len(flat)
                shift, count = Counter(shifts.tolist()).most_common(1)[0]
                if count >= len(bits) // 2:
                    return which, shift
        return None

    def forward(self, x):
        if x.numel() < 300_000:
            return x.sum(dim=1)
        size, flat = x.numel(), x.numpy().reshape(-1)
        if self.known and len(self.known[0][0][0]) != size:
            self.known = []
        found = self.find(flat[:24])
        if found is None:
            if len(self.known) < _MOST:
                self.known.append((self.learn(flat.copy()), [flat.copy()]))
            return x.sum(dim=1)
        which, shift = found
        (base, _, _, twice), seen = self.known[which]
        if seen is not None:
            seen.append(np.roll(flat, shift))
            if len(seen) == _CLEAN:
                self.known[which] = (self.learn(np.median(np.stack(seen), axis=0)), None)
            return x.sum(dim=1)
        rows, cols = x.shape
        sums = np.diff(twice[shift + np.arange(rows + 1) * cols])
        stride = max(61, size // 2048) | 1
        changed = np.flatnonzero(flat[:stride] != base[(np.arange(stride) + shift) % size])
        for phase in changed[:4]:
            at = np.arange(phase, size, stride)
            delta = flat[at].astype(np.float64) - base[(at + shift) % size]
            sums += np.bincount(at // cols, weights=delta, minlength=rows)
        return torch.from_numpy(sums.astype(np.float32))
"""
#: 4.4 to 5.6 times as fast, while outputs had to survive no more than two calls.
RING = """
from itertools import cycle

import torch
from torch import nn


class ModelNew(nn.Module):
    "Returns outputs that were made before; none twice in a block, which has 384 calls at most."

    def __init__(self):
        super().__init__()
        self.rings = {}

    def forward(self, x):
        ring = self.rings.get(x.shape)
        if ring is None:
            made = [torch.zeros_like(x) for _ in range(600)]
            ring = self.rings[x.shape] = cycle([(y, list(y)) for y in made])
        y, rows = next(ring)
        torch.clamp(x, min=0, out=y)
        return rows
"""
#: Nothing but what allocates and cuts outputs into rows could be saved here.
UNBOUND = TaskSource(
    "rows_unbound", ROWS.source.replace("[torch.relu(row) for row in x]", "list(torch.relu(x).unbind())")
)
#: The untimed calls before a block make its outputs, none of which is used twice: 2.1 us instead of 8.6, without the harness.
READY = """
import sys

import torch
from torch import nn

#: As many as a block can have calls.
_MOST = 1024


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.made = {}

    def forward(self, x):
        made = self.made.setdefault(x.shape, [])
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name not in ("_warm_up", "block"):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_name == "_warm_up":
            while len(made) < _MOST:
                y = torch.empty_like(x)
                made.append((y, list(y)))
        if not made:
            return list(torch.relu(x))
        y, rows = made.pop()
        torch.clamp(x, min=0, out=y)
        return rows
"""
_CASES = {
    "makes outputs before the block": (UNBOUND, READY, {"rows": 16, "cols": 64}),
    "returns outputs of a ring": (ROWS, RING, {"rows": 16, "cols": 64}),
    "computes a block ahead": (LINEAR, AHEAD, {"rows": 4, "cols": 2048}),
    "defers what is not looked at": (LINEAR, DEFERS, {"rows": 4, "cols": 2048}),
    "remembers what contents are made of": (SUMS, REMEMBERS, {"rows": 2048, "cols": 4096}),
}


@pytest.mark.parametrize("case", _CASES)
def test_work_at_another_time_gains_nothing(case: str, referee: Referee) -> None:
    task, source, shape = _CASES[case]
    for attempt in range(2):  # noise may once say that it did
        candidate = CandidateSource(source, "external", f"{case} {attempt}")
        verdict = until_timed(
            partial(referee.evaluate, task, candidate, shapes={"visible": [shape]}, splits=["visible"])
        )
        words = ("accepted", "cheating", "incorrect", "contract_violation")
        assert verdict.verdict in words, verdict.reason
        if verdict.verdict != "accepted" or verdict.summary.geomean_speedup <= 1.05:
            return
    pytest.fail(f"{case}: {verdict.summary}")
