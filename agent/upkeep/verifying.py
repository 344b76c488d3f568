"""Verifies a bundle's evidence on this machine: the referee measures the recorded shapes again.

Each new speedup is divided by the recorded one. The interval of this ratio combines both measurements' intervals and is
widened for the number of shapes in the bundle (Bonferroni), which avoids false alarms among many sound shapes. A shape that
does not clearly hold in the first measurement is measured a second time before it is reported.

On another machine type, or with another referee version, the recorded figures are not comparable: each is marked stale, and
the check is instead what a bundle promises everywhere: not to be slower than the best baseline on that machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from agent.upkeep.reading import ReadBundle, Recorded
from evaluator.counting import counted
from evaluator.fingerprint import changes, comparable, fingerprint, same_type, type_of
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict, ran_no_kernel

if TYPE_CHECKING:
    from evaluator.client import Referee

SCHEMA = "kernelwright.verification/1"
HOLDS, REGRESSED, UNMEASURED = "holds", "regressed", "unmeasured"
#: Verdicts without a measurement for reasons outside the bundle.
_NOT_THE_BUNDLE = ("not_judged", "task_rejected", "timeout")
_Interval = tuple[float, float, float]
_NORMAL = NormalDist()
_Z975 = _NORMAL.inv_cdf(0.975)


@dataclass(frozen=True)
class ShapeCheck:
    """One shape's recorded and new measurements.

    Attributes:
        dims: the shape.
        recorded: speedup over the best baseline in the evidence, with its interval.
        now: the speedup measured now, with its interval; None if it could not be measured.
        ratio: `now` over the reference speedup, with an interval widened for the number of shapes.
        status: `holds`, `slower`, `faster`, `undecided`, or `unmeasured`.
        stale: whether the recorded figure no longer describes this shape on this machine.
        looks: number of measurements.
    """

    dims: dict[str, Any]
    recorded: _Interval
    now: _Interval | None
    ratio: _Interval | None
    status: str
    stale: bool
    looks: int


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        result: `holds`, `regressed` or `unmeasured`.
        sentences: the reason, followed by remarks.
        against: `evidence`, or `baseline` if the evidence is not comparable.
        max_regression: the share by which a speedup may fall.
        ratio: geometric mean over shapes of new over recorded speedup (or over 1), with its 95 % interval; None without
            measurements.
        shapes: the checks of all recorded shapes.
        changes: changes of the platform, in words.
        before: environment of the evidence.
        now: environment of this measurement.
        verdict: the referee's current verdict on optimized.py.
    """

    result: str
    sentences: tuple[str, ...]
    against: str
    max_regression: float
    ratio: _Interval | None
    shapes: tuple[ShapeCheck, ...]
    changes: tuple[str, ...]
    before: Mapping[str, Any]
    now: Mapping[str, Any]
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """A JSON value, with the fingerprints of both platforms."""
        prints = {"before": fingerprint(self.before), "now": fingerprint(self.now)}
        return {"schema": SCHEMA, **asdict(self), "fingerprints": prints}


