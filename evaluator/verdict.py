"""The verdict's data types. :func:`as_json` turns a verdict into plain JSON values, :func:`from_json` is its inverse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from evaluator.counting import counted

SCHEMA = "kernelwright.verdict/1"
#: Increase this when a change makes new figures incomparable with old ones.
HARNESS_VERSION = "11"

WORDS = (
    "accepted", "incorrect", "compile_error", "runtime_error", "timeout", "out_of_memory", "cheating",
    "contract_violation", "task_rejected", "not_judged",
)  # fmt: skip
SEVERITIES = ("cheat", "error", "warning", "info")
#: Where a speedup comes from. Labels are observed inside the candidate's own process, so they only describe:
#: no score depends on them.
LABELS = (
    "own_kernel", "library_call", "graph_rewrite", "precision_change", "launch_overhead_removal", "compiler",
)  # fmt: skip
#: Rule of a finding: the GPU had no free memory. A later run may reach a verdict.
NO_ROOM = "no_device_memory"
#: Rule of a finding: times varied too much. A later run may reach a verdict.
UNSTEADY = "unsteady_machine"
#: Strata that make up a summary's headline. Strata in one group have equal weight; the first group with a
#: timed shape is used. Weighted traffic takes precedence over all of them.
HEADLINE = (("own", "near"), ("given",))
DECISIONS = ("faster", "same", "slower", "undecided")


@dataclass(frozen=True)
class Finding:
    """One observation by the referee: rule name, severity, and evidence in words."""

    rule: str
    severity: str
    evidence: str
    #: For a wrong result: roughly where and how it is wrong; see :mod:`evaluator.oracle.places`.
    places: dict[str, str | int | float] | None = None


@dataclass(frozen=True)
class ShapeResult:
    """Measurements at one shape. Times are microseconds per call; speedup = best baseline / candidate."""

    dims: dict[str, Any]
    split: str
    dtype: str
    correct: bool
    error: dict[str, float]
    timed: bool = False
    #: By baseline name: ``median_us``, and for compiled baselines also the fields of
    #: :attr:`evaluator.referee.sides.open_shape.Baseline.made`.
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    best_baseline: str | None = None
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    decision: str | None = None
    log_ratios: tuple[float, ...] = ()
    disturbed_quads: int = 0
    #: The same measurement as CUDA graph replays: ``baseline``, ``baseline_us``, ``candidate_us``,
    #: ``speedup``, ``ci95``, ``decision``, ``log_ratios`` and ``pairs``; or ``why_not``. None if not
    #: requested.
    captured: dict[str, Any] | None = None
    #: The same measurement with every call of a block on one refreshed buffer, plus ``launch``: ``captured``
    #: or ``eager``.
    warm: dict[str, Any] | None = None
    #: Joules per call at a few shapes, if requested: ``baseline`` and ``candidate``
    #: (:class:`evaluator.energy.Energy`) and their ``ratio``; or ``why_not``.
    energy: dict[str, Any] | None = None
    #: Lowest and highest multiprocessor clock during the measurement in MHz, and why it was throttled, if it
    #: was.
    clock: dict[str, Any] | None = None
    #: When several pairs of fresh processes were measured: each pair's ``speedup``, number of ``quads`` (in
    #: the order of ``log_ratios``), ``fresh_baseline``, and whether it is ``counted``. ``speedup`` is then
    #: the geometric mean over counted pairs, and ``ci95`` is an interval over pairs.
    pairs: tuple[dict[str, Any], ...] = ()
    #: ``speedup`` and ``ci95`` in clock cycles, if the clock varied or was throttled. ``decision`` then holds
    #: in time and in cycles.
    cycles: dict[str, Any] | None = None
    #: This shape's weight in the traffic of the task or request. None if the traffic does not name this
    #: shape.
    weight: float | None = None
    #: What the shape represents: ``own``, ``near``, ``small``, ``traffic``, or ``given`` if the request names
    #: it. For an untimed adversarial shape, the name of its kind (``prime``...).
    stratum: str = "given"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class KernelShare:
    """One kernel or operation that ran in a call of the candidate.

    Attributes:
        name: without template arguments.
        kind: ``own``, ``compiler``, ``library`` or ``none`` (allocations, views, copies between devices).
        share: fraction of the call's time, 0 to 1, averaged over the observed shapes.
        calls: count in one call of the module, at the shape where it is highest.
    """

    name: str
    kind: str
    share: float
    calls: int


@dataclass(frozen=True)
class Summary:
    """Figures for the headline (:data:`HEADLINE`); empty if nothing was timed.

    ``worst_speedup`` is over all timed shapes. The same figures are in ``by_split`` and, per stratum, in
    ``by_stratum``. ``traffic`` is set if traffic weights the headline. ``overfit_index`` compares splits.
    """

    geomean_speedup: float | None = None
    geomean_ci95: tuple[float, float] | None = None
    p5_speedup: float | None = None
    worst_speedup: float | None = None
    share_slower: float | None = None
    share_faster: float | None = None
    shapes: int = 0
    traffic: dict[str, Any] | None = None
    overfit_index: float | None = None
    by_stratum: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_split: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The result of one evaluation. Field names are the JSON keys.

    ``measured_at`` is when the verdict was reached (UTC). ``reused`` marks a stored verdict from that time.
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
    summary: Summary
    timing: dict[str, Any]
    setup_s: float | None
    first_call_s: float | None
    compile_s: float | None
    stages_s: dict[str, float]
    elapsed_s: float
    #: The energy counter and the idle device's power (``counter``, ``idle_w``), or ``why_not``. None if not
    #: requested.
    energy: dict[str, Any] | None = None
    detail: str = ""
    labels: tuple[str, ...] = ()
    kernels: tuple[KernelShare, ...] = ()
    #: The precision tier used for judging; see :mod:`evaluator.precision`. Empty if nothing was judged.
    precision: str = ""
    schema: str = SCHEMA
    measured_at: str = field(default_factory=_now)
    reused: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in WORDS:
            raise ValueError(f"unknown verdict word {self.verdict!r}")


#: Marks text about a compiled baseline whose module was split into several graphs.
BREAKS = "graph break"


def compiled_words(baselines: Iterable[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """What the compiler made of the reference: one line for each compile mode that was a baseline at any shape.

    Args:
        baselines: of each shape.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for of_shape in baselines:
        for name, row in of_shape.items():
            if "graph_breaks" in row:
                found.setdefault(str(name).partition("/")[0], row)
    return [f"{mode}: {_made_words(row)}" for mode, row in found.items()]


