"""What a proposer is given and what it must offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agent.candidates import Candidate
from agent.store import JobStore

if TYPE_CHECKING:
    from agent.background import Background
    from agent.budget import Ledger
    from evaluator.client import Referee
    from evaluator.sources import TaskSource


@dataclass(frozen=True)
class ProposalContext:
    """Everything a proposer may look at.

    Attributes:
        task: the reference; text only, never imported here.
        description: what `Referee.describe` said of it (dims, inputs, the visible shapes).
        device: "cpu" or "cuda".
        referee: for running tool programs (`run_tool`) in the sandbox. Judging is the job's business.
        store: for steps that must not be paid for twice, and for reading verdicts of earlier candidates.
        may_go_on: whether the job still wants candidates; asked by a proposer that waits for something. Raises JobStopped
            when the job was cancelled.
        background: technique notes and what earlier jobs taught, for prompts; None leaves them out.
        ledger: the caps that the job's models share; None where one proposer alone asks.
        others_wait: whether there is something else to do for the job while a proposer waits, see `Asks`.
    """

    task: TaskSource
    description: dict[str, Any]
    device: str
    referee: Referee
    store: JobStore
    may_go_on: Callable[[], bool] = field(default=lambda: True)
    background: Background | None = None
    ledger: Ledger | None = None
    others_wait: Callable[[], bool] = field(default=lambda: False)


class Proposer(Protocol):
    """A source of candidates.

    `propose` is a generator: the job judges each candidate before it asks for the next one, so a proposer may read
    the verdict of what it just yielded from `context.store` and react to it. It must be repeatable: on resume it is
    started from the beginning, and a candidate with a known sha256 costs nothing. A proposer that raises loses only
    itself; the job records the error and goes on with the others.
    """

    origin: str

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield candidates, best guess first."""
        ...


@runtime_checkable
class Asks(Proposer, Protocol):
    """A proposer that waits for answers: it offers None, instead of waiting, while others have something to do."""

    def offers(self, context: ProposalContext) -> Iterator[Candidate | None]:
        """As `propose`; the first thing it does is to send its requests, and then it offers None while `others_wait`."""
        ...
