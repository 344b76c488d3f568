"""Lints a task: opens a few small shapes in its sandboxed process and applies every rule."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from evaluator.description import LintFinding, LintReport
from evaluator.errors import RoleFailure
from evaluator.referee.lint import space
from evaluator.referee.lint.probe import Probe
from evaluator.referee.lint.refusals import finding_of
from evaluator.referee.lint.rules import OF_RESULTS, RULES, Rule, structure
from evaluator.referee.lint.rules.answers import variation
from evaluator.referee.lint.rules.inputs import remarks
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.shapes.space import Dims, defaults
from evaluator.sources import TaskSource

#: After this many seconds, no further shape of the range is tried and no further rule starts.
#: Corners are also opened when a candidate is judged, so a task that is slow here does not wait for them.
_CORNERS_UNTIL_S, _RULES_UNTIL_S = 1.5, 20.0
#: Limit for inputs and outputs that rules inspect on the host.
_MOST_BYTES = 64 << 20
#: Failures with a verdict word of their own; any other one refuses the task.
_OWN_WORDS = ("timeout", "out_of_memory", "not_judged")
#: If the output says nothing at all, further findings about inputs, rows and branches follow from that.
_CAUSES = (
    "empty_output",
    "shape_by_values",
    "changes_state",
    "not_finite",
    "zeros_pass",
    "constant_passes",
    "inputs_never_vary",
)


def refusal(task: TaskSource, device: str, failure: RoleFailure) -> LintReport:
    """The report on a task that could not even be opened."""
    finding = finding_of(failure)
    return _report(task, device, [finding], detail=failure.detail, word=failure.word)


def lint(session: TaskSession, device: str, *, inferred: bool = False) -> LintReport:
    """Applies every rule to a task whose process runs.

    Args:
        session: of the task; its process may be dead afterwards if the task killed it.
        device: name of the device, for the report.
        inferred: the space was inferred, not declared: also test equal sizes, which hide what different sizes
            show.
    """
    started = time.monotonic()
    findings: list[LintFinding] = list(space.check_declared(session))
    dims: list[Dims] = []
    facts: list[dict[str, object]] = []
    word, detail = "", ""
    try:
        dims = space.typical(session)
        with ExitStack() as stack:
            probes = []
            for each in dims:
                try:
                    opened = stack.enter_context(session.trial(each))
                    if (
                        opened.inputs.input_bytes + sum(m.span_bytes for m in opened.output_metas)
                        > _MOST_BYTES
                    ):
                        findings.append(_too_large(opened))
                        continue
                    probes.append(Probe.of(session, opened))
                except RoleFailure as failure:
                    word, detail = failure.word, failure.detail
                    findings.append(space.at_shape(session, each, failure))
                    raise
            if len(probes) == 2 and all(_integers(probe.dims) for probe in probes):
                findings += space.check_effect(session, probes[0].shape, probes[1].shape)
            found = _of_rules(probes, started + _RULES_UNTIL_S)
            findings += _that_hold(session, dims, found) if inferred else found
            findings += _at_equal_sizes(session) if inferred else []
            # Outputs of several shapes have no common spread.
            if not any(finding.rule == "shape_by_values" for finding in found):
                facts = [
                    {"shape": probe.where, "variation": variation(probe), "inputs": remarks(probe)}
                    for probe in probes
                ]
                if facts:
                    facts[0]["untested"] = structure.untested(probes[0])
        findings += space.check_corners(session, dims, started + _CORNERS_UNTIL_S)
    except RoleFailure as failure:
        if not detail and not any(finding.severity == "error" for finding in findings):
            findings.append(finding_of(failure))
            word, detail = failure.word, failure.detail
    return replace(
        _report(session.task, device, findings, detail=detail, word=word),
        shapes=tuple(dict(each) for each in dims),
        facts=tuple(facts),
        elapsed_s=round(time.monotonic() - started, 2),
    )


def _that_hold(session: TaskSession, dims: list[Dims], found: list[LintFinding]) -> list[LintFinding]:
    """Keeps findings at small sizes only if they also hold at the file's own sizes.

    With an inferred space, small sizes need not occur in use.
    """
    own = defaults(session.space)
    if own in dims or all(_holds_anywhere(finding) for finding in found):
        return found
    there = set()
    if session.drawn.fitting([own], _MOST_BYTES // 2):
        with session.trial(own) as opened:
            probes = [Probe.of(session, opened)]
            there = {finding.rule for finding in _of_rules(probes, math.inf, OF_RESULTS)}
    return [finding for finding in found if _holds_anywhere(finding) or finding.rule in there]


def _holds_anywhere(finding: LintFinding) -> bool:
    """Whether a finding is not limited to small sizes, or refuses nothing."""
    return finding.severity != "error" or finding.rule in ("shape_by_values", "changes_state")


def _too_large(shape: OpenShape) -> LintFinding:
    length = shape.inputs.input_bytes + sum(meta.span_bytes for meta in shape.output_metas)
    return LintFinding(
        "not_looked_at",
        "warning",
        f"at {shape.where} inputs and outputs take {length >> 20} MiB, and the task has no smaller size: it was not tested whether an answer "
        "that needs no computation would pass",
        "let the sizes vary (DIMS), so that lint finds a small one",
    )


def _of_rules(probes: list[Probe], until_s: float, rules: Sequence[Rule] = RULES) -> list[LintFinding]:
    """What the rules find, without what only follows from the first cause."""
    found: list[LintFinding] = []
    for rule in rules if probes else ():
        found += rule(probes)
        if time.monotonic() > until_s or any(finding.rule in _CAUSES for finding in found):
            break
    return found


def _at_equal_sizes(session: TaskSession) -> list[LintFinding]:
    """Problems that only show when sizes that are equal in the file are equal."""
    equal = space.as_equal_as_the_file(session)
    if equal is None:
        return []
    try:
        with session.trial(equal) as opened:
            return list(structure.check_broadcast([Probe.without_contents(session, opened)]))
    except RoleFailure as failure:
        return [space.at_shape(session, equal, failure)]


def _integers(dims: Dims) -> bool:
    return any(isinstance(value, int) and not isinstance(value, bool) for value in dims.values())


def _report(
    task: TaskSource, device: str, findings: list[LintFinding], *, detail: str = "", word: str = ""
) -> LintReport:
    refused = any(finding.severity == "error" for finding in findings)
    verdict = "task_rejected" if refused else ""
    if refused and word in _OWN_WORDS:
        verdict = word
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: finding.severity)
    return LintReport(
        task=task.as_fields(),
        device=device,
        findings=tuple(ordered),
        verdict=verdict,
        detail=detail[:4000],
    )
