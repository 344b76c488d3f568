"""Whether the chain of a block goes on from call to call, at more places than the drawn one.

That of a block one call and the links around it are looked at finds whoever computes something wrong. It hardly finds who goes on from
a state of its own at a single place: then the calls behind that place do not depend on those before it, both parts can be computed
at a time, and with one place among some hundreds most blocks pass. States can be written over: they lie in the process's own memory.

Here some links are looked at, which takes 0.2 ms; on a GPU all of them are, by one kernel.
"""

from __future__ import annotations

import random

from evaluator.referee.sides.block import Block
from evaluator.referee.sides.device_side import DeviceSide
from evaluator.referee.sides.side import Side

#: So many, and outputs of so many bytes together: whole outputs are copied, although a digest needs 256 words of large ones.
_MOST, _MOST_BYTES = 16, 256 << 10


def broken_links(side: Side, block: Block) -> int:
    """After how many of a block's calls the claimed state does not follow from what they returned: of all, or of some drawn now."""
    if isinstance(side, DeviceSide):
        return side.broken_links(block)
    each_bytes = sum(meta.span_bytes for meta in block.report.metas)
    count = min(_MOST, block.calls, _MOST_BYTES // max(each_bytes, 1))
    states = [block.first_state, *block.report.states]
    drawn = random.SystemRandom().sample(range(block.calls), count)
    return sum(not side.follows(side.outputs(block, at), states[at], states[at + 1]) for at in drawn)
