"""Whether the harness inside a candidate's process is still the one that was put there.

The loop around the calls, and all that leads to it, runs in the candidate's own process. A candidate that puts a loop of its own in
its place is credited with whatever that saves. So before anything of the candidate's is imported, the process says which of its words
never change, and the referee copies them. Later it reads them again from outside: after each timed block of either side, while
it is stopped, and at a random moment of one block in eight. It cannot know when. Reading takes a core up to 0.5 ms, so a rival's
blocks are looked into as often.

What this cannot see: machine code that is taken over without any of these words, such as a forged return address on a stack.
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
from evaluator.verdict import Finding

_SECONDS = 30.0
_MOST_RANGES, _MOST_BYTES = 1 << 15, 4 << 20
#: The part of a block in which it is looked at; the end is left out, so that the answer is never met by a busy referee.
_LOOKED_AT = 0.6
_STEPS = 1 << 20
#: It has unmapped them, or has said that nobody may look (``PR_SET_DUMPABLE``). At the start we could.
_MADE_UNREADABLE = (errno.EFAULT, errno.EPERM)


class Landmarks:
    """What has to stay as it is in a process that has run our own code only, so far.

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
        """Reads them again; the process may be running.

        Raises:
            Rejected: something of the harness is not what it was.
        """
        if self._process.dead:
            return
        try:
            same = self._gatherer.read() == self._before
        except OSError as error:
            if error.errno == errno.ESRCH:
                return  # it is gone, which its next answer will say
            if error.errno not in _MADE_UNREADABLE:
                raise RoleFailure("not_judged", f"its memory cannot be read: {error.strerror}") from error
            same = False
        if not same:
            sentence = "it replaced parts of the harness in its process, so its calls are not made and timed as everybody's are"
            raise Rejected("cheating", sentence, (Finding("harness_replaced", "cheat", sentence),))

    def check_within(self, running: RoleProcess, expected_ns: float) -> None:
        """The same at a random moment of a block of ``running`` that is expected to take so long, unless it is over before."""
        wait_s = expected_ns * _LOOKED_AT * secrets.randbelow(_STEPS) / _STEPS / 1e9
        if not running.answers_within(wait_s):
            self.check()
