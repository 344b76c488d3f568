"""A GPU's clock during measurements: whether it changed, and ratios in cycles instead of microseconds.

Under a power cap, the clock depends on the load. A side that draws less power then runs at a higher clock, and the
reverse. If the clock falls for another reason, the side that ran first looks faster. Times cannot distinguish this
from a better kernel. In cycles (time x MHz of each side's own blocks) it cancels, so a decision must hold in both.

NVML's figure is read by the referee and cannot be forged by a candidate's process. It follows the clock within
some milliseconds, so differences between short blocks come out too small rather than too large.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.devices.base import Clock
from evaluator.timing.statistics import decide, median_interval

#: A slower reading is not made after every block as long as there is no throttling.
_CHEAP_US = 50.0
_ENOUGH = 3


@dataclass(frozen=True)
class QuadClock:
    """The clock during a quad.

    Attributes:
        moved: it differed between start and end, so times are not comparable.
        log_ratio: of the baseline's clock over the candidate's, each the mean over its own blocks; 0 if not read.
    """

    moved: bool = False
    log_ratio: float = 0.0


class Clocks:
    """Readings of one measurement, made while both sides are stopped.

    Args:
        read: the clock now, None if it cannot be read.
    """

    def __init__(self, read: Callable[[], Clock | None]) -> None:
        self._read = read
        self.seen: list[Clock] = []
        self._took_us: list[float] = []
        self._blocks: dict[bool, list[int]] = {True: [], False: []}
        self._each_block = True
        self._last = self._now()

    def after_block(self, *, mine: bool) -> None:
        """A block of the candidate (``mine``) or of a baseline has just ended."""
        if self._last is not None and self._each_block:
            clock = self._now()
            if clock is not None:
                self._blocks[mine].append(clock.sm_mhz)

    def quad(self) -> QuadClock:
        """A quad has ended. Returns its clock."""
        if self._last is None:
            return QuadClock()
        before, now = self._last, self._now() or self._last
        self._last = now
        mine, theirs = self._blocks[True], self._blocks[False]
        ratio = 0.0
        if mine and theirs:
            ratio = math.log(statistics.fmean(theirs) / statistics.fmean(mine))
        self._blocks = {True: [], False: []}
        cheap = len(self._took_us) < _ENOUGH or statistics.median(self._took_us) <= _CHEAP_US
        self._each_block = cheap or bool(now.reasons) or now.sm_mhz != before.sm_mhz
        return QuadClock(now.moved_from(before), ratio)

    @property
    def varied(self) -> bool:
        """Whether it changed, or was throttled."""
        return len({clock.sm_mhz for clock in self.seen}) > 1 or any(clock.reasons for clock in self.seen)

    def facts(self) -> dict[str, Any] | None:
        """Lowest and highest in MHz, and why it was throttled; None without a reading."""
        if not self.seen:
            return None
        return {
            "sm_mhz": [min(clock.sm_mhz for clock in self.seen), max(clock.sm_mhz for clock in self.seen)],
            "reasons": sorted({reason for clock in self.seen for reason in clock.reasons}),
        }

    def _now(self) -> Clock | None:
        started = time.perf_counter_ns()
        clock = self._read()
        self._took_us.append((time.perf_counter_ns() - started) / 1e3)
        # A clock of 0 could not be read.
        if clock is None or clock.sm_mhz <= 0:
            return None
        self.seen.append(clock)
        return clock


def in_cycles(log_ratios: Sequence[float]) -> dict[str, Any]:
    """``shapes[].cycles`` of the verdict: the speedup in cycles and its interval."""
    speedup, low, high = median_interval(log_ratios)
    return {"speedup": speedup, "ci95": [low, high]}


def confirmed(decision: str, cycles: dict[str, Any] | None) -> str:
    """A decision made from times, after a check in cycles.

    A result that is faster or slower in time but not in cycles is ``undecided``.
    """
    if cycles is None or decision not in ("faster", "slower"):
        return decision
    return decision if decide(*cycles["ci95"]) == decision else "undecided"
