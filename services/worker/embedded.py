"""A Celery worker as a thread of the serving process, over the in-memory broker: no other server is needed."""

from __future__ import annotations

import threading

from celery import Celery
from celery.worker import WorkController

from services.worker.context import stop_worker, worker_context

_STOP_WITHIN_S = 10.0


class EmbeddedWorker:
    """One thread that hears the broker's messages for one device, and the slots that they wake."""

    def __init__(self, celery: Celery, queue: str) -> None:
        celery.loader.import_default_modules()
        celery.finalize()
        # WorkController is the worker without signal handlers and process title, which belong to the web server here
        self._controller = WorkController(
            app=celery,
            hostname="embedded@localhost",
            queues=[queue],
            pool_cls="threads",
            concurrency=1,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel="WARNING",
        )
        self._thread = threading.Thread(target=self._controller.start, name="worker", daemon=True)

    def start(self) -> None:
        """Start the thread, the worker's self-check and its slots."""
        worker_context().slots.start()
        self._thread.start()

    def stop(self) -> None:
        """Give running rows back and stop; daemon threads that do not end in time end with the process."""
        stop_worker()
        stopper = threading.Thread(target=self._controller.stop, daemon=True)
        stopper.start()
        stopper.join(timeout=_STOP_WITHIN_S)
        self._thread.join(timeout=1.0)
