"""An application on a port of this process: real sockets and the server's own protocol, without the wait for a process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from services.api.connections import limit_unread_answers, server_config


@contextmanager
def serving(
    app: FastAPI, *, most: int | None = None, head_seconds: float = 10.0, answer_seconds: float = 60.0
) -> Iterator[str]:
    """The address at which `app` is served, as `kernelwright serve` does it.

    Args:
        app: a whole application, without its life span: nothing is ever run.
        most: how many connections it takes.
        head_seconds: how long it waits for a request's head.
        answer_seconds: how long it waits for some of an answer to be taken.
    """
    server = uvicorn.Server(server_config(app, head_seconds, lifespan="off", limit_concurrency=most))
    listener = socket.create_server(("127.0.0.1", 0))
    limit_unread_answers(listener, answer_seconds)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
        listener.close()


def connected(url: str) -> socket.socket:
    """A connection to a server on which nothing was said yet."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80))


def spoken(url: str, said: bytes, *, wait_s: float) -> bytes:
    """What a server answers to some bytes until it hangs up; TimeoutError if it does not."""
    with connected(url) as client:
        client.settimeout(wait_s)
        client.sendall(said)
        found = b""
        while piece := client.recv(65_536):
            found += piece
        return found
