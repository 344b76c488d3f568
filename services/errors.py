"""Errors between a request and a job.

ServiceError
├── NotFound        no such job, candidate, evaluation or bundle          (404)
├── NotReady        it exists but is not finished                         (409)
├── Conflict        the same idempotency key with another body            (409)
├── Forbidden       this caller may not do that                           (403)
├── QuotaExceeded   the user's quota is used up                           (429, with usage and reset time)
├── Refused         a well-formed request for something unsupported       (422, names the fields)
└── LeaseLost       another worker owns the row now; stop writing to it   (never leaves a worker)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors that this package raises on purpose; `str()` is a sentence for people, `status` the HTTP status."""

    status: ClassVar[int] = 500


class NotFound(ServiceError):
    """The requested object does not exist."""

    status = 404


class NotReady(ServiceError):
    """The requested object is not available, or not yet."""

    status = 409


class Conflict(ServiceError):
    """The request contradicts an earlier one."""

    status = 409


class Forbidden(ServiceError):
    """The caller is known but may not do this."""

    status = 403


@dataclass(frozen=True)
class Spent:
    """Usage against one quota.

    Attributes:
        quota: its name, as in `services.users.quotas.Quotas`.
        limit: the limit.
        used: the amount used.
        resets_at: when the count resets; None if a running or waiting job must end first.
    """

    quota: str
    limit: float
    used: float
    resets_at: datetime | None


class QuotaExceeded(ServiceError):
    """The request would exceed a quota of its user.

    Args:
        message: one sentence.
        spent: the quota and its usage.
    """

    status = 429

    def __init__(self, message: str, spent: Spent) -> None:
        super().__init__(message)
        self.spent = spent


@dataclass(frozen=True)
class FieldError:
    """One wrong field of a request: its dotted name and one sentence."""

    field: str
    message: str


class Refused(ServiceError):
    """The request is well formed but cannot be served.

    Args:
        errors: the invalid fields.
    """

    status = 422

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = tuple(errors)


class LeaseLost(ServiceError):
    """The lease on a row expired or was revoked; this worker must discard its results."""
