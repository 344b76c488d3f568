"""What happened in one step of judging: each completion with what it got, and what is missing and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from evaluator.verdict import Verdict
from rl.hacks import Opinion
from rl.prompts import Answer
from rl.reward import Score


@dataclass
class Sample:
    """One completion of a step and what it got.

    Attributes:
        task: name of the task.
        answer: what the model wrote, taken apart.
        score: before the comparison with its group.
        reward: after it; None for what was not judged.
        verdict: the referee's, None without one.
        doubts: of databases and judges.
    """

    task: str
    answer: Answer
    score: Score
    reward: float | None
    verdict: Verdict | None
    doubts: tuple[Opinion, ...] = ()


@dataclass
class Report:
    """What happened in one step.

    Attributes:
        samples: in the order of the completions.
        judged: verdicts that were asked for and came.
        waited_s: how long the trainer waited for the rewards.
        repeated: completions that were answered by another one's verdict, of this step or before.
        unanswered: candidates whose speed jumped, and of which a judge has still to say what it thinks.
        missing: reasons of completions without a reward, with how many.
        unheard: of these, completions about which nobody has answered.
        cut: whether that was for want of evaluators or of time, and not by what those candidates do to whoever judges them.
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
        """Whether there was anything to judge."""
        return any(one.answer.source is not None for one in self.samples)

    @property
    def known(self) -> bool:
        """Whether any candidate has been judged."""
        return any(one.answer.source is not None and one.score.value is not None for one in self.samples)

    @property
    def heard(self) -> bool:
        """Whether anybody has said anything about any candidate, and be it that it cannot be judged; or nothing was asked."""
        return not self.asked or self.known or self.unheard < sum(self.missing.values())
