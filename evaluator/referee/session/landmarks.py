"""Checks that the harness inside a candidate's process is unmodified.

The timed loop and all code leading to it run in the candidate's own process. A candidate that replaces the loop
gets credit for whatever that saves. So before any candidate code is imported, the process lists its words of
memory that never change, and the referee copies them. Later the referee reads them again from outside: after each
timed block of either side, while the process is stopped, and at a random moment of one block in eight. The
candidate cannot predict when. Reading takes a core up to 0.5 ms, so a rival's blocks are read as often.

It cannot detect machine code that is taken over without changing these words, such as a forged return address on a
stack.
"""

from __future__ import annotations

import errno
import secrets
import struct

from evaluator.errors import ProtocolViolation, RoleFailure
from evaluator.referee.session.outcome import Rejected
from evaluator.roles import protocol
from evaluator.roles.process import RoleProcess
from evaluator.sandbox import syscalls

_SECONDS = 30.0
_MOST_RANGES, _MOST_BYTES = 1 << 15, 4 << 20
#: The part of a block in which the read happens. The end is excluded, so that the referee is never busy when the
#: answer arrives.
_LOOKED_AT = 0.6
_STEPS = 1 << 20
#: The process has unmapped the words, or forbids reading (``PR_SET_DUMPABLE``). Reading worked at the start.
_MADE_UNREADABLE = (errno.EFAULT, errno.EPERM)


class Landmarks:
    """The words that must not change, in a process that has run only trusted code so far.

    Args:
        process: whose; it is stopped after.
    """

    def __init__(self, process: RoleProcess) -> None:
        self._process = process
        payload = process.request(protocol.LANDMARKS, {}, _SECONDS)
        process.freeze()
        numbers = struct.unpack(f"<{len(payload) // 8}Q", payload[: len(payload) // 8 * 8])
        ranges = list(zip(numbers[::2], numbers[1::2], strict=False))
        if not 0 < len(ranges) <= _MOST_RANGES or sum(numbers[1::2]) > _MOST_BYTES:
            raise ProtocolViolation("runtime_error", "the process sent no valid landmarks", role=process.name)
        self._gatherer = syscalls.Gatherer(process.pid, ranges)
        self._before = self._gatherer.read()

    def check(self) -> None:
        """Reads them again. The process may be running.

        Raises:
            Rejected: part of the harness has changed.
        """
        if self._process.dead:
            return
        try:
            same = self._gatherer.read() == self._before
        except OSError as error:
            if error.errno == errno.ESRCH:
                return  # the process is gone, which its next answer will report
            if error.errno not in _MADE_UNREADABLE:
                raise RoleFailure("not_judged", f"its memory cannot be read: {error.strerror}") from error
            same = False
        if not same:
            sentence = "it replaced parts of the harness in its process, so its calls are not made and timed like those of other candidates"
            raise Rejected("cheating", "harness_replaced", sentence)

    def check_within(self, running: RoleProcess, expected_ns: float) -> None:
        """The same at a random moment of a block of ``running``, unless the block ends before.

        ``expected_ns`` is its expected time.
        """
        wait_s = expected_ns * _LOOKED_AT * secrets.randbelow(_STEPS) / _STEPS / 1e9
        if not running.answers_within(wait_s):
            self.check()
