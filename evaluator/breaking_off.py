"""Ends a call of untrusted code that takes too long, in the process that runs it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TooSlow(BaseException):
    """A call was aborted. Not an Exception, so that the task's own handlers let it pass."""


@contextmanager
def broken_off(seconds: float) -> Iterator[None]:
    """Raises :class:`TooSlow` after some seconds. Use it in the main thread of a process that is not shared.

    Compiled code may convert it to another exception, and its caller may handle that. Once the time has passed,
    the block counts as too slow, however it ended.
    """
    rang = False

    def ring(number: int, frame: object) -> None:
        nonlocal rang
        rang = True
        raise TooSlow

    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    # An enclosing timer keeps running.
    left = signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    if 0 < left < seconds:
        signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    except Exception as error:
        if rang:
            raise TooSlow from error
        raise
    else:
        if rang:
            raise TooSlow
    finally:
        rest = max(left - (time.monotonic() - started), 1e-3) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, rest)
        signal.signal(signal.SIGALRM, before)
