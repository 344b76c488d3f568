"""Rules over opened shapes: one file each, all with ``check(probes)``.

A finding counts only if every probe shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evaluator.description import LintFinding
from evaluator.referee.lint.probe import Probe
from evaluator.referee.lint.rules import answers, inputs, outputs, rows, structure

Rule = Callable[[Sequence[Probe]], Iterable[LintFinding]]
RULES: tuple[Rule, ...] = (
    outputs.check_shapes,
    outputs.check_state,
    outputs.check_finite,
    answers.check,
    inputs.check,
    outputs.check,
    rows.check,
    structure.check,
)
#: Rules whose errors may hold at small sizes only.
OF_RESULTS: tuple[Rule, ...] = (outputs.check_finite, answers.check, inputs.check, outputs.check)
