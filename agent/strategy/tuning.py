"""Successive halving: a machine finds good numbers for a kernel, without a token.

Many settings are timed shortly, the better part of them longer, and so on; only a few are timed at full length. With the
default rungs 128 settings cost a seventh of timing all of them at full length, and at most a fifth.

    rung            1      2      3      4
    settings      128     32      8      6     a quarter goes on, at least `LAST`
    length       1/32    1/8    1/2      1     of the full length
    cost            4      4      4      6     full lengths, of 128; up to half as many again with ties

A setting within `TIE` of the last that goes on goes on, too: at short lengths noise must not decide. Where a timing is long
enough, settings take turns, a part of the length each, and are compared within a turn: what a neighbor slows meanwhile is all
of them, not the one whose turn it was.

This file knows nothing but Python's standard library, because it also travels as text into the sandbox, beside
`sandboxed/tune_program.py`, where the timing is done.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Setting = Mapping[str, Any]

#: (share of the full length, share of the settings that goes on to the next rung).
RUNGS: tuple[tuple[float, float], ...] = ((1 / 32, 1 / 4), (1 / 8, 1 / 4), (1 / 2, 1 / 4), (1.0, 0.0))
LAST = 6
TIE = 0.02
#: Rungs of this length or longer are timed in so many turns.
_TURNS_FROM, TURNS = 1 / 8, 8
#: Ties that are carried along at most, as a share of a rung's places.
_MOST_TIES = 0.5

#: Times a setting: microseconds for a share of the full length, or None when it does not work.
Objective = Callable[[Setting, float], float | None]


@dataclass(frozen=True)
class Trial:
    """One setting in one rung (from 0): which share of the full length it was timed, and microseconds, None for a failure."""

    rung: int
    share: float
    setting: Setting
    elapsed_us: float | None


@dataclass(frozen=True)
class Tuned:
    """What came out.

    Attributes:
        setting: the fastest at full length; None when none works.
        elapsed_us: its time.
        trials: all timings in order.
        cost: their lengths, in full lengths.
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
        settings: what to choose from; with few of them the first rungs are skipped.
        objective: times one.
        rungs: lengths and shares, the last at full length.
        keep: asked before each timing; once False, the best so far is taken (a spent budget, a job that is stopped).

    Returns:
        The winner is the fastest of the longest rung that timed anything.
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
    """Microseconds of each setting (None if it does not work) and for which share it was timed; fewer if time runs out.

    In turns, each in another order, the times of one turn are divided by their median; the median over turns counts.
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
    # A turn that was cut short compares some with nobody.
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
    """Where to begin: a rung that would let everything pass decides nothing."""
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
