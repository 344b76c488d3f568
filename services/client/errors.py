"""Errors of requests to a service.

ClientError
├── UnsafeAddress     a key would be sent unencrypted, or the address is invalid
├── Unreachable       no response, or not in time
├── UnexpectedAnswer  a response that this service does not send
├── WaitedTooLong     the job or evaluation has not ended in the given time; it continues
└── Problem           the service refused, with a problem document (RFC 9457)
    ├── Unauthorized  401: no key, or an invalid one
    ├── Forbidden     403: the key lacks permission
    ├── NotFound      404
    ├── Conflict      409: not ready yet, or the idempotency key was used for another request
    ├── TooLarge      413
    ├── Invalid       422: `errors` names the fields
    ├── TooMany       429: `retry_after_s` says when to retry
    └── ServiceFault  500 and above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ClientError(Exception):
    """Base of all errors that the client raises on purpose; `str()` is a sentence for people."""


class UnsafeAddress(ClientError):
    """The request was not sent: its key would have been unencrypted, or its address is invalid."""


class Unreachable(ClientError):
    """No response arrived."""


class UnexpectedAnswer(ClientError):
    """The response is not one this service sends; another program may be listening there."""


class WaitedTooLong(ClientError):
    """The job or evaluation has not ended in time.

    Attributes:
        waited_for: the id of the job or evaluation.
    """

    def __init__(self, text: str, waited_for: str) -> None:
        super().__init__(text)
        self.waited_for = waited_for


@dataclass(frozen=True)
class WrongField:
    """One invalid field of a request: its dotted name and the error."""

    field: str
    message: str


class Problem(ClientError):
    """The service's refusal.

    Attributes:
        status: the HTTP status.
        type: the problem's type, a URI with further information.
        detail: one sentence.
        errors: the invalid fields.
        retry_after_s: seconds to wait before a retry, if the service says so.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        type: str = "about:blank",  # noqa: A002 - the name in RFC 9457
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
    """No key was sent, or the service does not accept it."""


class Forbidden(Problem):
    """The key's scopes or the service's access rules do not allow it."""


class NotFound(Problem):
    """The resource does not exist or belongs to another user."""


class Conflict(Problem):
    """Conflict with the current state: not ready yet, or the idempotency key was used for another request."""


class TooLarge(Problem):
    """The request is larger than the service accepts."""


class Invalid(Problem):
    """The service rejected the request as invalid; `errors` names the fields."""


class TooMany(Problem):
    """A rate limit or quota was reached."""


class ServiceFault(Problem):
    """The service, or a proxy in front of it, failed."""


OF_STATUS: dict[int, type[Problem]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Invalid,
    429: TooMany,
}
