"""The worker's supervisor: a parent that imports everything and forks the working process.

Whatever ends the working process (the OOM killer, an operator, a driver fault), the next one is ready milliseconds later. A
new interpreter would need 2 s of CPU time before its first job, longer than some workers live under failures. The successor
gets its predecessor's identity and frees that worker's rows itself, without waiting for leases to expire, even if the
dispatcher runs on another machine.

The parent has no threads, connections or locks, so its forks start in a consistent state. It does not decide about jobs: the
cap on attempts (`services.jobs.lease`) ends a job that keeps killing its worker.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import time

from services.worker.identity import identity_of

# A process that ends sooner counts as a failed start; repeated failed starts double the pause, up to the longest.
_SHORT_LIFE_S = 2.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_SHORT_LIVES_AT_ONCE = (
    3  # an external kill may hit a young worker: only several short lives in a row count as failing starts
)
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_log = logging.getLogger(__name__)


def supervise() -> str | None:
    """Fork a working process and replace it whenever it dies, until told to stop.

    Returns in each working process with the identity of its predecessor, or None in the first. The parent never returns: it
    forwards SIGTERM, SIGINT and SIGQUIT and exits with the status of the working process.
    """
    supervisor = _Supervisor()
    return supervisor.run()


class _Supervisor:
    def __init__(self) -> None:
        self._child: int | None = None
        self._stopping = False

    def run(self) -> str | None:
        gc.collect()
        gc.freeze()  # the collector then leaves these objects alone, and forks keep sharing their pages
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
        predecessor: str | None = None
        short_lives = 0
        while True:
            # block signals until the child's pid is stored: a stop signal in between would miss the child
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            if self._stopping:  # the signal came while there was no child to forward it to
                sys.exit(0)
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
                _end_with(parent)
                return predecessor
            self._child, began_s = child, time.monotonic()
            identity = identity_of(child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            _, status = os.waitpid(child, 0)
            self._child = None
            code = os.waitstatus_to_exitcode(status)
            if self._stopping:
                sys.exit(code if code >= 0 else 128 - code)
            _log.warning("worker process %d ended (%s); another one begins", child, _told(code))
            predecessor = identity
            short_lives = short_lives + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 0
            self._pause(short_lives)

    def _stop(self, number: int, _: object) -> None:
        self._stopping = True
        if self._child is not None:
            try:
                os.kill(self._child, number)
            except ProcessLookupError:  # the child has just exited
                return

    def _pause(self, short_lives: int) -> None:
        too_many = short_lives - _SHORT_LIVES_AT_ONCE
        if too_many >= 0:
            until = time.monotonic() + min(_FIRST_PAUSE_S * 2**too_many, _LONGEST_PAUSE_S)
            while not self._stopping and time.monotonic() < until:
                time.sleep(0.1)


def _told(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _end_with(parent: int) -> None:
    """Have the kernel stop this process when its parent dies: two workers on one device would disturb each other's timings."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os.kill(os.getpid(), signal.SIGTERM)
