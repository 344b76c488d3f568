"""`kernelwright worker`: takes jobs through PostgreSQL and Redis, on its own machine; one worker per device."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console

from services.commands.terminal import close_data_folder

# Modules the first job needs: the supervisor imports them once, for all processes that it forks.
_NEEDED = (
    "agent.proposers.registry",
    "agent.proposers.human",
    "agent.proposers.llm",
    "agent.providers.openai_compatible",
    "celery.app.log",
    "celery.apps.worker",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "services.worker.context",
    "sqlalchemy.dialects.postgresql.psycopg",
)


def worker(log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO") -> None:
    """Work on jobs for a service on other machines.

    Settings are environment variables: KERNELWRIGHT_DATABASE_URL and KERNELWRIGHT_BROKER_URL say where the service is,
    KERNELWRIGHT_DEVICE is the device of this worker, and so the queue that it takes messages from.

    A supervising parent stays; the process that works is its child, and is replaced at once when it dies. Stop it with
    SIGTERM or Ctrl-C: running jobs are given back.
    """
    from services.settings import get_settings

    settings = get_settings()
    if settings.embedded:
        typer.echo(
            "refused: without KERNELWRIGHT_BROKER_URL nothing can send messages to this worker; `kernelwright serve` works "
            "by itself.",
            err=True,
        )
        raise typer.Exit(2)
    close_data_folder(Console(stderr=True))
    _warm_up()
    from services.observing.logs import dress
    from services.worker.supervisor import supervise

    logging.basicConfig(level=log_level)
    dress(logging.getLogger().handlers, settings.log_format)
    predecessor = supervise()

    try:
        _work(predecessor, settings.device, log_level)
    finally:
        from services.worker.context import stop_worker

        stop_worker()


def _work(predecessor: str | None, device: str, log_level: str) -> None:
    from services.worker.app import app
    from services.worker.context import free_rows_of, worker_context

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery installs its own handler
    # Work is in the database: start now, without waiting for Celery to connect to its broker.
    worker_context().slots.start()
    if predecessor is not None:
        free_rows_of(predecessor)
    # Gossip, mingle and heartbeats serve canvases and monitors, which this project does not use.
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    app.worker_main(["worker", "--queues", device, "--loglevel", log_level, *quiet])


def _warm_up() -> None:
    """Do once what each process would do before its first job; must not start threads or open connections."""
    for name in _NEEDED:
        importlib.import_module(name)
    from sqlalchemy.orm import configure_mappers

    from agent import prompts

    configure_mappers()
    prompts.preload()
