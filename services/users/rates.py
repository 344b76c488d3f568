"""Rate limits with the `limits` library: shared between API processes through Redis if configured, else in memory.

If Redis does not answer, requests are still served: each process counts on its own for a few seconds.
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
    """Pretends to be a running timer, which keeps the library from starting one."""

    def is_alive(self) -> bool:
        """Return True always."""
        return True


class _Counts(MemoryStorage):
    """In-memory counts that sweep expired entries inline, in `incr`. Not thread-safe.

    The library starts a sweeper thread at nearly every request, and under load each of them competes for the GIL.
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
        """Drop expired counts."""
        self._sweep_at = time.monotonic() + _SWEPT_EVERY_S
        for key in list(self.expirations):
            self.get(key)


class Rates:
    """Counts requests against rate limits.

    Args:
        broker_url: the queue's broker; if it is a Redis, it also holds the shared counts.
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
        """Count one request; return 0.0 if it may pass, else the seconds to wait before the next try."""
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
