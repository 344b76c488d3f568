"""Queries memory once per job and stores the answer, so a resumed or replayed job shows its models the same bytes."""

from __future__ import annotations

from agent.memory.entries import Memory, MemoryEntry, Question, Recalled
from agent.store import JobStore

STEP = "memory.recalled"
DEFAULT_LIMIT = 3


def recall(store: JobStore, memory: Memory, question: Question, limit: int = DEFAULT_LIMIT) -> list[Recalled]:
    """Memory's answer for this job: the stored one, else a new one, which is then stored."""
    found = recalled(store)
    if found is None:
        answer = memory.similar(question, limit)
        value = [{"entry": one.entry.to_json(), "similarity": one.similarity} for one in answer]
        store.finish_step(STEP, value)
        found = recalled(store)  # concurrent requests may race: the first stored answer applies to all
    assert found is not None
    return found


def recalled(store: JobStore) -> list[Recalled] | None:
    """Memory's stored answer for this job; None if the job has not asked yet."""
    stored = store.step(STEP)
    if not isinstance(stored, list):
        return None
    return [Recalled(MemoryEntry.from_json(row["entry"]), row["similarity"]) for row in stored]
