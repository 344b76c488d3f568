"""Errors of the evaluator.

EvaluatorError
 |- SandboxUnavailable     this machine cannot isolate untrusted code well enough
 |- RefereeLost            the referee's process died or was killed during a call
 |- RoleFailure            an untrusted process ended, hung or broke its protocol
     |- RoleTimeout        it exceeded its deadline and was killed
     |- RoleExited         it ended before it answered
     |- RoleReported       it answered with an error of its own (an exception in user code)
     |- DeviceFull         the GPU has no memory left for a process; the user code is not at fault
     |- ProtocolViolation  it answered with something that is not a valid frame
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from evaluator.compiler_words import printable


class EvaluatorError(Exception):
    """Base class of all errors that this package raises on purpose."""


class SandboxUnavailable(EvaluatorError):
    """No sandbox tier at or above the required one passed its self-test, so nothing untrusted runs.

    Args:
        message: why, tier by tier.
        attacks: results of the last self-test, if there was one.
    """

    def __init__(self, message: str, attacks: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.attacks = list(attacks)


class RefereeLost(EvaluatorError):
    """The referee's process is gone; the evaluation in progress has no verdict."""


class RoleFailure(EvaluatorError):
    """An untrusted process did not do what it was asked.

    Args:
        word: the verdict word for this failure.
        sentence: one sentence for the user.
        detail: untrusted text (a traceback, compiler output), already shortened.
        role: whose process it was; empty if no process is to blame.
    """

    def __init__(self, word: str, sentence: str, detail: str = "", role: str = "") -> None:
        super().__init__(sentence)
        self.role = role
        self.word = word
        self.sentence = printable(sentence)
        self.detail = printable(detail)


class RoleTimeout(RoleFailure):
    """The process exceeded its deadline and was killed."""


class RoleExited(RoleFailure):
    """The process ended before it answered."""


class RoleReported(RoleFailure):
    """User code raised; the process itself still works."""


class DeviceFull(RoleFailure):
    """The GPU has no memory left for a process; a later attempt may succeed."""


class Unsteady(RoleFailure):
    """Times vary too much on this machine, or another program uses its GPU; a later attempt may succeed."""


class ProtocolViolation(RoleFailure):
    """The process sent bytes that are not a valid frame."""


def is_disk_trouble(error: BaseException) -> bool:
    """Whether an error comes from the disk (full or broken) and not from the code that ran."""
    passing = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
    return isinstance(error, OSError) and error.errno in passing
