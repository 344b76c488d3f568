"""What can go wrong between a request and a job.

ServiceError
├── NotFound        no such job, candidate, evaluation or bundle          (404)
├── NotReady        it exists but is not finished                         (409)
├── Conflict        the same idempotency key with another body            (409)
├── Refused         a well-formed request that asks for what we lack      (422, names the fields)
└── LeaseLost       another worker owns the row now; stop writing to it   (never leaves a worker)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ServiceError(Exception):
    """Base of everything this package raises on purpose; `str()` is a sentence for people."""


class NotFound(ServiceError):
    """The thing asked for does not exist."""


class NotReady(ServiceError):
    """The thing asked for exists but has not been made yet."""


class Conflict(ServiceError):
    """The request contradicts an earlier one."""


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
