"""Asks memory once per job and keeps the answer, so that a resumed or replayed job shows its models the same bytes."""

from __future__ import annotations

from agent.memory.entries import Memory, MemoryEntry, Question, Recalled
from agent.store import JobStore

STEP = "memory.recalled"
DEFAULT_LIMIT = 3


def recall(store: JobStore, memory: Memory, question: Question, limit: int = DEFAULT_LIMIT) -> list[Recalled]:
    """What memory has for this job: the stored answer if it asked before, else a new one, which is stored."""
    found = recalled(store)
    if found is None:
        answer = memory.similar(question, limit)
        value = [{"entry": one.entry.to_json(), "similarity": one.similarity} for one in answer]
        store.finish_step(STEP, value)
        found = recalled(store)  # requests may be prepared side by side: the first answer holds for all
    assert found is not None
    return found


def recalled(store: JobStore) -> list[Recalled] | None:
    """What memory said when this job asked; None when it has not asked."""
    stored = store.step(STEP)
    if not isinstance(stored, list):
        return None
    return [Recalled(MemoryEntry.from_json(row["entry"]), row["similarity"]) for row in stored]
