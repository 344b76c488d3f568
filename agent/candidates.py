"""A candidate: one source file that claims to compute the task, its origin, and what the referee says of it first."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from agent.folding import folded
from evaluator.verdict import Verdict

ORIGINS = ("llm", "policy", "compiler", "human", "external")


@dataclass(frozen=True)
class Candidate:
    """One proposed source file.

    Attributes:
        source: the text of the candidate file. Untrusted; only the sandbox runs it.
        origin: kind of proposer, one of `ORIGINS`.
        label: a short name for tables, for example "compile max-autotune" or "layernorm_cpp".
        parent_sha256: the candidate this one was derived from, if any.
        note: one line of background for readers (license, settings, prompt).

    Raises:
        ValueError: if `origin` is not one of `ORIGINS`.
    """

    source: str
    origin: str
    label: str
    parent_sha256: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ValueError(f"origin {self.origin!r} is unknown; it is one of {', '.join(ORIGINS)}")

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the UTF-8 source: the candidate's identity within a job."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def shown(self) -> str:
        """The source as models see it, without the text of the library's kernels."""
        return folded(self.source)


@dataclass(frozen=True)
class Judged:
    """A candidate and its screen verdict."""

    candidate: Candidate
    verdict: Verdict

    @property
    def accepted(self) -> bool:
        """Whether the referee accepted it."""
        return self.verdict.verdict == "accepted"

    @property
    def speedup(self) -> float:
        """Geometric mean speedup over the best baseline; 0 if it was rejected or not timed."""
        return (self.verdict.summary.geomean_speedup or 0.0) if self.accepted else 0.0
