"""The verdict: one module defines it, everything else reads it. JSON-able through :func:`as_json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

SCHEMA = "kernelwright.verdict/1"
#: Bump when a change makes old and new figures incomparable.
HARNESS_VERSION = "11"

WORDS = (
    "accepted", "incorrect", "compile_error", "runtime_error", "timeout", "out_of_memory", "cheating",
    "contract_violation", "task_rejected", "not_judged",
)  # fmt: skip
SEVERITIES = ("cheat", "error", "warning", "info")
#: What kind of win it is. Observed in the candidate's own process, so descriptive: no score depends on it.
LABELS = (
    "own_kernel", "library_call", "graph_rewrite", "precision_change", "launch_overhead_removal", "compiler",
)  # fmt: skip
#: Rule of a finding: a GPU had no memory left, so that another time there may be a verdict.
NO_ROOM = "no_device_memory"
#: Strata of a summary's headline, those of one line with the same weight; the first line of which any was timed counts. Traffic
#: with weights comes before them all.
HEADLINE = (("own", "near"), ("given",))
DECISIONS = ("faster", "same", "slower", "undecided")


@dataclass(frozen=True)
class Finding:
    """One thing the referee noticed: a rule's name, how bad it is, and the evidence in words."""

    rule: str
    severity: str
    evidence: str
    #: Of a wrong result: coarsely where and how, see :mod:`evaluator.oracle.places`.
    places: dict[str, str | int | float] | None = None


@dataclass(frozen=True)
class ShapeResult:
    """What was measured at one shape; times in microseconds per call, speedup = best baseline over candidate."""

    dims: dict[str, Any]
    split: str
    dtype: str
    correct: bool
    error: dict[str, float]
    timed: bool = False
    #: By name: ``median_us``, and of a compiled one what :attr:`evaluator.referee.sides.open_shape.Baseline.made` says.
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    best_baseline: str | None = None
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    decision: str | None = None
    log_ratios: tuple[float, ...] = ()
    disturbed_quads: int = 0
    #: The same as replays of a CUDA graph: ``baseline``, ``baseline_us``, ``candidate_us``, ``speedup``, ``ci95``,
    #: ``decision``, ``log_ratios`` and ``pairs``; or ``why_not``. None where it was not asked for.
    captured: dict[str, Any] | None = None
    #: The same with all calls of a block on one refreshed buffer, and ``launch``: ``captured`` or ``eager``.
    warm: dict[str, Any] | None = None
    #: Joules per call at a few shapes, where asked for: ``baseline`` and ``candidate`` (:class:`evaluator.energy.windows.Energy`),
    #: ``ratio`` of the two; or ``why_not``.
    energy: dict[str, Any] | None = None
    #: Clock of the multiprocessors meanwhile, lowest and highest in MHz, and why it was held back, if it was.
    clock: dict[str, Any] | None = None
    #: Where it was measured in several pairs of fresh processes: each pair's ``speedup``, number of ``quads`` (in the order of
    #: ``log_ratios``), ``fresh_baseline``, and whether it is ``counted``. Then ``speedup`` is the geometric mean of those that are,
    #: and ``ci95`` is over pairs.
    pairs: tuple[dict[str, Any], ...] = ()
    #: ``speedup`` and ``ci95`` in cycles, where the clock varied or was held back; ``decision`` holds in both.
    cycles: dict[str, Any] | None = None
    #: Of this shape in the traffic that the task or the request names; None where it names others.
    weight: float | None = None
    #: What the shape stands for: ``own``, ``near``, ``small``, ``traffic`` or, where the request names it, ``given``; an untimed
    #: adversarial shape has the name of its kind (``prime``...).
    stratum: str = "given"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class KernelShare:
    """One kernel or operation that was seen to run in a call of the candidate.

    Attributes:
        name: without template arguments.
        kind: ``own``, ``compiler``, ``library`` or ``none`` (allocations, views, copies between devices).
        share: of the time of that call, 0 to 1; the mean over the shapes that were looked at.
        calls: in one call of the module, at the shape where there were most.
    """

    name: str
    kind: str
    share: float
    calls: int


