"""The Celery application of workers on machines of their own.

A message only says "work may be ready", so a lost, duplicated or delayed message does no harm. `kernelwright serve` without a
broker sends none: it wakes its own worker directly.

celery -A services.worker.app worker -Q cpu     # on a machine of its own; `-Q cuda` with KERNELWRIGHT_DEVICE=cuda
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    celeryd_after_setup,
    worker_shutting_down,
)

from services.data_folder import DataFolderOpen, make_private
from services.observing.logs import dress
from services.settings import get_settings
from services.worker.context import stop_worker, wake, worker_context

#: How long a message is worth reading; the dispatcher repeats it after that time.
EXPIRES_S = 10.0
_log = logging.getLogger(__name__)

app = Celery("kernelwright", broker=get_settings().broker_url)
app.conf.update(
    # results are stored in our own tables
    task_ignore_result=True,
    result_backend=None,
    # handling a message only wakes the worker's slots (`services.worker.slots`), which is immediate
    worker_prefetch_multiplier=1,
    worker_pool="threads",
    worker_concurrency=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={}
    if get_settings().embedded
    else {"socket_connect_timeout": 2, "socket_timeout": 30},
    worker_hijack_root_logger=False,
    task_create_missing_queues=True,
)


@app.task(name="kernelwright.look")
def look(table: str | None = None) -> None:
    """Work may be ready: wake this worker's slots, or only those for `table`. The database says which row is next."""
    worker_context().slots.wake(table)


def tell(device: str, table: str) -> None:
    """Say that rows of a table may be ready for a device: to this process's worker, and through the broker if there is one."""
    wake(device, table)
    if not get_settings().embedded:
        look.apply_async(args=[table], queue=device, retry=False, expires=EXPIRES_S)


@after_setup_logger.connect
@after_setup_task_logger.connect
def _dress(logger: logging.Logger, **_: Any) -> None:
    dress(logger.handlers, get_settings().log_format)


@celeryd_after_setup.connect
def _begin(**_: Any) -> None:
    # starting here runs the self-check while the worker connects, so /readyz reports the sandbox before the first job
    try:
        changed = make_private(get_settings().data_dir)
    except DataFolderOpen as error:
        raise SystemExit(f"refused: {error}") from None
    if changed:
        _log.warning(changed)
    worker_context().slots.start()


@worker_shutting_down.connect
def _end(**_: Any) -> None:
    stop_worker()
