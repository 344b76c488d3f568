"""The supervisor of a worker: a parent that has imported everything, does nothing else, and forks the process that works.

Whatever ends the working process (the kernel when memory runs out, an operator, a fault in a driver), the next one works
milliseconds later: a new interpreter needs 2 s of CPU time before it can take a job, longer than some workers live in bad
times. The successor is told whom it follows and frees that worker's rows itself, so that nobody waits for leases to run out,
on whatever machine the dispatcher may be.

The parent has no thread, no connection and no lock: what is forked is then whole. It is not the working process's judge
either: a job that kills its worker again and again is ended by the cap on attempts (`services.jobs.lease`).
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

# A process that ends sooner than this has failed at its start; then each successor waits longer, up to the longest pause.
_SHORT_LIFE_S = 2.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_SHORT_LIVES_AT_ONCE = (
    3  # whoever kills workers may hit young ones too: only a row of short lives is a failing start
)
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_log = logging.getLogger(__name__)


def supervise() -> str | None:
    """Fork a working process, and another one whenever it dies, until told to stop.

    Returns in each working process, with the identity of the worker that it follows, or None for the first. The parent
    never returns: it passes SIGTERM, SIGINT and SIGQUIT on and exits as the working process does.
    """
    supervisor = _Supervisor()
    return supervisor.run()


class _Supervisor:
    def __init__(self) -> None:
        self._child: int | None = None
        self._stopping = False

    def run(self) -> str | None:
        gc.collect()
        gc.freeze()  # what is here stays as it is, and its pages stay shared
        before = {number: signal.signal(number, self._stop) for number in _STOPS}
        predecessor: str | None = None
        short_lives = 0
        while True:
            # nothing must come between the fork and the note of whom it made: a stop would pass the child by
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            if self._stopping:  # told between two workers, when there was nobody to pass it on to
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
            except ProcessLookupError:  # it has just ended by itself
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
    """Have the kernel stop this process when its parent dies: two workers on one device would measure each other."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we said so
        os.kill(os.getpid(), signal.SIGTERM)
