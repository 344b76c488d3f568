"""What is remembered, and the interface of what keeps it.

Isolation: an entry is *shared* or belongs to one owner. Shared are only entries made from tasks of the catalogue in jobs to
which nobody added a text or a size of their own; they alone carry candidates' sources. What belongs to an owner holds
features and sentences and reaches that owner's jobs alone. Whoever keeps entries decides by this before anything is ranked.
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
    """One thing that was learnt.

    Attributes:
        kind: "faster" (a pair) or "failure".
        sha256: of the candidate that it is about, the faster one of a pair.
        task_name: name in the catalogue, or "" for a task that is not in it.
        task_sha256: of the task's text.
        device: "cpu" or "cuda".
        architecture: one of `agent.knowledge.architectures.ARCHITECTURES`, or "" where it is not known.
        features: what the task computes.
        sentences: what to learn from it, in words of this project's own.
        ratio: of a pair, time of the slower over that of the faster one; None of a failure.
        slow: source of the slower candidate; "" where it is the reference or may not be kept.
        fast: source of the faster one, or "" likewise. Of a failure the candidate that failed is `slow`.

    Raises:
        ValueError: an unknown kind, or more text than the limits of this module allow.
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
        """The same with sentences alone, and without the name that somebody gave their task."""
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
            KeyError, TypeError, ValueError: it is no entry.
        """
        parts = {
            **data,
            "features": Features.from_json(data["features"]),
            "sentences": tuple(data["sentences"]),
        }
        return cls(**parts)


@dataclass(frozen=True)
class Recalled:
    """An entry that was found, with its similarity, 0 to 1."""

    entry: MemoryEntry
    similarity: float


@dataclass(frozen=True)
class Question:
    """What a job asks memory.

    Attributes:
        features: of the job's task.
        device: entries of this device only.
        architecture: those of the same architecture come first among equals; "" where it is not known.
        without_task: leave out entries of the task with this sha256, for measurements that must not know the answer.
    """

    features: Features
    device: str
    architecture: str = ""
    without_task: str = ""


class Memory(Protocol):
    """Keeps entries over jobs. What a job may see was settled when its memory was made."""

    def similar(self, question: Question, limit: int) -> list[Recalled]:
        """The most similar entries that this job may see, best first; reading fails softly with an empty list."""
        ...
