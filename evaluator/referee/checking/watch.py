"""Detects work that a candidate does outside the timed part.

On a GPU, work may continue while every process is stopped: kernels left in a queue, or another program. On any
device, outputs could be prepared in the untimed calls before a block.
"""

from __future__ import annotations

import math
import statistics
import time

from evaluator.errors import Unsteady
from evaluator.referee.memory.device_work import Keeper
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.side import Side
from evaluator.roles.process import RoleProcess

WORK_OFF_TURN = "work_off_turn"
#: Medians are compared once there are this many samples after each side's blocks.
_ENOUGH = 8
#: A difference of medians beyond this many standard errors is not chance.
_CHANCES = 3.0
#: Preparing outputs needs untimed calls. The process is stopped after this many calls or this much time.
_WARM_CALLS, _WARM_US = 16, 500.0
#: Extra preparation time is charged from this share of a block on (CPU, GPU). First calls are slower than later
#: ones, and calls that the host waits for are slower than consecutive ones; the effect may differ between the
#: sides.
_LEAST_UNREADY = (0.06, 0.15)
#: Work that ends within the first limit may come from any program. It is attributed to the candidate where so many
#: sightings on its turns are less likely than this by chance. After the last number of sightings in total, nothing can
#: be timed here.
_PATIENCE_S, _CHANCE, _TOO_MANY = 0.5, 0.01, 10


class Watch:
    """Watches the device between the turns of one measurement, and how long each side takes to get ready.

    Args:
        keeper: the referee's own kernels; None without a GPU.
        candidate: its work must have ended when its turn ends.
    """

    def __init__(self, keeper: Keeper | None, candidate: RoleProcess) -> None:
        self._keeper = keeper
        self._candidate = candidate
        #: Duration of the referee's small kernel after blocks of the candidate (True) and of baselines.
        self._before_us: dict[bool, list[float]] = {True: [], False: []}
        self._after_us: dict[bool, list[float]] = {True: [], False: []}
        #: How long each side took to get ready beyond the expected time of its untimed calls, and how long its
        #: blocks were.
        self._ready_us: dict[bool, list[float]] = {True: [], False: []}
        self._block_us: list[float] = []
        self._each_us: list[float] = []
        #: Since the first baseline's turn; before, the candidate warms up alone.
        self._turns = {True: 0, False: 0}
        self._busy = {True: 0, False: 0}
        self._late_ns = 0

    def before(self, side: Side) -> None:
        """Contents are written and ``side`` is about to start its clock."""
        if side.look is None:
            return
        mine = self._turn_of(side)
        if side.look.busy:
            began_ns = time.perf_counter_ns() - round(side.look.first_us * 1e3)
            self._wait("before its turn" if mine else "before a baseline's turn", mine, began_ns)
        self._before_us[mine].append(side.look.first_us)

    def after(self, side: Side) -> None:
        """The clock of ``side`` has just stopped."""
        if self._keeper is None:
            return
        began_ns = time.perf_counter_ns()
        look = self._keeper.look()
        mine = self._turn_of(side)
        if look.busy:
            self._wait("after its turn" if mine else "during a baseline's turn", mine, began_ns)
        self._after_us[mine].append(look.first_us)

    def late_ns(self) -> int:
        """Nanoseconds that the referee waited in the candidate's turns since the last call: its blocks bear them.

        Whose work it was is not known; a candidate that leaves some gains nothing, whether or not it is convicted. The
        waits in baselines' turns are not added to theirs: a candidate could have its work begin there.
        """
        late_ns, self._late_ns = self._late_ns, 0
        return late_ns

    def got_ready(self, side: Side, block: Block) -> None:
        """``side`` got ready for this block and has run it.

        Outputs may have been prepared before the clock started.
        """
        each_us = block.elapsed_ns / block.calls / 1e3
        mine = side.process is self._candidate
        warm_us = min(_WARM_CALLS * each_us, max(_WARM_US, each_us))
        self._ready_us[mine].append(side.ready_ns / 1e3 - warm_us)
        if mine:
            self._block_us.append(each_us * block.calls)
            self._each_us.append(each_us)

    def _unready_us(self) -> float:
        """How much longer the candidate took to get ready than baselines, if that is a significant part of a
        block.
        """
        more_us = _held_up_us(self._ready_us)
        if not more_us:
            return 0.0
        share = _LEAST_UNREADY[self._keeper is not None]
        # With long calls, only one is made before a block, and a first call may take half as long again.
        least_us = max(share * statistics.median(self._block_us), statistics.median(self._each_us) / 2)
        return more_us if more_us > least_us else 0.0

    @property
    def charge_ns(self) -> int:
        """Nanoseconds to add to the candidate's blocks, for time spent outside their clocks.

        Work still queued after the candidate reports completion delays the referee's work after its turn. Work
        that waits for contents and starts early delays the referee's work between writing contents and starting
        the clock. Each charge is the difference of medians to the baseline's, if it exceeds chance. Extra
        preparation time is added too.
        """
        held_up_us = _held_up_us(self._before_us) + _held_up_us(self._after_us)
        return round((held_up_us + self._unready_us()) * 1e3)

    def _turn_of(self, side: Side) -> bool:
        """Counts the turn; returns whether it is the candidate's."""
        mine = side.process is self._candidate
        self._turns[mine] += not mine or self._turns[False] > 0
        return mine

    def _wait(self, when: str, mine: bool, began_ns: int) -> None:
        """Waits for work that continues although every process is stopped.

        If it ends when the candidate does, it is the candidate's.

        Raises:
            Rejected: it ended with the candidate, or was seen on the candidate's turns more often than chance explains.
            Unsteady: it goes on without the candidate, or there is too much of it; nothing can be timed here now.
        """
        assert self._keeper is not None
        self._busy[mine] += self._turns[False] > 0
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if not self._keeper.look().busy:
                if mine and self._chance() < _CHANCE:
                    raise _rejected(f"{when}, again and again,")
                if sum(self._busy.values()) >= _TOO_MANY:
                    break
                if mine:
                    self._late_ns += time.perf_counter_ns() - began_ns
                return
        else:
            self._candidate.kill()
            for _ in range(50):
                if not self._keeper.look().busy:
                    raise _rejected(when)
        raise Unsteady(
            "not_judged",
            "another program computes on this GPU: nothing can be timed now; try again when it has ended",
        )

    def _chance(self) -> float:
        """How likely so many of the sightings, or more, fall on the candidate's turns if they fall on any."""
        share = self._turns[True] / max(1, sum(self._turns.values()))
        seen = sum(self._busy.values())
        return sum(
            math.comb(seen, mine) * share**mine * (1 - share) ** (seen - mine)
            for mine in range(self._busy[True], seen + 1)
        )


def _held_up_us(seen_us: dict[bool, list[float]]) -> float:
    """How much longer the candidate delayed the referee than baselines did; 0 if that may be chance.

    The spread among baselines defines chance, because the candidate cannot influence it.
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
    sentence = f"{when} its kernels were still running on the GPU while its process was stopped"
    return Rejected("cheating", WORK_OFF_TURN, sentence)
