"""Successive halving: autotunes a kernel's constants without spending model tokens.

All settings are timed briefly, the better ones longer, and so on; only a few are timed at full length. With the default
rungs, 128 settings cost a seventh of timing all of them at full length, and at most a fifth.

    rung            1      2      3      4
    settings      128     32      8      6     a quarter advances, at least `LAST`
    length       1/32    1/8    1/2      1     of the full length
    cost            4      4      4      6     full lengths, of 128; up to half as many again with ties

A setting within `TIE` of the last one that advances also advances, because noise must not decide at short lengths. If a
timing is long enough, it is split into turns: in each turn every setting runs for a part of the length, and settings are
compared within the turn, so interference from other processes slows all of them equally.

This file imports only Python's standard library, because its text is also sent to the sandbox, next to
`sandboxed/tune_program.py`, which does the timing.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Setting = Mapping[str, Any]

#: (share of the full length, share of the settings that advances to the next rung).
RUNGS: tuple[tuple[float, float], ...] = ((1 / 32, 1 / 4), (1 / 8, 1 / 4), (1 / 2, 1 / 4), (1.0, 0.0))
LAST = 6
TIE = 0.02
#: Rungs of at least this length are timed in `TURNS` turns.
_TURNS_FROM, TURNS = 1 / 8, 8
#: Maximum number of ties that advance, as a share of a rung's places.
_MOST_TIES = 0.5

#: Times a setting for a share of the full length: returns microseconds, or None if the setting does not work.
Objective = Callable[[Setting, float], float | None]


@dataclass(frozen=True)
class Trial:
    """One setting in one rung (from 0): the share of the full length it was timed for, and microseconds; None if it failed."""

    rung: int
    share: float
    setting: Setting
    elapsed_us: float | None


@dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Attributes:
        setting: the fastest in the longest rung that was timed; None if none works.
        elapsed_us: its time.
        trials: all timings in order.
        cost: sum of their lengths, in full lengths.
    """

    setting: Setting | None
    elapsed_us: float | None
    trials: tuple[Trial, ...] = field(default=())

    @property
    def cost(self) -> float:
        """Sum of the lengths, in units of one timing at full length."""
        return sum(trial.share for trial in self.trials)


def halve(
    settings: Sequence[Setting],
    objective: Objective,
    rungs: Sequence[tuple[float, float]] = RUNGS,
    keep: Callable[[], bool] = lambda: True,
) -> Tuned:
    """Find the fastest setting.

    Args:
        settings: the settings to choose from; with only a few, the first rungs are skipped.
        objective: times one setting.
        rungs: lengths and shares; the last one is at full length.
        keep: called before each timing; once it returns False (a spent budget, a stopped job), tuning ends with the best so far.

    Returns:
        The fastest setting of the longest rung that timed anything.
    """
    left = [dict(setting) for setting in settings]
    trials: list[Trial] = []
    best: tuple[float, Setting] | None = None
    first = _first_rung(len(left), rungs)
    for number, (share, goes_on) in enumerate(rungs[first:], start=first):
        timed: list[tuple[float, int, dict[str, Any]]] = []
        for place, (elapsed_us, part) in enumerate(_times(left, objective, share, keep)):
            setting = left[place]
            trials.append(Trial(number, part, setting, elapsed_us))
            if elapsed_us is not None:
                timed.append((elapsed_us, place, dict(setting)))
        if not timed:
            break
        timed.sort(key=lambda one: one[:2])
        best = (timed[0][0], timed[0][2])
        if not keep():
            break
        left = _survivors(timed, goes_on)
    if best is None:
        return Tuned(None, None, tuple(trials))
    return Tuned(best[1], best[0], tuple(trials))


def _times(
    settings: Sequence[Setting], objective: Objective, share: float, keep: Callable[[], bool]
) -> list[tuple[float | None, float]]:
    """Time each setting: microseconds (None if it does not work) and the share timed; fewer rows if time runs out.

    Turns run the settings in different orders. Each time is divided by the median of its turn, and a setting's result is the
    median of these ratios over the turns, scaled back to microseconds.
    """
    turns = TURNS if share >= _TURNS_FROM and len(settings) > 1 else 1
    rows: list[list[float | None]] = [[] for _ in settings]
    for turn in range(turns):
        places = [(place + turn) % len(settings) for place in range(len(settings))]
        for place in places if turn % 2 == 0 else reversed(places):
            if None in rows[place]:
                continue
            if not keep():
                break
            elapsed_us = objective(settings[place], share / turns)
            works = elapsed_us is not None and math.isfinite(elapsed_us) and elapsed_us > 0
            rows[place].append(elapsed_us if works else None)
    begun = list(itertools.takewhile(bool, rows))
    works_us = [[time for time in row if time is not None] for row in begun if None not in row]
    # Ignore a turn that was cut short: it did not time all settings.
    whole = max(min(map(len, works_us), default=1), 1)
    medians_us = [statistics.median(row[turn] for row in works_us) for turn in range(whole) if works_us]
    told: list[tuple[float | None, float]] = []
    for row in begun:
        elapsed_us = None
        if None not in row:
            relative = statistics.median(
                time / middle for time, middle in zip(row[:whole], medians_us, strict=True) if time
            )
            elapsed_us = relative * statistics.median(medians_us) if turns > 1 else row[0]
        told.append((elapsed_us, share * len(row) / turns))
    return told


def _first_rung(count: int, rungs: Sequence[tuple[float, float]]) -> int:
    """The first rung that eliminates a setting; rungs before it would let all of them pass."""
    for number, (_, goes_on) in enumerate(rungs):
        if max(LAST, math.ceil(count * goes_on)) < count:
            return number
    return len(rungs) - 1


def _survivors(timed: list[tuple[float, int, dict[str, Any]]], goes_on: float) -> list[dict[str, Any]]:
    places = max(LAST, math.ceil(len(timed) * goes_on))
    most = places + math.floor(places * _MOST_TIES)
    limit_us = timed[min(places, len(timed)) - 1][0] * (1 + TIE)
    passed = [one for number, one in enumerate(timed) if number < places or one[0] <= limit_us][:most]
    return [setting for _, _, setting in passed]


def words(setting: Setting) -> str:
    """A setting for a table, for example "BLOCK=128, UNROLL=2"."""
    return ", ".join(f"{name}={value}" for name, value in setting.items())
