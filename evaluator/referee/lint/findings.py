"""Lint's results: findings of a rule, each with what is wrong and how to fix it, and the report of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: ``error`` refuses the task, ``warning`` marks it.
SEVERITIES = ("error", "warning")


@dataclass(frozen=True)
class LintFinding:
    """One problem of a task.

    Attributes:
        rule: its name, as in the file of the rule.
        severity: one of :data:`SEVERITIES`.
        sentence: what is wrong.
        mending: how to fix it.
    """

    rule: str
    severity: str
    sentence: str
    mending: str


@dataclass(frozen=True)
class Report:
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
    """

    task: dict[str, str]
    device: str
    findings: tuple[LintFinding, ...]
    shapes: tuple[dict[str, Any], ...] = ()
    facts: tuple[dict[str, Any], ...] = ()
    elapsed_s: float = 0.0
    verdict: str = ""
    detail: str = ""

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


def report_json(report: Report) -> dict[str, Any]:
    """A report as JSON-able dictionaries and lists."""
    plain = asdict(report)
    for name in ("findings", "shapes", "facts"):
        plain[name] = list(plain[name])
    return {"ok": report.ok, "reason": report.reason, **plain}


def read_report(fields: Mapping[str, Any]) -> Report:
    """A report from the output of :func:`report_json`.

    Raises:
        KeyError, TypeError, ValueError: it is not one.
    """
    return Report(
        task=dict(fields["task"]),
        device=str(fields["device"]),
        findings=tuple(LintFinding(**finding) for finding in fields["findings"]),
        shapes=tuple(fields["shapes"]),
        facts=tuple(fields["facts"]),
        elapsed_s=float(fields["elapsed_s"]),
        verdict=str(fields["verdict"]),
        detail=str(fields["detail"]),
    )