def _made_words(row: Mapping[str, Any]) -> str:
    breaks, kernels = row["graph_breaks"], row["kernels"]
    words = counted(breaks, BREAKS) if breaks else "one graph"
    if row["reasons"]:
        where = [f"line {line}: {reason}" if line else str(reason) for line, reason in row["reasons"]]
        words += f" ({'; '.join(where)})"
    if not kernels:
        return f"{words}, no kernel generated, only library calls"
    return f"{words}, {counted(kernels, 'kernel')} generated"


def by_size(by_stratum: Mapping[str, Any]) -> str:
    """The geometric mean of each timed stratum, shown beside the headline. Empty if fewer than two were timed."""
    found = [
        f"{stratum} {figures['geomean_speedup']:.2f}x"
        for stratum, figures in by_stratum.items()
        if figures.get("geomean_speedup") is not None
    ]
    return ", ".join(found) if len(found) > 1 else ""


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass as plain dictionaries and lists, ready for ``json.dumps``."""
    plain: dict[str, Any] = _listed(asdict(value))
    return plain


def _listed(value: Any) -> Any:
    """The same value with lists instead of tuples."""
    if isinstance(value, dict):
        return {name: _listed(one) for name, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


_Kind = TypeVar("_Kind", Finding, ShapeResult, Summary, KernelShare, Verdict)
#: For fields without a default that a stored verdict does not have.
_ABSENT: dict[type[Any], dict[str, Any]] = {
    Finding: {"rule": "", "severity": "", "evidence": ""},
    ShapeResult: {"dims": {}, "split": "", "dtype": "", "correct": True, "error": {}, "stratum": ""},
    KernelShare: {"name": "", "kind": "none", "share": 0.0, "calls": 0},
    Summary: {},
    Verdict: {
        "verdict": "", "reason": "", "task": {}, "candidate": {}, "effort": "", "splits": (), "environment": {}, "timing": {},
        "setup_s": None, "first_call_s": None, "compile_s": None, "stages_s": {}, "elapsed_s": 0.0, "measured_at": "",
    },
}  # fmt: skip
#: Fields that are tuples here and lists in JSON.
_TUPLES = ("ci95", "geomean_ci95", "labels", "log_ratios", "pairs", "splits")


def from_json(document: Mapping[str, Any]) -> Verdict:
    """The verdict that :func:`as_json` turned into JSON. Absent fields get their defaults, unknown keys are ignored.

    Raises:
        ValueError: the verdict word is missing or unknown.
    """
    parts = {
        "findings": tuple(_read(Finding, one) for one in document.get("findings") or ()),
        "shapes": tuple(_read(ShapeResult, one) for one in document.get("shapes") or ()),
        "kernels": tuple(_read(KernelShare, one) for one in document.get("kernels") or ()),
        "summary": _read(Summary, document.get("summary") or {}),
    }
    return _read(Verdict, {**document, **parts})


def _read(kind: type[_Kind], document: Mapping[str, Any]) -> _Kind:
    given = {each.name: document[each.name] for each in fields(kind) if document.get(each.name) is not None}
    given |= {name: tuple(given[name]) for name in _TUPLES if name in given}
    return kind(**{**_ABSENT[kind], **given})


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
    """A verdict without a run: a refused task, an internal error, or an unreadable line of a batch."""
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
        summary=Summary(),
        timing={"protocol": "none", "quads": 0, "pairs": 0, "aa": None, "throttle": None},
        setup_s=None,
        first_call_s=None,
        compile_s=None,
        stages_s={},
        elapsed_s=0.0,
        detail=detail,
    )


def ran_no_kernel(verdict: Verdict) -> bool:
    """Whether a file with kernels was observed to run none of them, and no compiled or captured reference either."""
    fell_back = any(finding.rule == "fallback_ran" for finding in verdict.findings)
    return fell_back and not {"own_kernel", "compiler", "launch_overhead_removal"} & set(verdict.labels)
