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
from evaluator.fingerprint import changes, comparable, fingerprint, same_type, type_of
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict, ran_no_kernel

if TYPE_CHECKING:
    from evaluator.client import Referee

SCHEMA = "kernelwright.verification/1"
HOLDS, REGRESSED, UNMEASURED = "holds", "regressed", "unmeasured"
#: Verdicts without a measurement for reasons outside the bundle.
_NOT_THE_BUNDLE = ("not_judged", "task_rejected", "timeout")
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
    recorded: tuple[float, float, float]
    now: tuple[float, float, float] | None
    ratio: tuple[float, float, float] | None
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
    ratio: tuple[float, float, float] | None
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
    doubtful = _doubtful(bundle, verdicts[0], max_regression)
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
    environment = verdicts[0].environment if verdicts else {}
    same_terms = comparable(bundle.environment, environment)
    word = next((one.verdict for one in verdicts if one.verdict != "accepted"), "accepted")
    looks = [_measured(one) for one in verdicts if one.verdict == "accepted"]
    shapes = tuple(_check(shape, looks, bundle, same_terms, max_regression) for shape in bundle.recorded)
    changed = tuple(str(change) for change in changes(bundle.environment, environment)) if verdicts else ()
    ratio = _whole(shapes, same_terms)
    result, reason = _result(bundle, verdicts, word, shapes, ratio, max_regression, same_terms)
    return Verification(
        result=result,
        sentences=(reason, *_remarks(bundle, verdicts, shapes, environment, same_terms)),
        against="evidence" if same_terms else "baseline",
        max_regression=max_regression,
        ratio=ratio,
        shapes=shapes,
        changes=changed,
        before=bundle.environment,
        now=environment,
        verdict=word if verdicts else "not_judged",
    )


def _doubtful(bundle: ReadBundle, verdict: Verdict, max_regression: float) -> list[Recorded]:
    """Shapes that do not clearly hold in the first measurement."""
    same_terms = comparable(bundle.environment, verdict.environment)
    looks = [_measured(verdict)]
    checks = [(shape, _check(shape, looks, bundle, same_terms, max_regression)) for shape in bundle.recorded]
    return [shape for shape, check in checks if check.status not in ("holds", "faster")]


def _measured(verdict: Verdict) -> dict[str, tuple[float, float, float]]:
    """Speedup and interval of each timed shape, by `_key`."""
    return {
        _key(row.dims): (row.speedup, *row.ci95)
        for row in verdict.shapes
        if row.timed and row.speedup and row.ci95
    }


def _key(dims: Mapping[str, Any]) -> str:
    return json.dumps(dims, sort_keys=True)


def _check(
    shape: Recorded,
    looks: Sequence[Mapping[str, tuple[float, float, float]]],
    bundle: ReadBundle,
    same_terms: bool,
    max_regression: float,
) -> ShapeCheck:
    recorded = (shape.speedup, shape.low, shape.high)
    seen = [look[_key(shape.dims)] for look in looks if _key(shape.dims) in look]
    if not seen:
        return ShapeCheck(shape.dims, recorded, None, None, "unmeasured", True, 0)
    now = _pooled(seen)
    against = recorded if same_terms else (1.0, 1.0, 1.0)
    # Bonferroni: widen each interval so that all shapes together reach 95 %.
    wider = _NORMAL.inv_cdf(1 - 0.025 / max(len(bundle.recorded), 1)) / _Z975
    ratio = _ratio(now, against, wider)
    status = _status(ratio, max_regression)
    if status == "slower" and _ratio(seen[-1], against, wider)[0] >= 1 - max_regression:
        status = "undecided"  # the second measurement does not confirm it
    changed = status in ("slower", "faster")
    return ShapeCheck(shape.dims, recorded, now, ratio, status, not same_terms or changed, len(seen))


def _status(ratio: tuple[float, float, float], max_regression: float) -> str:
    _, low, high = ratio
    if high < 1 - max_regression:
        return "slower"
    if low > 1 + max_regression:
        return "faster"
    return "holds" if low >= 1 - max_regression else "undecided"


