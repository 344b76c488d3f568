"""Watches a GPU for work that goes on while everybody is stopped: queued kernels left behind, or somebody else's program."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from evaluator.errors import RoleFailure
from evaluator.referee.correctness import Rejected
from evaluator.roles.process import RoleProcess
from evaluator.verdict import Finding

if TYPE_CHECKING:
    from evaluator.referee.keeper import Keeper
    from evaluator.referee.side import Side

#: From so many looks after either side's blocks on, medians are compared.
_ENOUGH = 8
#: Work that ends within so long may be anybody's; of such, so many looks, and so many times as many as off the candidate's
#: turn, are the candidate's. So many altogether, and nothing can be timed here.
_PATIENCE_S, _MANY, _TIMES, _TOO_MANY = 0.5, 3, 3, 10


class Watch:
    """Looks at the device between the turns of one measurement.

    Args:
        keeper: the referee's own kernels; None where there is no GPU and nothing is looked for.
        candidate: whose work must have ended when its turn has.
    """

    def __init__(self, keeper: Keeper | None, candidate: RoleProcess) -> None:
        self._keeper = keeper
        self._candidate = candidate
        self._after_us: dict[bool, list[float]] = {True: [], False: []}
        self._busy = {True: 0, False: 0}

    def before(self, side: Side) -> None:
        """Contents have been written, and ``side`` is about to start its clock."""
        if side.look is not None and side.look.busy:
            mine = side.process is self._candidate
            self._wait("before its turn" if mine else "before a baseline's turn", mine)

    def after(self, side: Side) -> None:
        """The clock of ``side`` has just stopped."""
        if self._keeper is None:
            return
        look = self._keeper.look()
        mine = side.process is self._candidate
        if look.busy:
            self._wait("after its turn" if mine else "during a baseline's turn", mine)
        self._after_us[mine].append(look.first_us)

    @property
    def late_ns(self) -> int:
        """How much later the device is free after the candidate's blocks than after the baseline's (medians).

        That is time that its blocks took, too: who leaves work queued when it says that it is done gains nothing.
        """
        if min(map(len, self._after_us.values())) < _ENOUGH:
            return 0
        mine_us, others_us = (statistics.median(self._after_us[whose]) for whose in (True, False))
        return max(0, round((mine_us - others_us) * 1e3))

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
        raise RoleFailure("not_judged", "another program computes on this GPU: nothing can be timed now")


def _rejected(when: str) -> Rejected:
    sentence = f"{when} its kernels were still running on the GPU although its process was stopped"
    return Rejected("cheating", sentence, (Finding("work_off_turn", "cheat", sentence),))
