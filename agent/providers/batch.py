"""Writes requests to a file in the format of OpenAI's Batch API and reads the answers once their file appears.

    <folder>/requests.jsonl    one per line: {"custom_id", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    <folder>/answers.jsonl     one per line, in any order: {"custom_id", "response": {"status_code", "body": {...}}, "error"}

The first is the API's input file (hosted models charge half price for batches); on an air-gapped node, the operator
carries it out. The second is the API's output file. The provider also reads `errors.jsonl`, the API's error file, and
`uploaded.jsonl`, answers received over HTTP. A conversation of two rounds takes two batches: answered requests are removed
from `requests.jsonl`, so the next batch does not repeat requests that were already paid for.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.errors import ProviderError
from agent.messages import Message, Reply, finish_of, reply_of
from agent.redaction import known_secrets, redact
from agent.spec import ModelChoice

REQUESTS, ANSWERS, ERRORS, UPLOADED = "requests.jsonl", "answers.jsonl", "errors.jsonl", "uploaded.jsonl"
_LOOK_S = 1.0
_MAX_LINE_BYTES = 8_000_000
_NAME = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')
_NAME_WITHIN_BYTES = 4096
_MAX_ERROR_CHARACTERS = 500


class BatchFiles:
    """`agent.providers.registry.Provider` over a folder.

    Args:
        choice: its `folder` holds the files; its `timeout_s` limits the wait for an answer. With 0, the job writes its
            requests and ends; run it again when the answers have arrived.

    Raises:
        ProviderError: if the model has no folder.
    """

    def __init__(self, choice: ModelChoice) -> None:
        if not choice.folder:
            raise ProviderError(f"model {choice.model} of provider batch has no folder", "request")
        self._choice = choice
        self._folder = Path(choice.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._secrets = known_secrets()
        self._closing = threading.Event()

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """See `Provider.complete`; `key` is the request's `custom_id`: its name, a dash, and a digest of the messages.

        Raises:
            ProviderError: of kind "waiting" if there is no answer yet.
        """
        if not key:
            raise ProviderError("a request of a batch needs a key", "request")
        began_s = time.monotonic()
        if self._answer(key) is None:
            self._write(key, messages, max_tokens or self._choice.max_tokens)
        while True:
            line = self._answer(key)
            if line is not None:
                self._drop_answered()
                return self._reply(line, messages, time.monotonic() - began_s)
            left_s = began_s + self._choice.timeout_s - time.monotonic()
            if left_s <= 0 or self._closing.wait(min(left_s, _LOOK_S)):
                where = self._folder / ANSWERS
                raise ProviderError(
                    f"requests are in {self._folder / REQUESTS}, answers go to {where}", "waiting"
                )

    def close(self) -> None:
        """See `Provider.close`."""
        self._closing.set()

    def _write(self, key: str, messages: Sequence[Message], max_tokens: int) -> None:
        body: dict[str, Any] = {
            "model": self._choice.model,
            "messages": [
                {"role": message.role, "content": redact(message.content, self._secrets)}
                for message in messages
            ],
            "max_completion_tokens": max_tokens,
        }
        if self._choice.temperature is not None:
            body["temperature"] = self._choice.temperature
        line = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}
        with open(self._folder / REQUESTS, "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            whole = content.rfind(b"\n") + 1  # a killed writer may have left part of a line
            earlier = content[:whole].splitlines(keepends=True)
            if any(_custom_id(one) == key for one in earlier):
                return
            # After an upgrade that changes the prompt: the older request's answer would be paid for and never read.
            kept = [one for one in earlier if _name(_custom_id(one)) != _name(key)]
            if kept != earlier or not content.endswith(b"\n"):
                file.truncate(0)
                file.write(b"".join(kept))
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _drop_answered(self) -> None:
        """Remove answered requests from the file. If a kill here loses lines, the next run writes them again."""
        answered = {_custom_id(line) for line in self._answers()}
        with open(self._folder / REQUESTS, "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            lines = file.read().splitlines(keepends=True)
            left = [line for line in lines if _custom_id(line) not in answered]
            if left != lines:
                file.truncate(0)
                file.write(b"".join(left))

    def _answer(self, key: str) -> dict[str, Any] | None:
        """The line that answers `key`; None if missing or only partly written."""
        for line in self._answers():
            if key.encode() in line and _custom_id(line) == key:
                if len(line) >= _MAX_LINE_BYTES:
                    return {"too_long": True}
                value: dict[str, Any] = json.loads(line)
                return value
        return None

    def _answers(self) -> Iterator[bytes]:
        for name in (ANSWERS, ERRORS, UPLOADED):
            try:
                with open(self._folder / name, "rb") as file:
                    while line := file.readline(_MAX_LINE_BYTES):
                        yield line
            except FileNotFoundError:
                continue

    def _reply(self, line: dict[str, Any], messages: Sequence[Message], elapsed_s: float) -> Reply:
        if line.get("too_long"):
            raise ProviderError(f"an answer of the batch is longer than {_MAX_LINE_BYTES} bytes", "too_long")
        response = line.get("response")
        status = response.get("status_code") if isinstance(response, dict) else None
        body = response.get("body") if isinstance(response, dict) else None
        if line.get("error") or status != 200 or not isinstance(body, dict):
            text = redact(json.dumps(line.get("error") or body), self._secrets)[:_MAX_ERROR_CHARACTERS]
            raise ProviderError(f"the batch failed with status {status}: {text}", "request")
        try:
            first = body["choices"][0]
            refusal = first["message"].get("refusal")
            text = first["message"].get("content") or str(refusal or "")
            if not isinstance(text, str):
                raise TypeError(f"content is {type(text).__name__}")
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ProviderError(f"an answer of the batch holds no message: {error}", "protocol") from None
        finish = "refusal" if refusal else finish_of(first.get("finish_reason"))
        usage: Any = body["usage"] if isinstance(body.get("usage"), dict) else {}
        tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        model = body.get("model") or self._choice.model
        return reply_of(text, finish, messages, tokens, model, elapsed_s, self._secrets)


def _name(custom_id: str | None) -> str:
    """A request's name and job, without the digest of its prompt that ends its id."""
    return (custom_id or "").rpartition("-")[0] or (custom_id or "")


def _custom_id(line: bytes) -> str | None:
    if len(line) >= _MAX_LINE_BYTES:  # the line was not read to its end
        named = _NAME.search(line[:_NAME_WITHIN_BYTES])
        return named[1].decode("ascii", "replace") if named else None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = value.get("custom_id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
