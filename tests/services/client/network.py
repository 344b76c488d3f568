"""Networks that fail on purpose: a relay that cuts connections, and a server that answers from a script."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers import serving


class Relay:
    """A TCP relay to a port of this machine. `cuts` holds, per connection, after how many bytes of the answer it breaks off.

    None, and every connection after the list's end, is relayed whole.
    """

    def __init__(self, port: int, cuts: Sequence[int | None]) -> None:
        self._port = port
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections, and end once those that are there have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        relayed = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            cut = self._cuts[self.connections] if self.connections < len(self._cuts) else None
            self.connections += 1
            relayed.append(threading.Thread(target=self._relay, args=(client, cut), daemon=True))
            relayed[-1].start()
        for one in relayed:
            one.join()

    def _relay(self, client: socket.socket, cut: int | None) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            forth = threading.Thread(target=_copy, args=(client, server, None), daemon=True)
            forth.start()
            _copy(server, client, cut)
            forth.join()


def _copy(source: socket.socket, target: socket.socket, left: int | None) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece if left is None else piece[:left])
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    break
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@contextmanager
def relay(port: int, *cuts: int | None) -> Iterator[Relay]:
    """A `Relay` until the block ends."""
    made = Relay(port, cuts)
    try:
        yield made
    finally:
        made.close()


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A server that gives these answers in turn, the last one for ever; yields its address and the requests it got."""
    got: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        """Answers from the script."""

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            got.append((f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}))
            status, headers, body = answers[min(len(got), len(answers)) - 1]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer
        log_message: Callable[..., None] = lambda *_: None

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, got
