"""Stands for the remote language model where a test needs the same answers however often it is asked.

Every model has a name, and what it answers depends on its name and on the round alone (`tests.agent.chat_server`
answers in order instead, and a job that was killed asks again).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers import serving


@contextmanager
def model_server(answers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Serve Chat Completions while the block runs; yields the base URL.

    Args:
        answers: for each model the source it proposes in round 1, round 2, ...
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            earlier = sum(message["role"] == "assistant" for message in body["messages"])
            source = answers[body["model"]][earlier]
            message = {"role": "assistant", "content": f"```python\n{source}\n```"}
            reply = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
            }
            data = json.dumps(reply).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                return  # the client was killed

        def log_message(self, *_: object) -> None:
            return

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield f"{url}/v1"
