"""Report on judging one step: each completion with its result, and the missing rewards with their reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from evaluator.verdict import Verdict
from rl.hacks import Opinion
from rl.prompts import Answer
from rl.reward import Score


@dataclass
class Sample:
    """One completion of a step and its result.

    Attributes:
        task: name of the task.
        answer: the parsed completion.
        score: score before the comparison with its group.
        reward: reward after it; None if the completion was not judged.
        verdict: the referee's verdict, or None.
        doubts: opinions of databases and judges.
    """

    task: str
    answer: Answer
    score: Score
    reward: float | None
    verdict: Verdict | None
    doubts: tuple[Opinion, ...] = ()

    @property
    def caught(self) -> bool:
        """Whether the referee, the similarity to a caught file or a reviewer caught it."""
        rejected = self.verdict is not None and self.verdict.verdict == "cheating"
        return rejected or any(doubt.word == "caught" for doubt in self.doubts)


@dataclass
class Report:
    """The results of one step.

    Attributes:
        samples: in the order of the completions.
        judged: number of verdicts received.
        waited_s: how long the trainer waited for the rewards, in seconds.
        repeated: completions that reused another completion's verdict, from this step or an earlier one.
        unanswered: candidates whose speed jumped and that still lack a judge's opinion.
        missing: reasons for missing rewards, each with its number of completions.
        unheard: number of those completions without any answer from an evaluator.
        cut: whether answers are missing for lack of evaluators or time, rather than because candidates break their evaluators.
    """

    samples: list[Sample] = field(default_factory=list)
    judged: int = 0
    waited_s: float = 0.0
    repeated: int = 0
    unanswered: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    unheard: int = 0
    cut: bool = False

    @property
    def asked(self) -> bool:
        """Whether the step had any candidate to judge."""
        return any(one.answer.source is not None for one in self.samples)

    @property
    def known(self) -> bool:
        """Whether any candidate has been judged."""
        return any(one.answer.source is not None and one.score.value is not None for one in self.samples)

    @property
    def heard(self) -> bool:
        """Whether any candidate got an answer, even that it cannot be judged; also True if there was none to judge."""
        return not self.asked or self.known or self.unheard < sum(self.missing.values())
