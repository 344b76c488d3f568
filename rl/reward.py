"""Converts a verdict into a reward. Pure functions: no clock, no file, no network.

1. *Verdict.* A rejected candidate, including a cheating one, gets the shaping's floor. A candidate that could not be judged gets
   None: an infrastructure fault teaches nothing. Only accepted candidates get more, and each of them gets more than the floor.
2. *Speed.* Only paired timings at the visible shapes count. Their geometric mean is rounded to two decimals toward 1, which keeps
   noise around 1 from paying. If shapes are slower than the baseline, the slowest shape determines a share of the pay, whatever
   its unit, and a penalty is subtracted: the same mean, of 1 or more, pays more when it is spread evenly.
3. *Suspicion.* A speed far above the known ones is measured again; the lower one counts if both agree, otherwise neither does.
4. *Group.* Scores of one prompt are normalized within the group and clipped (CUDA-L1, arXiv 2507.14111, eq. 6); the trainer must
   not scale them again. With `best_of` above 1, the normalized values are each score's gain over others: an accepted candidate
   in a group with better ones may then count no more than a rejected one.

The exemplar database stores the plain geometric mean, whatever the shaping.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.portfolio.clusters import visible_rows
from agent.portfolio.entries import eager_speedups
from evaluator.verdict import WORDS, ShapeResult, Verdict
from rl.best_of import gains_on_best
from rl.config import RewardPart

#: Verdicts that say nothing about the candidate: an infrastructure fault, or a fault of the task.
FAULTS = frozenset({"not_judged", "task_rejected"})
REJECTIONS = frozenset(WORDS) - FAULTS - {"accepted"}
#: A shape counts as slower if the referee decides so, or if its speedup is below this even without that decision: noisy times must
#: not benefit a candidate.
_LOST = 0.95
#: `log` pays lower speedups of accepted candidates as this one.
_LEAST_SPEEDUP = 0.25
#: Speedup over eager or the best baseline that a level requires.
_LEVEL = 1.05


@dataclass(frozen=True)
class Speed:
    """An accepted candidate's speed at visible shapes.

    Attributes:
        geomean: geometric mean of the speedups over the best baseline, rounded toward 1.
        over_eager: the same over the plain reference.
        worst: the lowest speedup over the best baseline, rounded toward 1.
        slower: share of shapes that are slower than the best baseline.
        shapes: number of timed visible shapes.
    """

    geomean: float
    over_eager: float
    worst: float
    slower: float
    shapes: int


@dataclass(frozen=True)
class Shaping:
    """One reward function.

    Attributes:
        floor: reward of a rejected candidate.
        least: lowest reward of an accepted candidate; above the floor.
        most: highest reward of an accepted candidate.
        pay: reward from the speed.
    """

    floor: float
    least: float
    most: float
    pay: Callable[[Speed], float]

    def paid(self, speed: Speed) -> float:
        """Return `pay`, clamped to the limits."""
        return min(max(self.pay(speed), self.least), self.most)


@dataclass(frozen=True)
class Score:
    """One candidate's score before it is compared with its group.

    Attributes:
        value: the score; None if the candidate could not be judged.
        speedup: rounded geometric mean; None unless the candidate was accepted and timed.
        again: why it must be measured again before it counts, or "".
        why: one sentence that explains the score.
    """

    value: float | None
    speedup: float | None
    again: str
    why: str


def rounded_towards_one(speedup: float) -> float:
    """Round to two decimals toward 1: 1.118 becomes 1.11 and 0.992 becomes 1.00."""
    # In hundredths; the 1e-6 keeps 1.11, which may be 110.99999999999999 or 111.00000000000001 of them, unchanged.
    hundredths = speedup * 100
    return (math.floor(hundredths + 1e-6) if speedup >= 1 else math.ceil(hundredths - 1e-6)) / 100


def speed_of(verdict: Verdict) -> Speed | None:
    """The speed of an accepted candidate; None if no visible shape was timed or a speedup is not a positive number."""
    rows = visible_rows(verdict)
    speedups = [row.speedup or 0.0 for row in rows]
    if not rows or not all(_is_speed(one) for one in speedups):
        return None
    eager = [found for row in rows if (found := _over_eager(verdict, row)) is not None]
    geomean = rounded_towards_one(statistics.geometric_mean(speedups))
    return Speed(
        geomean=geomean,
        over_eager=rounded_towards_one(statistics.geometric_mean(eager))
        if len(eager) == len(rows)
        else geomean,
        worst=rounded_towards_one(min(speedups)),
        slower=sum(_is_slower(row) for row in rows) / len(rows),
        shapes=len(rows),
    )


def shaping(settings: RewardPart) -> Shaping:
    """Return the reward function that the settings name.

    clipped: the speedup, up to a limit.
    log: its logarithm, which makes twice as fast as good as half as fast is bad.
    levels: 1 correct, 2 more than 5 % over eager, 3 more than 5 % over the best baseline too (CUDA Agent, arXiv 2602.24286) and
        slower than it at no shape.
    """
    limit = settings.most_speedup
    lowest = math.log(_LEAST_SPEEDUP)
    ways = {
        "clipped": Shaping(0.0, 0.1, limit, lambda speed: speed.geomean),
        "log": Shaping(lowest - 0.25, lowest, math.log(limit), lambda speed: math.log(speed.geomean)),
        "levels": Shaping(-1.0, 0.0, 3.0, lambda speed: _level(speed, settings)),
    }
    return ways[settings.shaping]


def score(verdict: Verdict, settings: RewardPart, record: float | None = None) -> Score:
    """Score a verdict.

    Args:
        verdict: the referee's verdict.
        settings: how verdicts become rewards.
        record: the task's highest known speedup on this machine type.
    """
    way = shaping(settings)
    word = verdict.verdict
    if word in REJECTIONS:
        return Score(way.floor, None, "", f"rejected: {word}")
    if word != "accepted":
        return Score(None, None, "", f"not judged: {word}")
    speed = speed_of(verdict)
    if speed is None:
        return Score(None, None, "", "accepted, but no visible shape was timed")
    value = way.paid(speed)
    if speed.slower:
        # A share rather than a fixed amount, which would hardly matter where rewards are high.
        share = min(settings.slower_penalty, 1.0)
        like_worst = replace(speed, geomean=speed.worst, over_eager=speed.worst)
        # Half of the penalty applies if any shape is slower, the other half in proportion to their share.
        penalty = settings.slower_penalty * (0.5 + 0.5 * speed.slower)
        value = max((1 - share) * value + share * way.paid(like_worst) - penalty, way.least)
    return Score(value, speed.geomean, _suspicion(speed.geomean, settings, record), f"{speed.geomean:.2f}x")


def measured_again(first: Score, second: Score, settings: RewardPart) -> Score:
    """Combine a score with that of a later, separate measurement: the lower one counts if both agree.

    A rejection in the second counts. If the second measurement failed or differs, the candidate has no score.
    """
    if second.speedup is None:
        return Score(second.value, None, "", f"measured again: {second.why}")
    if first.value is None or first.speedup is None:
        return Score(None, None, "", "the first measurement is missing")
    low, high = sorted((first.speedup, second.speedup))
    if high > low * (1 + settings.agreement):
        return Score(
            None, None, "", f"two measurements differ: {first.speedup:.2f}x and {second.speedup:.2f}x"
        )
    lower = min(first, second, key=lambda one: (one.value is None, one.value))
    return Score(lower.value, low, "", f"measured twice: {first.speedup:.2f}x and {second.speedup:.2f}x")


def lowered(scored: Score, limit: float | None, why: str) -> Score:
    """Cap a score because of a doubt; it never rises, and a number never becomes None.

    Args:
        scored: the score before.
        limit: the upper limit; None leaves the score unchanged.
        why: the doubt.
    """
    if scored.value is None or limit is None or not math.isfinite(limit) or limit >= scored.value:
        return scored
    return Score(limit, scored.speedup, scored.again, f"{scored.why}; {why}")


def unpaid(settings: RewardPart) -> float:
    """The reward of a correct candidate that is no faster than the baseline."""
    return shaping(settings).paid(Speed(geomean=1.0, over_eager=1.0, worst=1.0, slower=0.0, shapes=1))


def normalized(scores: Sequence[float | None], settings: RewardPart) -> list[float | None]:
    """Scores of one group as distances from their mean, in standard deviations if `scaled`, clipped; None stays None.

    With `best_of` above 1, the gain of each score over others is normalized instead. If the scores differ by less than the
    timer's noise, all become 0, because their differences mean nothing.
    """
    scores = gains_on_best(scores, settings.best_of)
    known = [one for one in scores if one is not None]
    if not known:
        return [None] * len(scores)
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in known) / len(known))
    if max(known) - min(known) < settings.least_spread or spread == 0:
        return [None if one is None else 0.0 for one in scores]
    unit, clip = spread if settings.scaled else 1.0, settings.clip
    return [None if one is None else min(max((one - mean) / unit, -clip), clip) for one in scores]


def _suspicion(speedup: float, settings: RewardPart, record: float | None) -> str:
    if speedup > settings.suspicious_speedup:
        return f"{speedup:.2f}x is above {settings.suspicious_speedup:g}x"
    known = max(record or 0.0, 1.0)  # the baseline is always available
    if speedup > settings.suspicious_jump * known:
        return f"{speedup:.2f}x is above {settings.suspicious_jump:g} times the record of {known:.2f}x"
    return ""


def _level(speed: Speed, settings: RewardPart) -> float:
    if speed.over_eager <= _LEVEL:
        return 1.0
    everywhere = not speed.slower or settings.slower_penalty == 0
    return 3.0 if speed.geomean > _LEVEL and everywhere else 2.0


def _is_slower(row: ShapeResult) -> bool:
    return row.decision == "slower" or (row.speedup or 0.0) < _LOST


def _over_eager(verdict: Verdict, row: ShapeResult) -> float | None:
    """The row's speedup over the plain reference, or None if that was not timed."""
    found = list(eager_speedups(replace(verdict, shapes=(row,))).values())
    return (row.speedup or 0.0) / found[0] if found and _is_speed(found[0]) else None


def _is_speed(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
