"""From a verdict to a number to learn from. Pure functions: no clock, no file, no network.

1. *Word.* What the referee rejected, cheating among it, gets the shaping's floor. What it could not judge gets None: a fault of
   ours teaches nothing. Only accepted candidates get more, and each of them gets more than the floor.
2. *Speed.* Paired timings at the visible shapes alone count, their geometric mean rounded to two decimals towards 1, so that noise
   around 1 pays nothing. Where shapes are slower than the baseline, the slowest shape decides over a share of the pay, whatever
   its unit, and a penalty is taken off: the same mean, of 1 or more, pays more when it is spread evenly. `marginal` uses only
   the penalty, see `shaping`.
3. *Suspicion.* Far above what is known, a speed is measured again, and the lower one counts if both agree; else neither.
4. *Group.* Scores of one prompt are compared with each other and clipped (CUDA-L1, arXiv 2507.14111, eq. 6); the trainer must
   not scale them again. With `best_of` above 1 what is compared is what each adds to others: then a group that has better ones
   may count an accepted candidate no more than a rejected one.

The exemplar database stores the plain geometric mean, whatever the shaping.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.candidates import Candidate
from agent.portfolio.clusters import visible_rows
from agent.portfolio.cover import cover
from agent.portfolio.entries import Entry, eager_speedups
from agent.portfolio.table import tabulate
from evaluator.verdict import WORDS, ShapeResult, Verdict
from rl.best_of import gains_on_best
from rl.config import RewardPart

#: Words that say nothing about the candidate: a fault of ours, or the task's.
FAULTS = frozenset({"not_judged", "task_rejected"})
REJECTIONS = frozenset(WORDS) - FAULTS - {"accepted"}
#: A shape counts as slower when the referee is sure, or when it lost more than this, sure or not: a candidate whose times jump
#: about shall gain nothing by that.
_LOST = 0.95
#: `log` pays lower speedups like this one.
_LEAST_SPEEDUP = 0.25
#: Over eager or the best baseline, for a level.
_LEVEL = 1.05


@dataclass(frozen=True)
class Speed:
    """What a verdict says of an accepted candidate's speed at visible shapes.

    Attributes:
        geomean: of the speedups over the best baseline, rounded towards 1.
        over_eager: the same over the plain reference.
        worst: the lowest speedup over the best baseline, rounded towards 1.
        slower: share of shapes that are slower than the best baseline.
        shapes: how many there are.
    """

    geomean: float
    over_eager: float
    worst: float
    slower: float
    shapes: int


@dataclass(frozen=True)
class Shaping:
    """One way to pay.

    Attributes:
        floor: of what was rejected.
        least: of what was accepted; above the floor.
        most: of what was accepted.
        pay: from speed and, for `marginal`, from what the candidate would add to a portfolio (log speedup; 0 for other shapings).
    """

    floor: float
    least: float
    most: float
    pay: Callable[[Speed, float], float]

    def paid(self, speed: Speed, gain: float) -> float:
        """What `pay` says, within the limits."""
        return min(max(self.pay(speed, gain), self.least), self.most)


@dataclass(frozen=True)
class Score:
    """What one candidate gets before it is compared with its group.

    Attributes:
        value: None for what could not be judged.
        speedup: rounded geometric mean; None where nothing was accepted and timed.
        again: why it has to be measured again before it counts, "" where not.
        why: one sentence.
    """

    value: float | None
    speedup: float | None
    again: str
    why: str


def rounded_towards_one(speedup: float) -> float:
    """Two decimals towards 1: 1.118 is 1.11 and 0.992 is 1.00."""
    # In hundredths; a millionth keeps 1.11, which is 111.00000000000001 or 110.99999999999999 of them, where it is.
    hundredths = speedup * 100
    return (math.floor(hundredths + 1e-6) if speedup >= 1 else math.ceil(hundredths - 1e-6)) / 100


def speed_of(verdict: Verdict) -> Speed | None:
    """The speed of an accepted candidate; None where no visible shape was timed, or a figure makes no sense."""
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
    """The way to pay that the settings name.

    clipped: the speedup itself, up to a limit.
    log: its logarithm, so that twice as fast is as good as half as fast is bad.
    levels: 1 correct, 2 more than 5 % over eager, 3 over the best baseline too (CUDA Agent, arXiv 2602.24286), and nowhere
        slower than that.
    marginal: what a portfolio of the task's exemplars would gain by it, so that being best at a few shapes pays. A portfolio
        uses others where it is slow, so its slowest shape decides over nothing; the penalty is what a specialist has to bring.
    """
    limit = settings.most_speedup
    lowest = math.log(_LEAST_SPEEDUP)
    ways = {
        "clipped": Shaping(0.0, 0.1, limit, lambda speed, _: speed.geomean),
        "log": Shaping(lowest - 0.25, lowest, math.log(limit), lambda speed, _: math.log(speed.geomean)),
        "levels": Shaping(-1.0, 0.0, 3.0, lambda speed, _: _level(speed, settings)),
        "marginal": Shaping(-0.5, -0.25, math.log(limit), lambda _, gain: gain),
    }
    return ways[settings.shaping]


def score(
    verdict: Verdict,
    settings: RewardPart,
    record: float | None = None,
    portfolio: Sequence[Verdict] = (),
) -> Score:
    """What a verdict is worth.

    Args:
        verdict: the referee's.
        settings: how to pay.
        record: the highest speedup known of the task on this type of machine.
        portfolio: verdicts of the accepted candidates that a portfolio has already; for `marginal` alone.
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
    gain = marginal_gain(verdict, portfolio) if settings.shaping == "marginal" else 0.0
    value = way.paid(speed, gain)
    if speed.slower:
        # A share and not an amount, which would be next to nothing where much is paid.
        share = min(settings.slower_penalty, 1.0)
        like_worst = replace(speed, geomean=speed.worst, over_eager=speed.worst)
        # Half for the first shape that is slower, the other half by their share.
        penalty = settings.slower_penalty * (0.5 + 0.5 * speed.slower)
        value = max((1 - share) * value + share * way.paid(like_worst, gain) - penalty, way.least)
    return Score(value, speed.geomean, _suspicion(speed.geomean, settings, record), f"{speed.geomean:.2f}x")