def verify(
    bundle: ReadBundle,
    referee: Referee,
    *,
    max_regression: float = 0.02,
    effort: str = "confirm",
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> Verification:
    """Measure a bundle's recorded shapes again and compare.

    Args:
        bundle: the bundle to verify; its code runs only in the referee's sandbox.
        referee: a referee on the bundle's kind of device.
        max_regression: the share by which a speedup may fall, such as 0.02.
        effort: `confirm` (as in the evidence) or `screen`.
        on_progress: see `Referee.evaluate`.

    Raises:
        evaluator.errors.EvaluatorError: if the referee was lost or had a fault.
    """
    candidate = CandidateSource(bundle.optimized, "external", "optimized.py", delivered=True)

    def look(shapes: Sequence[Recorded]) -> Verdict:
        return referee.evaluate(
            bundle.task,
            candidate,
            effort=effort,
            splits=("held_out",),
            shapes={"held_out": [dict(shape.dims) for shape in shapes]},
            submitted=True,
            on_progress=on_progress,
        )

    if not bundle.recorded:
        return conclude(bundle, [], max_regression)
    verdicts = [look(bundle.recorded)]
    checks = zip(bundle.recorded, _Comparison(bundle, verdicts, max_regression).shapes, strict=True)
    doubtful = [shape for shape, check in checks if check.status not in ("holds", "faster")]
    if verdicts[0].verdict == "accepted" and doubtful:
        verdicts.append(look(doubtful))
    return conclude(bundle, verdicts, max_regression)


def conclude(bundle: ReadBundle, verdicts: Sequence[Verdict], max_regression: float) -> Verification:
    """Combine one or two measurements; the second covers only the doubtful shapes.

    Args:
        bundle: has the recorded figures.
        verdicts: the referee's verdicts on the same optimized.py.
        max_regression: the share by which a speedup may fall.
    """
    compared = _Comparison(bundle, verdicts, max_regression)
    result, reason = compared.result()
    now = compared.environment
    return Verification(
        result=result,
        sentences=(reason, *compared.remarks()),
        against="evidence" if compared.same_terms else "baseline",
        max_regression=max_regression,
        ratio=compared.ratio,
        shapes=compared.shapes,
        changes=tuple(map(str, changes(bundle.environment, now))) if verdicts else (),
        before=bundle.environment,
        now=now,
        verdict=compared.word if verdicts else "not_judged",
    )


class _Comparison:
    """A bundle's figures beside one or two verdicts; `same_terms` says whether they may be compared at all."""

    def __init__(self, bundle: ReadBundle, verdicts: Sequence[Verdict], max_regression: float) -> None:
        self.bundle = bundle
        self.verdicts = verdicts
        self.max_regression = max_regression
        self.environment: Mapping[str, Any] = verdicts[0].environment if verdicts else {}
        self.same_terms = comparable(bundle.environment, self.environment)
        self.word = next((one.verdict for one in verdicts if one.verdict != "accepted"), "accepted")
        self._looks = [_measured(one) for one in verdicts if one.verdict == "accepted"]
        self.shapes = tuple(self._check(shape) for shape in bundle.recorded)
        self.ratio = self._whole()

    def _check(self, shape: Recorded) -> ShapeCheck:
        recorded = (shape.speedup, shape.low, shape.high)
        seen = [look[_key(shape.dims)] for look in self._looks if _key(shape.dims) in look]
        if not seen:
            return ShapeCheck(shape.dims, recorded, None, None, "unmeasured", True, 0)
        now = _pooled(seen)
        # Bonferroni: widen each interval so that all shapes together reach 95 %.
        wider = _NORMAL.inv_cdf(1 - 0.025 / len(self.bundle.recorded)) / _Z975
        ratio = self._over(now, recorded, wider)
        status = self._status(ratio)
        if status == "slower" and self._over(seen[-1], recorded, wider)[0] >= 1 - self.max_regression:
            status = "undecided"  # the second measurement does not confirm it
        changed = status in ("slower", "faster")
        return ShapeCheck(shape.dims, recorded, now, ratio, status, not self.same_terms or changed, len(seen))

    def _over(self, now: _Interval, recorded: _Interval, wider: float) -> _Interval:
        """`now` over the recorded speedup, or over 1 where that is not comparable."""
        before = recorded if self.same_terms else (1.0, 1.0, 1.0)
        middle, half = math.log(now[0] / before[0]), wider * math.hypot(_half(now), _half(before))
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)

    def _status(self, ratio: _Interval) -> str:
        _, low, high = ratio
        if high < 1 - self.max_regression:
            return "slower"
        if low > 1 + self.max_regression:
            return "faster"
        return "holds" if low >= 1 - self.max_regression else "undecided"

    def _whole(self) -> _Interval | None:
        """Geometric mean of the ratios over all shapes, with its interval; None without measurements."""
        ratios = [self._over(one.now, one.recorded, 1.0) for one in self.shapes if one.now is not None]
        if not ratios:
            return None
        middle = math.fsum(math.log(ratio) for ratio, _, _ in ratios) / len(ratios)
        half = math.hypot(*(math.log(high / low) / 2 for _, low, high in ratios)) / len(ratios)
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)

    def result(self) -> tuple[str, str]:
        """The result and a sentence with the reason."""
        if not self.bundle.recorded:
            return (
                UNMEASURED,
                "the evidence holds no timed held-out shape of this optimized.py to compare with",
            )
        refused = next((one for one in self.verdicts if one.verdict == self.word != "accepted"), None)
        if refused is not None:
            said = f"the referee says {self.word}: {refused.reason}"
            if self.word in _NOT_THE_BUNDLE:
                return UNMEASURED, f"could not be measured: {said}"
            return REGRESSED, f"optimized.py is no longer accepted here; {said}"
        if self.ratio is None:
            return UNMEASURED, "none of the recorded shapes was timed here"
        if "own_kernel" in self.bundle.labels and ran_no_kernel(self.verdicts[0]):
            return (
                REGRESSED,
                "optimized.py runs the reference here: its own kernels were seen to run then, and none of them now",
            )
        what = "the recorded speedup" if self.same_terms else "as fast as the best baseline here"
        interval = f"{self.ratio[0]:.3f} [{self.ratio[1]:.3f}, {self.ratio[2]:.3f}] times {what}"
        count, least = len(self.shapes), 1 - self.max_regression
        slower = sum(shape.status == "slower" for shape in self.shapes)
        missing = sum(shape.status == "unmeasured" for shape in self.shapes)
        if slower or self.ratio[2] < least:
            where = f"slower at {slower} of {counted(count, 'shape')}" if slower else "slower as a whole"
            return REGRESSED, f"{where} by more than {self.max_regression:.1%}; over all shapes {interval}"
        if missing:
            return (
                UNMEASURED,
                f"not timed here: {missing} of {counted(count, 'shape')}; over the others {interval}",
            )
        if self.ratio[1] < least:
            advice = "measure on a quieter machine or allow more with --max-regression"
            noise = f"too noisy to tell a fall of {self.max_regression:.1%}"
            return UNMEASURED, f"{noise}: over all shapes {interval}; {advice}"
        return HOLDS, f"over all shapes {interval}"

    def remarks(self) -> list[str]:
        """What else a reader should know."""
        if not self.verdicts:
            return []
        before, now = self.bundle.environment, self.environment
        said = []
        if not self.same_terms and same_type(before, now):
            said.append(
                "the evidence was measured by another version of the referee, whose figures cannot be compared with these: "
                "the bundle is held against the best baseline here"
            )
        elif not self.same_terms:
            said.append(
                f"the bundle was measured on {type_of(before) or 'an unknown machine'} and this is "
                f"{type_of(now) or 'an unknown machine'}: its figures do not hold here, so it is held against the best "
                "baseline here; optimize again on this machine for kernels that are chosen for it"
            )
        elif fingerprint(before) == fingerprint(now):
            said.append("nothing of the platform has changed since the evidence was made")
        stale = sum(shape.stale for shape in self.shapes)
        if stale:
            said.append(f"the evidence is stale at {stale} of {counted(len(self.shapes), 'shape')}")
        if "own_kernel" in self.bundle.labels and "own_kernel" not in self.verdicts[0].labels:
            said.append(
                "its own kernels were seen to run then and not now: optimized.py probably runs the reference here; "
                "`ModelNew(...).kernelwright_explain(*inputs)` says why"
            )
        return said


def _measured(verdict: Verdict) -> dict[str, _Interval]:
    """Speedup and interval of each timed shape, by `_key`."""
    return {
        _key(row.dims): (row.speedup, *row.ci95)
        for row in verdict.shapes
        if row.timed and row.speedup and row.ci95
    }


def _key(dims: Mapping[str, Any]) -> str:
    return json.dumps(dims, sort_keys=True)


def _pooled(seen: Sequence[_Interval]) -> _Interval:
    """Pool several measurements of one speedup, weighted by inverse variance."""
    if len(seen) == 1:
        return seen[0]
    weights = [1 / max(_half(one), 1e-4) ** 2 for one in seen]
    middle = sum(weight * math.log(one[0]) for weight, one in zip(weights, seen, strict=True)) / sum(weights)
    # If the measurements differ by more than their intervals, half their distance is the better half-width.
    half = max(sum(weights) ** -0.5, (max(seen)[0] / min(seen)[0] - 1) / 2)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _half(measured: _Interval) -> float:
    """The larger of an interval's two half-widths, in logs."""
    middle, low, high = measured
    return max(math.log(high / middle), math.log(middle / low))
