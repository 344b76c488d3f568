"""What a job learnt, in a form that outlives it, and the little that the search asks of a memory across jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agent.store import JobStore


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


class Memory(Protocol):
    """Keeps lessons across jobs."""

    def remember(self, lesson: Lesson) -> None:
        """Keep a lesson; safe to repeat."""
        ...


class StoredLessons:
    """The memory of one job alone: lessons are steps of its store, for whoever reads finished jobs.

    Args:
        store: of the job.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def remember(self, lesson: Lesson) -> None:
        """See `Memory.remember`."""
        name = f"lesson/{lesson.after_sha256[:16]}/{lesson.before_sha256[:16]}"
        if self._store.step(name) is None:
            self._store.finish_step(name, lesson.to_json())
            self._store.event("lesson.learnt", {"text": lesson.sentence, "kind": lesson.kind})
