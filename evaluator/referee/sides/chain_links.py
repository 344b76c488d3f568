"""Checks the chain of a block at more places than the drawn call.

Checking one call and its links finds a candidate that computes something wrong. It rarely finds one that breaks
the chain at a single place. The calls behind that place then do not depend on those before it, so both parts can
run at the same time, and with one place among several hundred most blocks would pass. States can be overwritten,
because they are in the process's own memory.

On a CPU some links are checked, which takes 0.2 ms. On a GPU one kernel checks all of them.
"""

from __future__ import annotations

import random

from evaluator.referee.sides.block import Block
from evaluator.referee.sides.device_side import DeviceSide
from evaluator.referee.sides.side import Side

#: Most links, and most output bytes together: whole outputs are copied, although a digest needs 256 words of large
#: ones.
_MOST, _MOST_BYTES = 16, 256 << 10


def broken_links(side: Side, block: Block) -> int:
    """After which calls of a block the claimed state does not follow from their outputs.

    Checks all, or some drawn now.
    """
    if isinstance(side, DeviceSide):
        return side.broken_links(block)
    each_bytes = sum(meta.span_bytes for meta in block.report.metas)
    count = min(_MOST, block.calls, _MOST_BYTES // max(each_bytes, 1))
    states = [block.first_state, *block.report.states]
    drawn = random.SystemRandom().sample(range(block.calls), count)
    return sum(not side.follows(side.outputs(block, at), states[at], states[at + 1]) for at in drawn)