def measured_again(first: Score, second: Score, settings: RewardPart) -> Score:
    """What counts after a second measurement, which ran elsewhere or later: the lower of two that agree.

    A rejection in either counts; a second one that could not be made, or that differs, leaves the candidate without a score.
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
    """A score under somebody's doubt: never higher than it was, never None where it was a number.

    Args:
        scored: before.
        limit: more is not paid; None leaves it as it is.
        why: the doubt.
    """
    if scored.value is None or limit is None or not math.isfinite(limit) or limit >= scored.value:
        return scored
    return Score(limit, scored.speedup, scored.again, f"{scored.why}; {why}")


def unpaid(settings: RewardPart) -> float:
    """What a correct candidate is worth that is no faster than the baseline."""
    return shaping(settings).paid(Speed(geomean=1.0, over_eager=1.0, worst=1.0, slower=0.0, shapes=1), 0.0)


def normalized(scores: Sequence[float | None], settings: RewardPart) -> list[float | None]:
    """Scores of one group as distances from their mean, in standard deviations if `scaled`, clipped; None stays None.

    With `best_of` it is what each score adds to others that is compared. A group whose members lie closer together than the
    timer's noise is all zeros: its differences mean nothing.
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


def marginal_gain(verdict: Verdict, portfolio: Sequence[Verdict]) -> float:
    """What the geometric mean over visible shapes gains, as a log ratio, when a portfolio may use this candidate too.

    The reference is always a member, so a candidate that is nowhere faster gains nothing.
    """
    every = [*portfolio, verdict]
    entries = [
        Entry(Candidate(str(number), "policy", ""), number, replace(one, shapes=tuple(visible_rows(one))))
        for number, one in enumerate(every)
    ]
    table = tabulate(entries)
    if not table.shapes:
        return 0.0
    members = range(len(portfolio))
    return cover(table, most=len(every) + 1, always=members).marginal[-1]


def _suspicion(speedup: float, settings: RewardPart, record: float | None) -> str:
    if speedup > settings.suspicious_speedup:
        return f"{speedup:.2f}x is above {settings.suspicious_speedup:g}x"
    known = max(record or 0.0, 1.0)  # the baseline is there before any candidate
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
    """The row's speedup over the plain reference, None where that was not timed."""
    found = list(eager_speedups(replace(verdict, shapes=(row,))).values())
    return (row.speedup or 0.0) / found[0] if found and _is_speed(found[0]) else None


def _is_speed(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
