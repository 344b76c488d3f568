"""Watches a GPU for work that goes on while everybody is stopped: queued kernels left behind, or somebody else's program."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from evaluator.errors import RoleFailure
from evaluator.referee.correctness import Rejected
from evaluator.roles.process import RoleProcess
from evaluator.verdict import Finding

if TYPE_CHECKING:
    from evaluator.referee.keeper import Keeper
    from evaluator.referee.side import Side

#: From so many looks after either side's blocks on, medians are compared; a candidate's may be later by so much.
_ENOUGH, _LATER_US = 8, 100.0


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

    def before(self, side: Side) -> None:
        """Contents have been written, and ``side`` is about to start its clock."""
        if side.look is not None and side.look.busy:
            self._blame("before its turn" if side.process is self._candidate else "before a baseline's turn")

    def after(self, side: Side) -> None:
        """The clock of ``side`` has just stopped."""
        if self._keeper is None:
            return
        look = self._keeper.look()
        candidate = side.process is self._candidate
        if look.busy:
            self._blame("after its turn" if candidate else "during a baseline's turn")
        self._after_us[candidate].append(look.first_us)
        if min(map(len, self._after_us.values())) < _ENOUGH:
            return
        mine_us, others_us = (statistics.median(self._after_us[whose]) for whose in (True, False))
        if mine_us > others_us + _LATER_US:
            raise _rejected("after its turn, again and again,")

    def _blame(self, when: str) -> None:
        """Somebody computes although all are stopped: it is the candidate's work if it ends with the candidate.

        Raises:
            Rejected: it does.
            RoleFailure: it does not; then nothing can be timed here now.
        """
        assert self._keeper is not None
        self._candidate.kill()
        for _ in range(50):
            if not self._keeper.look().busy:
                raise _rejected(when)
        raise RoleFailure("not_judged", "another program computes on this GPU: nothing can be timed now")


def _rejected(when: str) -> Rejected:
    sentence = f"{when} its kernels were still running on the GPU although its process was stopped"
    return Rejected("cheating", sentence, (Finding("work_off_turn", "cheat", sentence),))
