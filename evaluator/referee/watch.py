"""Watches a GPU for work that goes on while everybody is stopped: queued kernels left behind, or somebody else's program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.errors import RoleFailure
from evaluator.referee.correctness import Rejected
from evaluator.roles.process import RoleProcess
from evaluator.verdict import Finding

if TYPE_CHECKING:
    from evaluator.referee.keeper import Keeper

#: So many doubtful looks, and so many times their share off the candidate's turn, are no accident.
_MANY, _TIMES = 5, 3


class Watch:
    """Looks at the device between the turns of one measurement.

    Args:
        keeper: the referee's own kernels; None where there is no GPU and nothing is looked for.
        candidate: whose work must have ended when its turn has.
    """

    def __init__(self, keeper: Keeper | None, candidate: RoleProcess) -> None:
        self._keeper = keeper
        self._candidate = candidate
        self._looks = {True: 0, False: 0}
        self._doubtful = {True: 0, False: 0}

    def before(self, *, candidate: bool) -> None:
        """Contents have been written and the clock has not started (or a baseline's has stopped)."""
        self._look("before its turn" if candidate else "during a baseline's turn", candidate)

    def after(self) -> None:
        """The candidate's clock has stopped."""
        self._look("after its turn", candidate=True)

    def _look(self, when: str, candidate: bool) -> None:
        if self._keeper is None:
            return
        seen = self._keeper.look()
        self._looks[candidate] += 1
        self._doubtful[candidate] += seen != "quiet"
        if seen == "busy":
            self._blame(when)
        mine, others = (self._doubtful[whose] / max(self._looks[whose], 1) for whose in (True, False))
        if self._doubtful[True] >= _MANY and mine > _TIMES * max(others, 1 / max(self._looks[False], 1)):
            raise _rejected("again and again just before or after its turn")

    def _blame(self, when: str) -> None:
        """Somebody computes although all are stopped: it is the candidate's work if it ends with the candidate.

        Raises:
            Rejected: it does.
            RoleFailure: it does not; then nothing can be timed here now.
        """
        assert self._keeper is not None
        self._candidate.kill()
        for _ in range(50):
            if self._keeper.look() != "busy":
                raise _rejected(when)
        raise RoleFailure("not_judged", "another program computes on this GPU: nothing can be timed now")


def _rejected(when: str) -> Rejected:
    sentence = f"{when} its kernels were still running on the GPU although its process was stopped"
    return Rejected("cheating", sentence, (Finding("work_off_turn", "cheat", sentence),))
