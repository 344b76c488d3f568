"""The slots of a worker: threads that each work on one row at a time, and take the next one themselves.

The database says which row is next (`services.jobs.turns`). A message of the broker only ends a slot's sleep, so that a broker
that is down, or forgets everything, costs seconds and no work. A worker that refuses work takes no row: rows stay queued,
for other workers or until it is well again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from services.db.models import Evaluation, Job
from services.jobs.lease import LeasedModel

LOOK_EVERY_S = 5.0
#: One job at a time, since it drives the device for its whole length; and of evaluations one in the referee's queue and one that is
#: ready when it leaves. More would only be taken out of the queue earlier, before others that would have been first.
SLOTS: tuple[LeasedModel, ...] = (Job, Evaluation, Evaluation)
_AFTER_FAULT_S = 1.0
_log = logging.getLogger(__name__)


class Slots:
    """Starts nothing until `start`.

    Args:
        work_on_next: takes the next row of a table and works on it; False when there is none.
        refusal: why this worker takes nothing now, or None; may wait until that is known.
        stopping: set when the whole worker shuts down.
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
        """Begin to look for work; again changes nothing."""
        if self._started:
            return
        self._started = True
        for thread in self._threads:
            thread.start()

    def wake(self, table: str | None = None) -> None:
        """Something may be ready, in this table or in any."""
        for model, bell in zip(SLOTS, self._bells, strict=True):
            if table in (None, model.__tablename__):
                bell.set()

    def stop(self, within_s: float) -> None:
        """Wait until all slots have let go of their rows; `stopping` is set already."""
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
            except Exception:  # noqa: BLE001 - a database that restarts must not cost a slot
                _log.warning("a slot for %s could not work", model.__tablename__, exc_info=True)
                self._stopping.wait(_AFTER_FAULT_S)
                continue
            bell.wait(LOOK_EVERY_S)
