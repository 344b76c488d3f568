"""A GPU's clock beside the times: whether it changed, and ratios in cycles instead of microseconds.

Under a power cap the clock follows what runs. A side that draws less power then runs at a higher clock, and the other way
round; and where the clock falls for another reason, whoever had its turn first looks faster. Times do not tell these from a
better kernel. In cycles (time x MHz of each side's own blocks) they cancel, so a decision must hold in both.

NVML's figure is the referee's own reading, which nothing in a candidate's process can forge; it follows the clock within
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

#: A reading that takes longer is not made after every block as long as nothing holds the clock back.
_CHEAP_US = 50.0
_ENOUGH = 3


@dataclass(frozen=True)
class QuadClock:
    """The clock during a quad.

    Attributes:
        moved: it was another one at the end than at the start, so that times are not comparable.
        log_ratio: of the baseline's clock over the candidate's, each the mean over its own blocks; 0 where they were not read.
    """

    moved: bool = False
    log_ratio: float = 0.0


class Clocks:
    """Readings of one measurement, made while both sides are stopped.

    Args:
        read: the clock now, None where there is none to be read.
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
        """A quad has ended; what its clock was."""
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
        """Whether it was not the same all the time, or something held it back."""
        return len({clock.sm_mhz for clock in self.seen}) > 1 or any(clock.reasons for clock in self.seen)

    def facts(self) -> dict[str, Any] | None:
        """Lowest and highest in MHz, and why it was held back; None where there is none."""
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
        # A clock of 0 is one that could not be read.
        if clock is None or clock.sm_mhz <= 0:
            return None
        self.seen.append(clock)
        return clock


def in_cycles(log_ratios: Sequence[float]) -> dict[str, Any]:
    """``shapes[].cycles`` of the verdict: the speedup in cycles and its interval."""
    speedup, low, high = median_interval(log_ratios)
    return {"speedup": speedup, "ci95": [low, high]}


def confirmed(decision: str, cycles: dict[str, Any] | None) -> str:
    """A decision made from times, as it stands when cycles have been asked, too.

    What is faster or slower by the clock on the wall and not in cycles is ``undecided``.
    """
    if cycles is None or decision not in ("faster", "slower"):
        return decision
    return decision if decide(*cycles["ci95"]) == decision else "undecided"
