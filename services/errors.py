"""What can go wrong between a request and a job.

ServiceError
├── NotFound        no such job, candidate, evaluation or bundle          (404)
├── NotReady        it exists but is not finished                         (409)
├── Conflict        the same idempotency key with another body            (409)
├── Forbidden       this caller may not do that                            (403)
├── QuotaExceeded   the user has used what it may use                      (429, says how much and until when)
├── Refused         a well-formed request that asks for what we lack      (422, names the fields)
└── LeaseLost       another worker owns the row now; stop writing to it   (never leaves a worker)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


class ServiceError(Exception):
    """Base of everything this package raises on purpose; `str()` is a sentence for people."""


class NotFound(ServiceError):
    """The thing asked for does not exist."""


class NotReady(ServiceError):
    """The thing asked for exists but has not been made yet."""


class Conflict(ServiceError):
    """The request contradicts an earlier one."""


class Forbidden(ServiceError):
    """Whoever asks is known, and may not do this."""


@dataclass(frozen=True)
class Spent:
    """How far a quota is used.

    Attributes:
        quota: its name, as in `services.users.quotas.Quotas`.
        limit: how much may be used.
        used: how much is.
        resets_at: when the count begins anew; None where something must end first.
    """

    quota: str
    limit: float
    used: float
    resets_at: datetime | None


class QuotaExceeded(ServiceError):
    """A request that would go beyond what its user may use.

    Args:
        message: one sentence.
        spent: the quota in question.
    """

    def __init__(self, message: str, spent: Spent) -> None:
        super().__init__(message)
        self.spent = spent


@dataclass(frozen=True)
class FieldError:
    """One wrong field of a request: its dotted name and one sentence."""

    field: str
    message: str


class Refused(ServiceError):
    """A request that is well formed but cannot be served.

    Args:
        errors: the fields at fault.
    """

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = tuple(errors)


class LeaseLost(ServiceError):
    """The lease on a row ran out or was taken away, so this worker's results are no longer wanted."""
