"""What is judged: the text of a task and the text of a candidate, named by their hashes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


def sha256_of(text: str) -> str:
    """Hex SHA-256 of the UTF-8 bytes of ``text``; surrogates are kept so that any text has a hash."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class TaskSource:
    """A task file: ``Model``, ``get_inputs``, ``get_init_inputs`` and perhaps ``DIMS``."""

    name: str
    source: str

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self.source)


@dataclass(frozen=True)
class CandidateSource:
    """A candidate file: ``ModelNew``.

    Attributes:
        source: its text.
        origin: what proposed it.
        label: for people.
        delivered: it is what a job delivers or delivered, so its module is timed by the call that it has of its own; see
            :mod:`evaluator.roles.dispatch`.
    """

    source: str
    origin: str = "external"
    label: str = ""
    delivered: bool = False

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self.source)


def task_folder(sha256: str) -> str:
    """Name of the folder, in a referee's store, of what was compiled for a task."""
    return f"task-{sha256[:32]}"