@dataclass(frozen=True)
class Verdict:
    """See design section 3; field names are the JSON's.

    ``summary`` has ``geomean_speedup`` with ``geomean_ci95``, ``worst_speedup`` (of all timed shapes), ``p5_speedup``,
    ``share_slower``, ``share_faster`` and ``shapes`` of the headline (:data:`HEADLINE`), the same in ``by_split``, and of each stratum in
    ``by_stratum``; ``traffic`` where the headline is weighted by it; ``overfit_index``.
    ``measured_at`` is when it was reached (UTC); ``reused`` says that it was not reached now but kept from then.
    """

    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    task: dict[str, str]
    candidate: dict[str, str]
    effort: str
    splits: tuple[str, ...]
    environment: dict[str, Any]
    shapes: tuple[ShapeResult, ...]
    summary: dict[str, Any]
    timing: dict[str, Any]
    setup_s: float | None
    first_call_s: float | None
    compile_s: float | None
    stages_s: dict[str, float]
    elapsed_s: float
    #: Which counter was read and what the idle device draws (``counter``, ``idle_w``), or ``why_not``; None where nobody asked.
    energy: dict[str, Any] | None = None
    detail: str = ""
    labels: tuple[str, ...] = ()
    kernels: tuple[KernelShare, ...] = ()
    #: In which it was judged, see :mod:`evaluator.precision`; empty where nothing came to be judged.
    precision: str = ""
    schema: str = SCHEMA
    measured_at: str = field(default_factory=_now)
    reused: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in WORDS:
            raise ValueError(f"unknown verdict word {self.verdict!r}")


#: In what is said of a compiled baseline whose module was cut into several graphs.
BREAKS = "graph break"


def compiled_words(shapes: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the compiler made of the reference, in a line for each of its modes that was a baseline at some of a verdict's shapes."""
    found: dict[str, Mapping[str, Any]] = {}
    for shape in shapes:
        for name, row in (shape.get("baselines") or {}).items():
            if "graph_breaks" in row:
                found.setdefault(str(name).partition("/")[0], row)
    return [f"{mode}: {_made_words(row)}" for mode, row in found.items()]


def _made_words(row: Mapping[str, Any]) -> str:
    breaks, kernels = row["graph_breaks"], row["kernels"]
    words = f"{breaks} {BREAKS}{'s' if breaks > 1 else ''}" if breaks else "one graph"
    if row["reasons"]:
        where = [f"line {line}: {reason}" if line else str(reason) for line, reason in row["reasons"]]
        words += f" ({'; '.join(where)})"
    if not kernels:
        return f"{words}, no kernel generated: calls of libraries alone"
    return f"{words}, {kernels} kernel{'s' if kernels > 1 else ''} generated"


def by_size(summary: Mapping[str, Any]) -> str:
    """What stands beside a headline: the geometric mean of each stratum that was timed; empty where there is one or none."""
    found = [
        f"{stratum} {figures['geomean_speedup']:.2f}x"
        for stratum, figures in (summary.get("by_stratum") or {}).items()
        if figures.get("geomean_speedup") is not None
    ]
    return ", ".join(found) if len(found) > 1 else ""


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Plain dictionaries and lists, ready for ``json.dumps``."""
    plain = asdict(verdict)
    for shape in plain["shapes"]:
        shape["log_ratios"] = list(shape["log_ratios"])
        shape["pairs"] = list(shape["pairs"])
        shape["ci95"] = None if shape["ci95"] is None else list(shape["ci95"])
    plain["findings"] = list(plain["findings"])
    plain["shapes"] = list(plain["shapes"])
    plain["labels"] = list(plain["labels"])
    plain["kernels"] = list(plain["kernels"])
    plain["splits"] = list(plain["splits"])
    return plain


def without_measurement(
    word: str,
    reason: str,
    *,
    task: dict[str, str],
    candidate: dict[str, str],
    effort: str,
    splits: tuple[str, ...] | list[str],
    environment: dict[str, Any],
    detail: str = "",
) -> Verdict:
    """A verdict on something that was never run: a task that was refused, a fault of ours, a line that cannot be read."""
    from evaluator.timing.statistics import summarize

    return Verdict(
        verdict=word,
        reason=reason,
        findings=(),
        task=task,
        candidate=candidate,
        effort=effort,
        splits=tuple(splits),
        environment=environment,
        shapes=(),
        summary={
            **summarize([], []),
            "traffic": None,
            "overfit_index": None,
            "by_stratum": {},
            "by_split": {},
        },
        timing={"protocol": "none", "quads": 0, "pairs": 0, "aa": None, "throttle": None},
        setup_s=None,
        first_call_s=None,
        compile_s=None,
        stages_s={},
        elapsed_s=0.0,
        detail=detail,
    )


def ran_no_kernel(verdict: Mapping[str, Any]) -> bool:
    """Whether a file that brings kernels was watched and ran none of them, nor what a compiler or a graph made of the reference."""
    fell_back = any(finding.get("rule") == "fallback_ran" for finding in verdict.get("findings") or ())
    ran = {"own_kernel", "compiler", "launch_overhead_removal"} & set(verdict.get("labels") or ())
    return fell_back and not ran
