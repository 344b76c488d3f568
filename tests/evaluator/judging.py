"""Judges small inline tasks for correctness alone: the adversarial split is never timed, so no compiler runs.

:func:`until_timed` is for what has to be timed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

#: What the reason says where the machine was too noisy.
UNTIMED = "nothing can be timed"
_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def task(body: str) -> TaskSource:
    """A task file from its body, with the usual imports."""
    return TaskSource("inline", _HEAD + textwrap.dedent(body))


def candidate(body: str) -> CandidateSource:
    """A candidate file from its body, with the usual imports."""
    return CandidateSource(_HEAD + textwrap.dedent(body), "external", "inline")


def replaced(source: TaskSource, *changes: tuple[str, str]) -> CandidateSource:
    """The reference as a candidate, with some of its text changed: each change must occur."""
    text = source.source.replace("class Model(", "class ModelNew(")
    text = text.replace("super(Model,", "super(ModelNew,")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return CandidateSource(text, "external", "inline")


def judge(
    referee: Referee,
    source: TaskSource,
    proposal: CandidateSource,
    shapes: list[dict[str, Any]] | None = None,
) -> Verdict:
    """The verdict on correctness at some shapes (by default the task's only one)."""
    return referee.evaluate(
        source, proposal, splits=["adversarial"], shapes={"adversarial": shapes or [{}]}, deadline_s=60.0
    )


def until_timed(evaluate: Callable[[], Verdict]) -> Verdict:
    """The verdict of ``evaluate``, which is called again, twice at most, where the machine was too noisy to time on; then the test fails."""
    for _ in range(3):
        verdict = evaluate()
        if not (verdict.verdict == "not_judged" and UNTIMED in verdict.reason):
            return verdict
    pytest.fail(f"the machine was too noisy three times: {verdict.reason}")


def rules(verdict: Verdict) -> list[str]:
    """Names of the findings."""
    return [finding.rule for finding in verdict.findings]
