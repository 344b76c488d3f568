"""Errors of the agent.

AgentError
├── ProposalFailed          a proposer failed (the job continues without it)
│   └── ProviderError       the language model's API refused, failed or broke its protocol
├── AnswersAwaited          a batch has no answers yet (the job is `waiting`; run it again to continue)
├── AssemblyError           the winner cannot be turned into optimized.py
├── UnreadableBundle        a bundle is missing, damaged or edited
├── CannotApply             a bundle cannot be applied to the user's model
└── StoreCorrupt            a file in a job folder is not in the expected format
"""

from __future__ import annotations


class AgentError(Exception):
    """Base class of all errors that the agent raises deliberately."""


class ProposalFailed(AgentError):
    """A proposer failed; the message gives the reason in one sentence."""


class ProviderError(ProposalFailed):
    """The language model's API refused the request, failed or broke its protocol.

    Attributes:
        kind: "authentication", "rate_limit", "server", "request" and "no_room" (the prompt exceeds the model's context)
            cost nothing; "timeout", "cut" (the connection broke), "too_long" and "protocol" may have been billed;
            "waiting" means that a batch has no answer yet.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class AnswersAwaited(AgentError):
    """Requests of a batch have no answers yet; the message says where to put them."""


class AssemblyError(AgentError):
    """The winner's source cannot be embedded in optimized.py; the message says why."""


class StoreCorrupt(AgentError):
    """A file in a job folder is not in the expected format."""


class UnreadableBundle(AgentError):
    """Not a bundle, or an incomplete one; the message says what is wrong and what to do."""


class CannotApply(AgentError):
    """The bundle cannot be applied to the model; the message says why and what to do."""
