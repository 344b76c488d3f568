"""What a job learnt by undoing its winner's changes, in a form that outlives it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.memory.lessons import LESSON_STEPS

if TYPE_CHECKING:
    from agent.store import JobStore

ABLATED_STEPS = "made-by-ablation/"
"""Steps that name a candidate made by undoing a change, by its sha256: its failure teaches nobody."""


@dataclass(frozen=True)
class Lesson:
    """One sentence and what it rests on.

    Attributes:
        kind: "change_paid", "change_did_not_pay" or "change_is_needed".
        sentence: for a prompt of another job; holds no source and no name of the task, since those are a user's own.
        factor: measured speed with the change over without it; None where without it the result was wrong.
        before_sha256: the candidate without the change.
        after_sha256: the candidate with it.
    """

    kind: str
    sentence: str
    factor: float | None
    before_sha256: str
    after_sha256: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return asdict(self)


def keep(store: JobStore, lesson: Lesson) -> None:
    """Keep a lesson as a step of the job; `agent.memory.lessons` makes entries of them when the job has ended."""
    name = f"{LESSON_STEPS}{lesson.after_sha256[:16]}/{lesson.before_sha256[:16]}"
    if store.step(name) is None:
        store.finish_step(name, lesson.to_json())
        store.event("lesson.learnt", {"text": lesson.sentence, "kind": lesson.kind})
