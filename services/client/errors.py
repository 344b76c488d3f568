"""What can go wrong when a service is asked.

ClientError
├── UnsafeAddress     a key would travel in the clear, or the address is none
├── Unreachable       nobody answers, or not in time
├── UnexpectedAnswer  an answer that is not this service's
├── WaitedTooLong     the job or evaluation has not ended within the time given; it goes on
└── Problem           the service says no, in a problem document (RFC 9457)
    ├── Unauthorized  401: no key, or one that is not valid
    ├── Forbidden     403: the key may not
    ├── NotFound      404
    ├── Conflict      409: not yet, or another request with the same idempotency key
    ├── TooLarge      413
    ├── Invalid       422: `errors` names the fields
    ├── TooMany       429: `retry_after_s` says when to ask again
    └── ServiceFault  500 and above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ClientError(Exception):
    """Base of everything that the client raises on purpose; `str()` is a sentence for people."""


class UnsafeAddress(ClientError):
    """The request was not sent, since its key would have been readable on the way."""


class Unreachable(ClientError):
    """No answer came."""


class UnexpectedAnswer(ClientError):
    """An answer came that is not what this service says; perhaps something else listens there."""


class WaitedTooLong(ClientError):
    """What was waited for has not ended in time.

    Attributes:
        waited_for: its id.
    """

    def __init__(self, text: str, waited_for: str) -> None:
        super().__init__(text)
        self.waited_for = waited_for


@dataclass(frozen=True)
class WrongField:
    """One wrong field of a request: its dotted name and what is wrong with it."""

    field: str
    message: str


class Problem(ClientError):
    """The service's refusal.

    Attributes:
        status: the HTTP status.
        type: the problem's type, an address that says more.
        detail: one sentence.
        errors: fields at fault.
        retry_after_s: when the service says to ask again, if it does.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        type: str = "about:blank",  # noqa: A002 - RFC 9457's own name
        errors: Sequence[WrongField] = (),
        retry_after_s: float | None = None,
    ) -> None:
        fields = "".join(f"\n  {error.field}: {error.message}" for error in errors)
        super().__init__(f"{detail}{fields}")
        self.status = status
        self.type = type
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s


class Unauthorized(Problem):
    """No key was sent, or one that the service does not take."""


class Forbidden(Problem):
    """The key's scopes, or the service's door, do not allow it."""


class NotFound(Problem):
    """There is no such thing, or it is somebody else's."""


class Conflict(Problem):
    """It contradicts what is: not ready yet, or an idempotency key that was used for something else."""


class TooLarge(Problem):
    """The request is larger than the service takes."""


class Invalid(Problem):
    """A request that makes no sense to the service; `errors` names the fields."""


class TooMany(Problem):
    """A rate limit or a quota."""


class ServiceFault(Problem):
    """The service failed, or something in front of it did."""


OF_STATUS: dict[int, type[Problem]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Invalid,
    429: TooMany,
}
