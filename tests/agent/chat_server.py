"""Stands for the remote language model: a real HTTP server on a free port that speaks /v1/chat/completions.

Its answers are a script, one entry a request; what it was asked is kept. This is the one thing that tests fake.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers import serving


@dataclass(frozen=True)
class Answer:
    """One scripted answer: a completion, an HTTP error, raw bytes, silence, a body cut off or sent byte by byte.

    A completion is streamed where the request asks for that, unless `whole`.
    """

    text: str | None = ""
    finish: str = "stop"
    refusal: str | None = None
    usage: tuple[int, int] | None = (100, 50)
    status: int = 200
    message: str = ""
    raw: bytes | None = None
    delay_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    cut_after_bytes: int | None = None
    trickle_s: float = 0.0
    trickle_from: str = "body"
    whole: bool = False
    pieces: int = 3

    def is_streamed(self, request: dict[str, Any]) -> bool:
        """Whether a request is answered by a stream of events."""
        return bool(request.get("stream")) and self.raw is None and self.status == 200 and not self.whole

    def events(self, model: str, with_usage: bool) -> bytes:
        """The response body as a stream of events."""
        size = -(-len(self.text or "") // self.pieces) or 1
        text = self.text or ""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": text[at : at + size]} for at in range(0, len(text), size)]
        deltas += [{"refusal": self.refusal}] if self.refusal else []
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        if with_usage and self.usage is not None:
            given, made = self.usage
            usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
            events.append({"choices": [], "usage": usage})
        of_all = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
        lines = [f"data: {json.dumps({**of_all, **event})}\n\n" for event in events]
        return "".join([*lines, "data: [DONE]\n\n"]).encode()

    def body(self, model: str) -> bytes:
        """The response body in one piece."""
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.message, "type": "scripted"}}).encode()
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal}
        body: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "finish_reason": self.finish, "message": message}],
        }
        if self.usage is not None:
            given, made = self.usage
            body["usage"] = {
                "prompt_tokens": given,
                "completion_tokens": made,
                "total_tokens": given + made,
            }
        return json.dumps(body).encode()


@dataclass
class ChatServer:
    """A running server.

    Attributes:
        base_url: for `ModelChoice.base_url`.
        script: answers still to be given, the last one over and over.
        requests: JSON bodies that came in.
        authorizations: the Authorization header of each.
        headers: all headers of each.
    """

    base_url: str
    script: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def next_answer(self) -> Answer:
        """Take the next answer of the script."""
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@contextmanager
def chat_server(
    *script: Answer, chosen: Callable[[dict[str, Any]], Answer] | None = None
) -> Iterator[ChatServer]:
    """Serve `script` while the block runs, or what `chosen` picks for a request."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                found.requests.append(body)
                found.authorizations.append(self.headers.get("Authorization", ""))
                found.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = chosen(body) if chosen else found.next_answer()
            if not self.path.endswith("/v1/chat/completions"):
                answer = Answer(status=404, message=f"no such path {self.path}")
            time.sleep(answer.delay_s)
            model, streamed = str(body.get("model")), answer.is_streamed(body)
            with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            data = answer.events(model, with_usage) if streamed else answer.body(model)
            try:
                if answer.trickle_s and answer.trickle_from == "headers":
                    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + data:
                        self.wfile.write(bytes([byte]))
                        time.sleep(answer.trickle_s)
                self.send_response(answer.status)
                if "Content-Type" not in dict(answer.headers):
                    self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
                self.send_header("Content-Length", str(len(data)))
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.end_headers()
                if answer.trickle_s:
                    for byte in data:
                        self.wfile.write(bytes([byte]))
                        time.sleep(answer.trickle_s)
                else:
                    self.wfile.write(data[: answer.cut_after_bytes])
            except OSError:
                return  # a client that has given up

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        request_queue_size = 512  # with the default of 5 a busy machine resets connections of many at once

    with serving(Server(("127.0.0.1", 0), Handler)) as url:
        found = ChatServer(f"{url}/v1", list(script))
        yield found
