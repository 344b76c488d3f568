"""Memory entries, and the interface of their storage.

Isolation: an entry is *shared* or belongs to one owner. Only entries from catalog tasks, in jobs without user-supplied text
or sizes, are shared; only they contain candidates' sources. An owner's entries contain features and sentences, and only that
owner's jobs see them. The storage must apply this rule before it ranks anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent.memory.features import Features

KINDS = ("faster", "failure")
MAX_SENTENCES = 6
MAX_SENTENCE_CHARACTERS = 300
MAX_SOURCE_CHARACTERS = 8_000


@dataclass(frozen=True)
class MemoryEntry:
    """One lesson.

    Attributes:
        kind: "faster" (a pair) or "failure".
        sha256: of the candidate concerned; for a pair, the faster one.
        task_name: name in the catalog; "" for a task outside it.
        task_sha256: of the task's text.
        device: "cpu" or "cuda".
        architecture: one of `agent.knowledge.architectures.ARCHITECTURES`; "" if unknown.
        features: what the task computes.
        sentences: the lesson, in this project's own words.
        ratio: for a pair, the slower time divided by the faster; None for a failure.
        slow: source of the slower candidate, or of the failed one; "" if it is the reference or may not be stored.
        fast: source of the faster candidate; "" if it may not be stored.

    Raises:
        ValueError: if the kind is unknown or the text exceeds this module's limits.
    """

    kind: str
    sha256: str
    task_name: str
    task_sha256: str
    device: str
    architecture: str
    features: Features
    sentences: tuple[str, ...]
    ratio: float | None = None
    slow: str = ""
    fast: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if len(self.sentences) > MAX_SENTENCES or any(
            len(s) > MAX_SENTENCE_CHARACTERS or not s.isprintable() for s in self.sentences
        ):
            raise ValueError(
                f"at most {MAX_SENTENCES} printable lines of {MAX_SENTENCE_CHARACTERS} characters"
            )
        if max(len(self.slow), len(self.fast)) > MAX_SOURCE_CHARACTERS:
            raise ValueError(f"a source has more than {MAX_SOURCE_CHARACTERS} characters")

    def without_sources(self) -> MemoryEntry:
        """A copy without sources and without the task name, which a user may have chosen."""
        return dataclasses.replace(self, slow="", fast="", task_name="")

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "features": self.features.to_json(),
            "sentences": list(self.sentences),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryEntry:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: if the data is not an entry.
        """
        parts = {
            **data,
            "features": Features.from_json(data["features"]),
            "sentences": tuple(data["sentences"]),
        }
        return cls(**parts)


@dataclass(frozen=True)
class Recalled:
    """A retrieved entry with its similarity, 0 to 1."""

    entry: MemoryEntry
    similarity: float


@dataclass(frozen=True)
class Question:
    """A job's query to memory.

    Attributes:
        features: of the job's task.
        device: return only entries for this device.
        architecture: prefer entries for this architecture among equals; "" if unknown.
    """

    features: Features
    device: str
    architecture: str = ""


class Memory(Protocol):
    """Stores entries across jobs. A job's access rights are fixed when its memory object is created."""

    def similar(self, question: Question, limit: int) -> list[Recalled]:
        """The most similar entries that this job may see, best first; an empty list if reading fails."""
        ...
