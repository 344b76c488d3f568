"""A logarithmic axis for ratios, with labels that cannot touch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

TICK_CANDIDATES = (
    *(
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.33,
        0.5,
        0.67,
        0.8,
        0.9,
        1.0,
        1.1,
        1.25,
        1.5,
        1.75,
        2.0,
        2.5,
        3.0,
        4.0,
        5.0,
    ),
    *(6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
)
# When room is short these are kept first.
FAMILIAR = (0.5, 2.0, 4.0, 10.0, 0.1)
# Ends of the widest domain. What lies beyond is held at the edge and drawn without a cap.
SMALLEST, LARGEST = 1 / 32, 1024.0


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis, so that 2x and 0.5x lie equally far from the 1.0x line.

    Attributes:
        low: Lower end of the domain, a ratio.
        high: Upper end of the domain.
        start_px: Where the lower end is drawn; larger than `end_px` for an axis that points up.
        end_px: Where the upper end is drawn.
    """

    low: float
    high: float
    start_px: float
    end_px: float

    @classmethod
    def around(cls, values: Iterable[float], start_px: float, end_px: float) -> LogAxis:
        """An axis that holds the values and the 1.0x line with some air."""
        positive = [value for value in values if value > 0]
        low = max(min([*positive, 0.92]), SMALLEST)
        high = min(max([*positive, 1.25]), LARGEST)
        air = (high / low) ** 0.05
        return cls(low / air, high * air, start_px, end_px)

    def at(self, value: float) -> float:
        """Position in px; values outside the domain are held at its ends."""
        held = min(max(value, self.low), self.high)
        share = math.log(held / self.low) / math.log(self.high / self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, gap_px: float) -> list[Tick]:
        """Round ratios at least `gap_px` apart; 1.0 is always among them."""
        inside = [tick for tick in TICK_CANDIDATES if self.low <= tick <= self.high]
        inside.sort(key=lambda tick: (tick != 1.0, tick not in FAMILIAR, abs(math.log(tick))))
        kept: list[float] = []
        for tick in inside:
            if all(abs(self.at(tick) - self.at(other)) >= gap_px for other in kept):
                kept.append(tick)
        return [
            Tick(self.at(tick), "1.0×" if tick == 1.0 else f"{tick:g}×", tick == 1.0) for tick in sorted(kept)
        ]


@dataclass(frozen=True)
class Tick:
    """One labelled line of an axis; `is_one` marks the line where nothing is gained or lost."""

    px: float
    text: str
    is_one: bool
