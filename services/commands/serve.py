"""`kernelwright serve`: runs API, dashboard and worker in one process; needs no other server."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from typing import Annotated

import typer
from rich.console import Console

from services.commands.terminal import close_data_folder
from services.users.addresses import is_loopback

WAIT_FOR_KEY = "--wait-for-key"
_GRACE_S = 3
_STOP_WITHIN_S = 15
_GARBAGE_AFTER = 10_000
_EXIT_USAGE = 2


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run a worker in this process.")
    ] = True,
    wait_for_key: Annotated[
        bool,
        typer.Option(
            WAIT_FOR_KEY,
            help="Listen on another address than loopback although there is no key yet: until there is one, requests from "
            "elsewhere are refused.",
        ),
    ] = False,
) -> None:
    """Serve the HTTP API and the dashboard, with a worker for this machine.

    Settings are environment variables that start with KERNELWRIGHT_; with none set, everything is on this machine:
    a SQLite file, an in-memory queue, a worker thread. Two of them move it to PostgreSQL and Redis:

        KERNELWRIGHT_DATABASE_URL=postgresql://...  KERNELWRIGHT_BROKER_URL=redis://...

    Without keys it answers this machine alone. As soon as there is one (`kernelwright keys create`), every request needs a
    key, and each user sees what is theirs.

    Stop it with Ctrl-C: running jobs are given back and go on where they were after the next start.
    """
    say = Console(stderr=True)
    close_data_folder(say)
    if not is_loopback(host):
        if not wait_for_key and not _has_keys():
            say.print(
                f"[red]refused:[/] {host} is not a loopback address and this service has no keys: any client that reaches the port "
                "could run jobs and read every source. Make the first key with "
                "`kernelwright keys create NAME --user YOU --scope admin`, then start again.",
                highlight=False,
            )
            raise typer.Exit(_EXIT_USAGE)
        say.print(
            "[yellow]plain HTTP:[/] keys and sources travel as they are; put a proxy that speaks TLS in front of this "
            "port, and let only the proxy reach it."
        )
    try:
        listener = _listen(host, port)
    except OSError as error:
        say.print(f"[red]cannot listen[/] on {host} port {port}: {error.strerror or error}")
        raise typer.Exit(1) from None
    _serve_on(listener, host, with_worker=worker, say=say)


def _has_keys() -> bool:
    from services.db.upgrade import newest
    from services.settings import get_settings
    from services.users.keys import any_key

    with newest(get_settings().database).read() as session:
        return any_key(session)


def _serve_on(listener: socket.socket, host: str, *, with_worker: bool, say: Console) -> None:
    from services.observing.logs import dress
    from services.observing.requests import ACCESS_LOG
    from services.settings import get_settings

    settings = get_settings()
    logging.basicConfig(level=logging.INFO)
    dress(logging.getLogger().handlers, settings.log_format)
    # request logs are for collectors; at a terminal they would bury the important lines
    quiet = (
        "alembic",
        "celery",
        "kombu",
        "uvicorn.access",
        *([ACCESS_LOG] * (settings.log_format == "text")),
    )
    for chatty in quiet:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if settings.embedded and not with_worker:
        say.print("[yellow]no worker:[/] jobs wait until a process with a worker opens the same database.")
    if with_worker:
        _begin_self_check()

    import uvicorn

    from services.api.connections import limit_unread_answers, most_connections, server_config
    from services.application import create_app

    app = create_app(settings, with_worker=with_worker)

    class Server(uvicorn.Server):
        """Prints its address once it accepts requests, and ends event streams before a graceful shutdown."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # Everything loaded so far is permanent: scanning it in a full collection stalled all requests for 0.15 s.
            gc.collect()
            gc.freeze()
            # Pages consist of thousands of small objects without cycles: with Python's default threshold of 700, collections
            # took a tenth of the request time.
            gc.set_threshold(_GARBAGE_AFTER, 20, 50)
            port = listener.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            print(f"Kernelwright is at http://{shown}:{port}/", flush=True)  # noqa: T201 - the program's output

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # if the shutdown hangs, log the tracebacks and exit; the next start resumes the running rows
            faulthandler.dump_traceback_later(_STOP_WITHIN_S, exit=True)
            app.state.stopping.set()
            await super().shutdown(sockets)

    limit_unread_answers(listener, settings.answer_seconds)
    config = server_config(
        app,
        settings.head_seconds,
        limit_concurrency=most_connections(),
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    # uvicorn re-raises the signal that stopped it; a requested stop is not a failure
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    _leave()


def _begin_self_check() -> None:
    """Start the worker's self-check early: its referee starts slowly, while the other modules are imported."""
    from services.db.upgrade import newest
    from services.settings import get_settings
    from services.worker.context import worker_context

    newest(get_settings().database)
    worker_context()


def _leave() -> None:
    """Exit even if a pool thread is blocked on a slow response; Python would wait minutes to join it.

    Nothing is lost: rows were released, and the database would refuse later writes of such a thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    stuck = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]
    if stuck:
        logging.shutdown()
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