def _pooled(seen: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Pool several measurements of one speedup, weighted by inverse variance."""
    if len(seen) == 1:
        return seen[0]
    weights = [1 / max(_half(one), 1e-4) ** 2 for one in seen]
    middle = sum(weight * math.log(one[0]) for weight, one in zip(weights, seen, strict=True)) / sum(weights)
    # If the measurements differ by more than their intervals, half their distance is the better half-width.
    half = max(sum(weights) ** -0.5, (max(seen)[0] / min(seen)[0] - 1) / 2)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _ratio(
    now: tuple[float, float, float], before: tuple[float, float, float], wider: float
) -> tuple[float, float, float]:
    middle, half = math.log(now[0] / before[0]), wider * math.hypot(_half(now), _half(before))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _half(measured: tuple[float, float, float]) -> float:
    """The larger of an interval's two half-widths, in logs."""
    middle, low, high = measured
    return max(math.log(high / middle), math.log(middle / low))


def _whole(shapes: Sequence[ShapeCheck], same_terms: bool) -> tuple[float, float, float] | None:
    """Geometric mean of the ratios over the given shapes, with its interval; None without measurements."""
    logs, halves = [], []
    for shape in shapes:
        if shape.now is not None:
            middle, low, high = _ratio(shape.now, shape.recorded if same_terms else (1.0, 1.0, 1.0), 1.0)
            logs.append(math.log(middle))
            halves.append(math.log(high / low) / 2)
    if not logs:
        return None
    middle, half = math.fsum(logs) / len(logs), math.hypot(*halves) / len(logs)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _result(
    bundle: ReadBundle,
    verdicts: Sequence[Verdict],
    word: str,
    shapes: Sequence[ShapeCheck],
    ratio: tuple[float, float, float] | None,
    max_regression: float,
    same_terms: bool,
) -> tuple[str, str]:
    """The result and a sentence with the reason."""
    if not bundle.recorded:
        return UNMEASURED, "the evidence holds no timed held-out shape of this optimized.py to compare with"
    refused = next((one for one in verdicts if one.verdict == word != "accepted"), None)
    if refused is not None:
        said = f"the referee says {word}: {refused.reason}"
        if word in _NOT_THE_BUNDLE:
            return UNMEASURED, f"could not be measured: {said}"
        return REGRESSED, f"optimized.py is no longer accepted here; {said}"
    if ratio is None:
        return UNMEASURED, "none of the recorded shapes was timed here"
    if "own_kernel" in bundle.labels and ran_no_kernel(verdicts[0]):
        return (
            REGRESSED,
            "optimized.py runs the reference here: its own kernels were seen to run then, and none of them now",
        )
    what = "the recorded speedup" if same_terms else "as fast as the best baseline here"
    interval = f"{ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}] times {what}"
    slower = [shape for shape in shapes if shape.status == "slower"]
    if slower or ratio[2] < 1 - max_regression:
        where = f"slower at {len(slower)} of {len(shapes)} shapes" if slower else "slower as a whole"
        return REGRESSED, f"{where} by more than {max_regression:.1%}; over all shapes {interval}"
    missing = sum(shape.status == "unmeasured" for shape in shapes)
    if missing:
        return (
            UNMEASURED,
            f"{missing} of {len(shapes)} shapes were not timed here; over the others {interval}",
        )
    if ratio[1] < 1 - max_regression:
        advice = "measure on a quieter machine or allow more with --max-regression"
        return (
            UNMEASURED,
            f"too noisy to tell a fall of {max_regression:.1%}: over all shapes {interval}; {advice}",
        )
    return HOLDS, f"over all shapes {interval}"


def _remarks(
    bundle: ReadBundle,
    verdicts: Sequence[Verdict],
    shapes: Sequence[ShapeCheck],
    environment: Mapping[str, Any],
    same_terms: bool,
) -> list[str]:
    if not verdicts:
        return []
    said = []
    if not same_terms and same_type(bundle.environment, environment):
        said.append(
            "the evidence was measured by another version of the referee, whose figures cannot be compared with these: the "
            "bundle is held against the best baseline here"
        )
    elif not same_terms:
        said.append(
            f"the bundle was measured on {type_of(bundle.environment) or 'an unknown machine'} and this is "
            f"{type_of(environment) or 'an unknown machine'}: its figures do not hold here, so it is held against the best "
            "baseline here; optimize again on this machine for kernels that are chosen for it"
        )
    elif fingerprint(bundle.environment) == fingerprint(environment):
        said.append("nothing of the platform has changed since the evidence was made")
    stale = sum(shape.stale for shape in shapes)
    if stale:
        said.append(f"the evidence is stale at {stale} of {len(shapes)} shapes")
    if "own_kernel" in bundle.labels and "own_kernel" not in verdicts[0].labels:
        said.append(
            "its own kernels were seen to run then and not now: optimized.py probably runs the reference here; "
            "`ModelNew(...).kernelwright_explain(*inputs)` says why"
        )
    return said
