"""The Celery application. A message only says "look at this row": losing, doubling or delaying one does no harm.

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

from services.observing.logs import dress
from services.settings import get_settings

_HOURS_S = 24 * 3600


def make_celery(broker_url: str) -> Celery:
    """An application on a broker."""
    celery = Celery("kernelwright", broker=broker_url, include=["services.worker.tasks"])
    celery.conf.update(
        # results live in our tables
        task_ignore_result=True,
        result_backend=None,
        # a message is kept until its row has been dealt with, and one worker holds one message a thread
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_track_started=True,
        # threads: the work is done by the referee's own processes, and Python here only waits for them
        worker_pool="threads",
        worker_concurrency=4,
        broker_connection_retry_on_startup=True,
        # the lease decides who works on a row; a broker that stumbles must not kill healthy work
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # above any job, or Redis hands a running job's message to a second worker; recovery is the lease's business
        broker_transport_options=_transport_options(broker_url),
        worker_hijack_root_logger=False,
        task_create_missing_queues=True,
    )
    return celery


def _transport_options(broker_url: str) -> dict[str, Any]:
    if not broker_url.startswith(("redis", "rediss")):
        return {}
    return {"visibility_timeout": _HOURS_S, "socket_connect_timeout": 2, "socket_timeout": 30}


app = make_celery(get_settings().broker_url)


@after_setup_logger.connect
@after_setup_task_logger.connect
def _dress(logger: logging.Logger, **_: Any) -> None:
    dress(logger.handlers, get_settings().log_format)


@celeryd_after_setup.connect
def _begin(**_: Any) -> None:
    # the self-check then runs while the worker connects, and /readyz knows the sandbox before the first job
    from services.worker.context import worker_context

    worker_context()


@worker_shutting_down.connect
def _end(**_: Any) -> None:
    from services.worker.context import stop_worker

    stop_worker()
