"""A chain that goes on from a state of its own at one place of a block is seen, whichever call is drawn."""

from __future__ import annotations

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.outcome import Rejected
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.checked import checked
from tests.evaluator.test_fresh_processes import TASK as WIDER
from tests.evaluator.test_fresh_processes import candidate

#: Outputs of 6 KiB: there is room for those of all twelve calls, so which links are drawn leaves nothing to chance.
TASK = TaskSource(WIDER.name, WIDER.source.replace("randn(64, 96)", "randn(16, 96)"))
_CALLS, _BLOCKS = 12, 3
#: In the frame of the loop lie the states after each call; those before this one are written already.
BREAKS = CandidateSource(
    """
import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        frame = sys._getframe(1)
        while frame is not None and not {"states", "outputs"} <= frame.f_locals.keys():
            frame = frame.f_back
        if frame is not None:
            states = frame.f_locals["states"]
            done = sum(row is not None for row in frame.f_locals["outputs"])
            if len(states) > 8 and done == len(states) // 2:
                states[done - 1] ^= 1 << 40
        return torch.relu(x * 1.5)
""",
    "external",
    "goes on from another state",
)


def test_a_chain_that_is_broken_once_is_seen_in_every_block(core: RefereeCore) -> None:
    session = core.session(TASK)
    shape = session.open({})
    for _ in range(_BLOCKS):
        with checked(session, shape, BREAKS, calls=4) as checker, pytest.raises(Rejected) as rejected:
            checker.run(_CALLS)
        assert [rejected.value.finding.rule] == ["broken_chain"]


def test_what_everybody_returns_follows(core: RefereeCore) -> None:
    session = core.session(TASK)
    shape = session.open({})
    with checked(session, shape, candidate("return torch.relu(x * 1.5)"), calls=4) as checker:
        for calls in (1, 4, _CALLS, 100):
            checker.side.ready(60.0, warm="eager", poison=0, calls=calls)
            checker.side.fill(calls)
            block = checker.side.block(calls, 60.0, chained=True)
            assert checker.side.broken_links(block) == 0
