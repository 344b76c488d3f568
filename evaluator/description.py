"""What the referee says about a task before it judges candidates: the lint report, and the description with the shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from evaluator.shapes.inference.result import Inferred
from evaluator.verdict import as_json


@dataclass(frozen=True)
class LintFinding:
    """One problem of a task.

    Attributes:
        rule: its name, as in the file of the rule.
        severity: ``error`` refuses the task, ``warning`` marks it.
        sentence: what is wrong.
        mending: how to fix it.
    """

    rule: str
    severity: str
    sentence: str
    mending: str


@dataclass(frozen=True)
class LintReport:
    """What lint found.

    Attributes:
        task: name and hash of the task.
        device: on which it ran.
        findings: errors first.
        shapes: at which the task was called.
        facts: figures behind the findings, by shape, for people.
        elapsed_s: seconds that it took.
        verdict: ``not_judged`` if lint itself could not run; otherwise ``task_rejected`` or empty.
        detail: what the task's process printed or raised (untrusted), if that is the cause.
        source: the file to judge candidates against: the task's own, with the inferred space added.
        inferred: which sizes were found to vary; None if the file declares its space.
    """

    task: dict[str, str] = field(default_factory=dict)
    device: str = ""
    findings: tuple[LintFinding, ...] = ()
    shapes: tuple[dict[str, Any], ...] = ()
    facts: tuple[dict[str, Any], ...] = ()
    elapsed_s: float = 0.0
    verdict: str = ""
    detail: str = ""
    source: str = ""
    inferred: Inferred | None = None

    @property
    def ok(self) -> bool:
        """Whether the task may be used."""
        return not self.verdict

    @property
    def varies_by(self) -> float:
        """How much outputs differ between contents, relative to their size, at the shape where they differ most; 1
        if unknown.
        """
        return max((fact["variation"] for fact in self.facts if "variation" in fact), default=1.0)

    @property
    def reason(self) -> str:
        """Why the task is refused, in one sentence, and how to fix it; empty if it is not."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        return f"{errors[0].sentence}; {errors[0].mending}" if errors else ""

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists."""
        inferred = self.inferred.as_json() if self.inferred else None
        return {"ok": self.ok, "reason": self.reason, **as_json(self), "inferred": inferred}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> LintReport:
        """A report from the output of :meth:`as_json`; absent keys get their defaults.

        Raises:
            KeyError, TypeError: it is not one.
        """
        findings = tuple(LintFinding(**finding) for finding in plain["findings"])
        given = _given(cls, plain, tuples=("shapes", "facts"))
        return cls(**{**given, "findings": findings, "inferred": _inferred(plain)})


@dataclass(frozen=True)
class Description:
    """A task's shape space, and the shapes of every split except the held-out one. Field names are the JSON keys.

    Attributes:
        lint: the lint report.
        verdict, reason, detail: why the task is refused; no other field of the space is set then.
        source, inferred: as in :class:`LintReport`.
        dims: by name, ``min``, ``max``, ``multiple_of`` and ``default``, or ``choices`` and ``default``.
        direction: ``forward`` or ``forward_backward``.
        inputs: ``dtype`` and ``shape`` of each input at the task's own size, and what every content ``keeps``; for
            other arguments their ``value`` and ``tensors``.
        outputs: ``dtype`` and ``shape`` of each output.
        parameters: number of elements of all weights.
        shapes, strata: by split, the shapes and why each was drawn.
        further: extra validation shapes, for portfolios.
        processors: multiprocessors of the GPU, or cores.
        traffic: shapes (``dims``) with their ``weight``.
    """

    lint: LintReport | None = None
    verdict: str | None = None
    reason: str = ""
    detail: str = ""
    source: str = ""
    inferred: Inferred | None = None
    dims: dict[str, dict[str, Any]] = field(default_factory=dict)
    direction: str = ""
    training: bool = False
    precision: str = ""
    inputs: tuple[dict[str, Any], ...] = ()
    outputs: tuple[dict[str, Any], ...] = ()
    parameters: int = 0
    shapes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strata: dict[str, list[str]] = field(default_factory=dict)
    further: tuple[dict[str, Any], ...] = ()
    processors: int = 0
    device_name: str = ""
    traffic: tuple[dict[str, Any], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether candidates can be judged against the task."""
        return not self.verdict

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists."""
        inferred = self.inferred.as_json() if self.inferred else None
        lint = self.lint.as_json() if self.lint else None
        return {"ok": self.ok, **as_json(self), "lint": lint, "inferred": inferred}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Description:
        """A description from the output of :meth:`as_json`; absent keys get their defaults."""
        given = _given(cls, plain, tuples=("inputs", "outputs", "further", "traffic"))
        lint = LintReport.from_json(given["lint"]) if "lint" in given else None
        return cls(**{**given, "lint": lint, "inferred": _inferred(plain)})


def _given(
    kind: type[LintReport | Description], plain: Mapping[str, Any], tuples: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of a dataclass that JSON has, lists as tuples where it has tuples."""
    given = {one.name: plain[one.name] for one in fields(kind) if plain.get(one.name) is not None}
    return given | {name: tuple(given[name]) for name in tuples if name in given}


def _inferred(plain: Mapping[str, Any]) -> Inferred | None:
    found = plain.get("inferred")
    return Inferred.from_json(found) if found else None
