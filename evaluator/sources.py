"""What is judged: the sources of a task and a candidate, identified by their hashes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


def sha256_of(text: str) -> str:
    """Hex SHA-256 of the UTF-8 bytes of ``text``; surrogates are kept so that any text has a hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def lines_of_code(source: str | None) -> int | None:
    """Count the lines that are neither blank nor only a comment; None without a source."""
    if source is None:
        return None
    return sum(
        1 for line in source.splitlines() if line.strip() and not line.lstrip().startswith(("#", "//"))
    )


@dataclass(frozen=True)
class TaskSource:
    """A task file: ``Model``, ``get_inputs``, ``get_init_inputs`` and perhaps ``DIMS``."""

    name: str
    source: str

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self.source)

    def as_fields(self) -> dict[str, str]:
        """How verdicts and lint reports name it."""
        return {"name": self.name, "sha256": self.sha256}


@dataclass(frozen=True)
class CandidateSource:
    """A candidate file: ``ModelNew``.

    Attributes:
        source: its text.
        origin: what proposed it.
        label: for people.
        delivered: a job delivers or delivered it, so its module is timed with its own custom call; see
            :mod:`evaluator.roles.dispatch`.
    """

    source: str
    origin: str = "external"
    label: str = ""
    delivered: bool = False

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self.source)

    def as_fields(self) -> dict[str, str]:
        """How verdicts name it."""
        return {"sha256": self.sha256, "origin": self.origin, "label": self.label}


def task_folder(sha256: str) -> str:
    """Name of the folder, in a referee's store, for files compiled for a task."""
    return f"task-{sha256[:32]}"
