"""The interface of proposers and the context that they receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agent.candidates import Candidate
from agent.store import JobStore

if TYPE_CHECKING:
    from agent.background import Background
    from agent.budget import Ledger
    from evaluator.client import Referee
    from evaluator.description import Description
    from evaluator.sources import TaskSource


ASKING = ("llm", "policy")
"""Origins of proposers that ask language models."""


@dataclass(frozen=True)
class ProposalContext:
    """Everything a proposer may read or use.

    Attributes:
        task: the reference; text only, never imported here.
        description: the result of `Referee.describe` (dims, inputs, the visible shapes).
        device: "cpu" or "cuda".
        referee: for running tool programs (`run_tool`) in the sandbox. The job, not the proposer, judges candidates.
        store: for steps that must not be paid for twice, and for reading verdicts of earlier candidates.
        may_go_on: whether the job still accepts candidates; a waiting proposer polls it. Raises JobStopped if the job
            was cancelled.
        background: technique notes and lessons of earlier jobs, for prompts; None omits them.
        ledger: the caps that all models of the job share; None if only one proposer sends requests.
        others_wait: whether the job has other work while a proposer waits, see `Proposer.propose`.
        shapes: the sizes of splits that the job names; the referee draws those of the others.
    """

    task: TaskSource
    description: Description
    device: str
    referee: Referee
    store: JobStore
    may_go_on: Callable[[], bool] = field(default=lambda: True)
    background: Background | None = None
    ledger: Ledger | None = None
    others_wait: Callable[[], bool] = field(default=lambda: False)
    shapes: Mapping[str, list[dict[str, Any]]] | None = None

    @property
    def own_sizes(self) -> dict[str, Any]:
        """The sizes that weigh most in the task's traffic; without traffic the defaults of its dimensions."""
        if traffic := self.description.traffic:
            return dict(max(traffic, key=lambda row: float(row["weight"]))["dims"])
        return self._defaults

    @property
    def judges_own_sizes(self) -> bool:
        """Whether code for the module's own sizes alone can win anything: the referee draws them first in each split."""
        named = self.shapes or {}
        return any(
            split not in named or any({**self._defaults, **dims} == self.own_sizes for dims in named[split])
            for split in ("visible", "validation", "held_out")
        )

    @property
    def _defaults(self) -> dict[str, Any]:
        return {name: dim["default"] for name, dim in self.description.dims.items()}


class Proposer(Protocol):
    """A source of candidates.

    `propose` is a generator: the job judges each candidate before it requests the next one, so a proposer can read
    the verdict of its last candidate from `context.store` and react to it. It must be repeatable: a resumed job runs it
    from the beginning, and a candidate with a known sha256 costs nothing. If a proposer raises, the job records the
    error and continues with the others.
    """

    origin: str

    def propose(self, context: ProposalContext) -> Iterator[Candidate | None]:
        """Yield candidates, best guess first.

        A proposer that asks models (its origin is one of `ASKING`) sends its requests before anything else and yields None
        instead of blocking while `others_wait`.
        """
        ...
