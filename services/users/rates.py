"""Rate limits, by the `limits` library: in Redis where there is one, so that several API processes count together, else in memory.

A Redis that does not answer costs the common count and not the service: for a few seconds each process counts by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from limits import RateLimitItem
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import RateLimiter, SlidingWindowCounterRateLimiter

_log = logging.getLogger(__name__)
_TIMEOUT_S = 0.5
_ALONE_S = 5.0
_SWEPT_EVERY_S = 60.0


class _NoTimer(threading.Timer):
    """Passes for one that is running, so that none is started."""

    def is_alive(self) -> bool:
        """Always."""
        return True


class _Counts(MemoryStorage):
    """Counts in memory, swept now and then by whoever counts. The library starts a thread for it at nearly every request,
    and under load each waits for its turns at the interpreter. One caller at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.timer.cancel()
        self.timer = _NoTimer(0, self.sweep)
        self._sweep_at = time.monotonic() + _SWEPT_EVERY_S

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """See `MemoryStorage`."""
        if time.monotonic() >= self._sweep_at:
            self.sweep()
        return super().incr(key, expiry, amount)

    def sweep(self) -> None:
        """Forget what has expired."""
        self._sweep_at = time.monotonic() + _SWEPT_EVERY_S
        for key in list(self.expirations):
            self.get(key)


class Rates:
    """Counts requests.

    Args:
        broker_url: of the queue; a Redis there counts, too.
    """

    def __init__(self, broker_url: str) -> None:
        self._own: RateLimiter = SlidingWindowCounterRateLimiter(_Counts())
        self._own_turn = threading.Lock()
        self._common: RateLimiter | None = None
        self._alone_until = 0.0
        if broker_url.startswith(("redis://", "rediss://")):
            storage = RedisStorage(
                broker_url,
                wrap_exceptions=True,
                key_prefix="kernelwright-rate",
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
            )
            self._common = SlidingWindowCounterRateLimiter(storage)

    def take(self, limits: Sequence[RateLimitItem], whose: str) -> float:
        """Count one request; 0.0 if it may pass, else after how many seconds another one may."""
        if self._common is not None and time.monotonic() >= self._alone_until:
            try:
                return _take(self._common, limits, whose)
            except StorageError:
                _log.warning("Redis counts no requests; for %g s this process counts alone", _ALONE_S)
                self._alone_until = time.monotonic() + _ALONE_S
        with self._own_turn:
            return _take(self._own, limits, whose)


def _take(limiter: RateLimiter, limits: Sequence[RateLimitItem], whose: str) -> float:
    wait_s = 0.0
    for limit in limits:
        if not limiter.hit(limit, whose):
            resets_at = limiter.get_window_stats(limit, whose).reset_time
            wait_s = max(wait_s, 1.0, math.ceil(resets_at - time.time()))
    return wait_s
