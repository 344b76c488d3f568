"""Watches for what a candidate does beside its clock.

On a GPU work goes on while everybody is stopped: queued kernels left behind, or somebody else's program. On any device outputs could be
made ready in the calls before a block that no clock looks at.
"""

from __future__ import annotations

import math
import statistics
import time

from evaluator.errors import RoleFailure
from evaluator.referee.memory.device_work import Keeper
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.side import Side
from evaluator.roles.process import RoleProcess
from evaluator.verdict import Finding

#: From so many looks after either side's blocks on, medians are compared.
_ENOUGH = 8
#: Differences of medians of so many standard errors are more than chance.
_CHANCES = 3.0
#: To get ready takes some calls that no clock looks at, for which the process stops after so many or after so long.
_WARM_CALLS, _WARM_US = 16, 500.0
#: What it takes beyond them is charged from this share of a block on (CPU, GPU). First calls are slower than others, those that the
#: host waits for are slower than those that follow each other, and that may be so by more for one side than for the other.
_LEAST_UNREADY = (0.06, 0.15)
#: Work that ends within so long may be anybody's; of such, so many looks, and so many times as many as off the candidate's
#: turn, are the candidate's. So many altogether, and nothing can be timed here.
_PATIENCE_S, _MANY, _TIMES, _TOO_MANY = 0.5, 3, 3, 10


class Watch:
    """Looks at the device between the turns of one measurement, and at how long each side takes to get ready.

    Args:
        keeper: the referee's own kernels; None where there is no GPU to be looked at.
        candidate: whose work must have ended when its turn has.
    """

    def __init__(self, keeper: Keeper | None, candidate: RoleProcess) -> None:
        self._keeper = keeper
        self._candidate = candidate
        #: How long our own little work took, of the candidate's (True) and of baselines.
        self._before_us: dict[bool, list[float]] = {True: [], False: []}
        self._after_us: dict[bool, list[float]] = {True: [], False: []}
        #: How long each side took to get ready beyond what its untimed calls should take, and how long its blocks were.
        self._ready_us: dict[bool, list[float]] = {True: [], False: []}
        self._block_us: list[float] = []
        self._each_us: list[float] = []
        self._busy = {True: 0, False: 0}

    def before(self, side: Side) -> None:
        """Contents have been written, and ``side`` is about to start its clock."""
        if side.look is None:
            return
        mine = side.process is self._candidate
        if side.look.busy:
            self._wait("before its turn" if mine else "before a baseline's turn", mine)
        self._before_us[mine].append(side.look.first_us)

    def after(self, side: Side) -> None:
        """The clock of ``side`` has just stopped."""
        if self._keeper is None:
            return
        look = self._keeper.look()
        mine = side.process is self._candidate
        if look.busy:
            self._wait("after its turn" if mine else "during a baseline's turn", mine)
        self._after_us[mine].append(look.first_us)

    def got_ready(self, side: Side, block: Block) -> None:
        """``side`` got ready for this block, and has run it: outputs, or anything else of a block, may have been made before it."""
        each_us = block.elapsed_ns / block.calls / 1e3
        mine = side.process is self._candidate
        warm_us = min(_WARM_CALLS * each_us, max(_WARM_US, each_us))
        self._ready_us[mine].append(side.ready_ns / 1e3 - warm_us)
        if mine:
            self._block_us.append(each_us * block.calls)
            self._each_us.append(each_us)

    def _unready_us(self) -> float:
        """By how much longer the candidate took to get ready than baselines did, where that is a good part of a block."""
        more_us = _held_up_us(self._ready_us)
        if not more_us:
            return 0.0
        share = _LEAST_UNREADY[self._keeper is not None]
        # Of long calls only one is made before a block, and a first one may take half as long again.
        least_us = max(share * statistics.median(self._block_us), statistics.median(self._each_us) / 2)
        return more_us if more_us > least_us else 0.0

    @property
    def charge_ns(self) -> int:
        """What the candidate's blocks took beyond their clocks, by how long our own work is held up beside it, and to get ready.

        Work that is still queued when it says that it is done holds up what we do after its turn. Work that waits for contents and
        begins before its clock does holds up what we do between writing them and starting it. Each is the difference of medians
        to the baseline's, where that is more than chance.
        """
        held_up_us = _held_up_us(self._before_us) + _held_up_us(self._after_us)
        return round((held_up_us + self._unready_us()) * 1e3)

    def _wait(self, when: str, mine: bool) -> None:
        """Waits for work that goes on although all are stopped. What does not end in time is the candidate's if it ends with it.

        Raises:
            Rejected: it does, or it was there again and again on the candidate's turn alone.
            RoleFailure: it does not, or there is too much of it; then nothing can be timed here now.
        """
        assert self._keeper is not None
        self._busy[mine] += 1
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if not self._keeper.look().busy:
                if self._busy[True] >= _MANY and self._busy[True] > _TIMES * self._busy[False]:
                    raise _rejected(f"{when}, again and again,")
                if sum(self._busy.values()) >= _TOO_MANY:
                    break
                return
        else:
            self._candidate.kill()
            for _ in range(50):
                if not self._keeper.look().busy:
                    raise _rejected(when)
        raise RoleFailure(
            "not_judged",
            "another program computes on this GPU: nothing can be timed now; try again when it has ended",
        )


def _held_up_us(seen_us: dict[bool, list[float]]) -> float:
    """By how much longer the candidate held us up than baselines did; 0 where that may be chance.

    How far baselines differ among themselves says what chance does: in that the candidate has no say.
    """
    mine_us, others_us = seen_us[True], seen_us[False]
    if min(len(mine_us), len(others_us)) < _ENOUGH:
        return 0.0
    middle_us = statistics.median(others_us)
    spread_us = 1.4826 * statistics.median(abs(each_us - middle_us) for each_us in others_us)
    chance_us = 1.2533 * spread_us * math.sqrt(1 / len(mine_us) + 1 / len(others_us))
    more_us = statistics.median(mine_us) - middle_us
    return more_us if more_us > _CHANCES * chance_us else 0.0


def _rejected(when: str) -> Rejected:
    sentence = f"{when} its kernels were still running on the GPU although its process was stopped"
    return Rejected("cheating", sentence, (Finding("work_off_turn", "cheat", sentence),))
