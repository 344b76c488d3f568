"""Summarizes a run's files: hacks by kind, the best sources at its beginning and end, and both sides of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard.run_files import Run, Sample, number, text

_MOST_TASKS = 6
#: Share of all steps that counts as the beginning, and as the end.
_END_SHARE = 0.1


@dataclass(frozen=True)
class Catch:
    """A reason for catching completions: its count and first step."""

    what: str
    times: int
    first_step: int


@dataclass(frozen=True)
class Pair:
    """A task's best source at the beginning and at the end; "" if nothing was accepted."""

    task: str
    before: str
    before_speedup: float | None
    after: str
    after_speedup: float | None


@dataclass(frozen=True)
class Ratio:
    """The after/before ratio of one measure, with its 95 % interval; missing values are None."""

    measure: str
    before: float | None
    after: float | None
    value: float | None
    low: float | None
    high: float | None
    word: str


def catches(samples: Sequence[Sample]) -> list[Catch]:
    """Caught or suspect completions, grouped by reason, most frequent first."""
    times: Counter[str] = Counter()
    first: dict[str, int] = {}
    for one in samples:
        if one.caught:
            times[one.caught] += 1
            first.setdefault(one.caught, one.step)
    return [Catch(what, count, first[what]) for what, count in times.most_common(50)]


def words(samples: Sequence[Sample]) -> list[tuple[str, int]]:
    """Count of each of the referee's verdict words; "" stands for completions without a candidate or not judged."""
    return Counter(one.word for one in samples).most_common(20)


def pairs(run: Run) -> list[Pair]:
    """Sources before and after: from the comparison if there is one, else from the run's first and last steps."""
    compared = _compared_pairs(run.comparison)
    if compared:
        return compared
    if not run.samples:
        return []
    steps = [one.step for one in run.samples]
    begin, end = min(steps), max(steps)
    near = max((end - begin) * _END_SHARE, 0)
    if begin == end:
        return []
    found = []
    for task in sorted({one.task for one in run.samples})[:_MOST_TASKS]:
        own = [one for one in run.samples if one.task == task]
        first = _best([one for one in own if one.step <= begin + near])
        last = _best([one for one in own if one.step >= end - near])
        if first or last:
            found.append(Pair(task, *_side(first), *_side(last)))
    return found


def _best(samples: Sequence[Sample]) -> Sample | None:
    timed = [one for one in samples if one.speedup is not None]
    return max(timed, key=lambda one: one.speedup or 0.0, default=None)


def _side(sample: Sample | None) -> tuple[str, float | None]:
    return (sample.source, sample.speedup) if sample else ("", None)


def _compared_pairs(comparison: Mapping[str, Any]) -> list[Pair]:
    listed = comparison.get("tasks")
    found = []
    for one in listed[:_MOST_TASKS] if isinstance(listed, list) else []:
        row = mapping(one)
        before, after = mapping(row.get("before")), mapping(row.get("after"))
        found.append(
            Pair(
                text(row.get("task"), 200),
                text(before.get("source"), 100_000),
                number(before.get("source_speedup")) or None,
                text(after.get("source"), 100_000),
                number(after.get("source_speedup")) or None,
            )
        )
    return found


def ratios(comparison: Mapping[str, Any]) -> list[Ratio]:
    """The ratios of a comparison's two measures; [] if there is no comparison."""
    found = []
    both = mapping(comparison.get("after_over_before"))
    for measure in ("mean", "best"):
        said = mapping(both.get(measure))
        if not said:
            continue
        interval = mapping(said.get("ratio"))
        found.append(
            Ratio(
                measure,
                _value(comparison, "before", measure),
                _value(comparison, "after", measure),
                number(interval.get("value")),
                number(interval.get("low")),
                number(interval.get("high")),
                text(said.get("word"), 40),
            )
        )
    return found


def _value(comparison: Mapping[str, Any], side: str, measure: str) -> float | None:
    return number(mapping(mapping(comparison.get(side)).get(measure)).get("value"))


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else {}."""
    return value if isinstance(value, Mapping) else {}
