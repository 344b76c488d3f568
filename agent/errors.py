"""What can go wrong in the agent.

AgentError
├── ProposalFailed          a proposer could not do its work (the job goes on without it)
│   └── ProviderError       the language model's API refused, failed or answered nonsense
├── AnswersAwaited          a batch has no answers yet (the job is `waiting`, and goes on when it is run again)
├── AssemblyError           the winner cannot be turned into optimized.py
├── UnreadableBundle        a bundle is not there, damaged or edited
├── CannotApply             a bundle does not go into the user's model
└── StoreCorrupt            a job folder holds something that is not ours
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of every error the agent raises on purpose."""


class ProposalFailed(AgentError):
    """A proposer could not do its work; the message says why in one sentence."""


class ProviderError(ProposalFailed):
    """The language model's API refused, failed or answered something that is not its protocol.

    Attributes:
        kind: "authentication", "rate_limit", "server", "request" and "no_room" (the prompt is longer than the model reads) cost nothing; "timeout", "cut" (the answer broke off),
            "too_long" and "protocol" may have been billed; "waiting" (a batch without answers yet).
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class AnswersAwaited(AgentError):
    """Requests of a batch have no answers yet; the message says where they are expected."""


class AssemblyError(AgentError):
    """The winner's source cannot be embedded in optimized.py; the message says what stands in the way."""


class StoreCorrupt(AgentError):
    """A file of a job folder cannot be read as what it should be."""


class UnreadableBundle(AgentError):
    """This is no bundle, or not a whole one; the message says what is wrong with it and what to do."""


class CannotApply(AgentError):
    """The bundle could not be put into the model; the message says why and what to do."""
