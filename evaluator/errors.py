"""Errors of the evaluator.

EvaluatorError
 |- SandboxUnavailable     nothing on this machine isolates untrusted code well enough
 |- RefereeLost            the referee's process died or was killed while a call was running
 |- RoleFailure            an untrusted process ended, hung or broke its protocol
     |- RoleTimeout        it outlived its deadline and was killed
     |- RoleExited         it ended by itself before it answered
     |- RoleReported       it answered with an error of its own (an exception in user code)
     |- DeviceFull         nobody's fault: the GPU has no memory left for a process
     |- ProtocolViolation  it answered with something that is not a valid frame
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from evaluator.compiler_words import printable


class EvaluatorError(Exception):
    """Base of everything that this package raises on purpose."""


class SandboxUnavailable(EvaluatorError):
    """No sandbox tier at or above the required one passed its self-test; nothing untrusted is run.

    Args:
        message: why, tier by tier.
        attacks: results of the last self-test, if it came that far.
    """

    def __init__(self, message: str, attacks: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.attacks = list(attacks)


class RefereeLost(EvaluatorError):
    """The referee's process is gone; the evaluation in flight has no verdict."""


class RoleFailure(EvaluatorError):
    """An untrusted process did not do what it was asked.

    Args:
        word: the verdict word this failure stands for.
        sentence: one sentence for the user.
        detail: untrusted text (a traceback, compiler output), already capped.
        role: whose process it was; empty where no process is to blame.
    """

    def __init__(self, word: str, sentence: str, detail: str = "", role: str = "") -> None:
        super().__init__(sentence)
        self.role = role
        self.word = word
        self.sentence = printable(sentence)
        self.detail = printable(detail)


class RoleTimeout(RoleFailure):
    """The process outlived its deadline and was killed."""


class RoleExited(RoleFailure):
    """The process ended before it answered."""


class RoleReported(RoleFailure):
    """User code raised; the process itself is well."""


class DeviceFull(RoleFailure):
    """The GPU has no memory left for a process to be judged in; later it may."""


class ProtocolViolation(RoleFailure):
    """The process sent bytes that are no valid frame."""


def is_disk_trouble(error: BaseException) -> bool:
    """Whether an error is the disk's, which passes when somebody makes room or mends it, and not the fault of what ran."""
    passing = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
    return isinstance(error, OSError) and error.errno in passing
