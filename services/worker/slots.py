"""Worker slots: threads that each claim and work on one row at a time.

The database decides which row is next (`services.jobs.turns`). A broker message only wakes a sleeping slot, so a broker
that is down or loses its messages costs seconds but no work. A worker that refuses work claims no rows: they stay queued
for other workers or until it recovers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from services.db.models import Evaluation, Job
from services.jobs.lease import LeasedModel

LOOK_EVERY_S = 5.0
#: One job at a time, since a job drives the device for its whole duration. Two evaluations: one in the referee's queue and one
#: ready to follow it. More slots would only claim rows early, ahead of rows that should go first.
SLOTS: tuple[LeasedModel, ...] = (Job, Evaluation, Evaluation)
_AFTER_FAULT_S = 1.0
_log = logging.getLogger(__name__)


class Slots:
    """The slot threads of a worker; none runs until `start`.

    Args:
        work_on_next: claims the next row of a table and works on it; returns False if there is none.
        refusal: returns why this worker takes no work now, or None; may block until that is known.
        stopping: set when the worker shuts down.
    """

    def __init__(
        self,
        work_on_next: Callable[[LeasedModel], bool],
        refusal: Callable[[], str | None],
        stopping: threading.Event,
    ) -> None:
        self._work_on_next = work_on_next
        self._refusal = refusal
        self._stopping = stopping
        self._started = False
        self._bells = [threading.Event() for _ in SLOTS]
        self._threads = [
            threading.Thread(
                target=self._serve, args=(model, bell), name=f"{model.__tablename__}-{number}", daemon=True
            )
            for number, (model, bell) in enumerate(zip(SLOTS, self._bells, strict=True))
        ]

    def start(self) -> None:
        """Start looking for work; later calls do nothing."""
        if self._started:
            return
        self._started = True
        for thread in self._threads:
            thread.start()

    def wake(self, table: str | None = None) -> None:
        """Wake the slots for `table`, or all slots if it is None."""
        for model, bell in zip(SLOTS, self._bells, strict=True):
            if table in (None, model.__tablename__):
                bell.set()

    def stop(self, within_s: float) -> None:
        """Wait up to `within_s` seconds for the slots to end; the caller has set `stopping`."""
        self.wake()
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, model: LeasedModel, bell: threading.Event) -> None:
        while not self._stopping.is_set():
            bell.clear()
            try:
                if self._refusal() is None and self._work_on_next(model):
                    continue
            except Exception:  # noqa: BLE001 - a database restart must not end a slot's thread
                _log.warning("a slot for %s could not work", model.__tablename__, exc_info=True)
                self._stopping.wait(_AFTER_FAULT_S)
                continue
            bell.wait(LOOK_EVERY_S)
