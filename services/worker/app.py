"""The Celery application.

A message only says "work may be ready", so a lost, duplicated or delayed message does no harm.

celery -A services.worker.app worker -Q cpu     # on a machine of its own; `-Q cuda` with KERNELWRIGHT_DEVICE=cuda
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import Celery
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    celeryd_after_setup,
    worker_shutting_down,
)
from celery.worker import WorkController

from services.observing.logs import dress
from services.settings import get_settings

#: The only task: work may be ready. The worker queries the database for the next row.
LOOK = "kernelwright.look"
_STOP_WITHIN_S = 10.0
_log = logging.getLogger(__name__)


def make_celery(broker_url: str) -> Celery:
    """Create a Celery application for a broker."""
    celery = Celery("kernelwright", broker=broker_url)
    celery.conf.update(
        # results are stored in our own tables
        task_ignore_result=True,
        result_backend=None,
        # handling a message only wakes the worker's slots (`services.worker.slots`), which is immediate
        worker_prefetch_multiplier=1,
        worker_pool="threads",
        worker_concurrency=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options=_transport_options(broker_url),
        worker_hijack_root_logger=False,
        task_create_missing_queues=True,
    )
    return celery


def _transport_options(broker_url: str) -> dict[str, Any]:
    if not broker_url.startswith(("redis", "rediss")):
        return {}
    return {"socket_connect_timeout": 2, "socket_timeout": 30}


app = make_celery(get_settings().broker_url)


@app.task(name=LOOK)
def look(table: str | None = None) -> None:
    """Wake this worker's slots, or only those for `table` if it is given."""
    from services.worker.context import worker_context

    worker_context().slots.wake(table)


@after_setup_logger.connect
@after_setup_task_logger.connect
def _dress(logger: logging.Logger, **_: Any) -> None:
    dress(logger.handlers, get_settings().log_format)


@celeryd_after_setup.connect
def _begin(**_: Any) -> None:
    # starting here runs the self-check while the worker connects, so /readyz reports the sandbox before the first job
    from services.data_folder import DataFolderOpen, make_private
    from services.worker.context import worker_context

    try:
        changed = make_private(get_settings().data_dir)
    except DataFolderOpen as error:
        raise SystemExit(f"refused: {error}") from None
    if changed:
        _log.warning(changed)
    worker_context().slots.start()


@worker_shutting_down.connect
def _end(**_: Any) -> None:
    from services.worker.context import stop_worker

    stop_worker()


class EmbeddedWorker:
    """Runs a Celery worker on the in-memory broker, and the slots that it wakes, in threads of the serving process."""

    def __init__(self, celery: Celery, queue: str) -> None:
        celery.loader.import_default_modules()
        celery.finalize()
        # WorkController does not set signal handlers or the process title, which belong to the web server here
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
        """Start the worker's thread, self-check and slots."""
        from services.worker.context import worker_context

        worker_context().slots.start()
        self._thread.start()

    def stop(self) -> None:
        """Release running rows and stop; daemon threads that miss the deadline end with the process."""
        from services.worker.context import stop_worker

        stop_worker()
        stopper = threading.Thread(target=self._controller.stop, daemon=True)
        stopper.start()
        stopper.join(timeout=_STOP_WITHIN_S)
        self._thread.join(timeout=1.0)
