"""Chat completions from any server that implements OpenAI's API: OpenAI, vLLM, llama.cpp, Ollama, gateways."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
from openai import OpenAI

from agent.errors import ProviderError
from agent.messages import Message, Reply, finish_of, reply_of
from agent.providers.limits import MAX_BODY_BYTES, BodyTooLong, LimitedTransport
from agent.redaction import known_secrets, redact, redact_message
from agent.spec import ModelChoice

_DEFAULT_ADDRESS = "https://api.openai.com/v1"  # the openai client's default
_MAX_ERROR_CHARACTERS = 500
_MAX_WAIT_S = 60.0  # between two tries; also caps `Retry-After`
#: Error text by which servers report that a prompt exceeds the context, if they send no error code for it.
_NO_ROOM = re.compile(r"context (length|window|size)|maximum context|prompt is too long", re.IGNORECASE)
#: That an answer may not be as long as was asked for.
_OF_ANSWERS = re.compile(r"max\w*_tokens|(output|completion) tokens|model limit", re.IGNORECASE)
#: Below the first, a shorter answer holds no file; below the second, a number is no limit of tokens.
_LEAST_TOKENS, _FEWEST_TOKENS = 4096, 256
_FIRST_WAIT_S = 0.5
_NO_KEY = "not-needed"  # local servers accept anything, but the client requires a value
_RETRIED = frozenset({"rate_limit", "server"})
"""Kinds of failure that are retried: the server generated and billed nothing, and the next try may succeed."""


class OpenAICompatible:
    """`agent.providers.registry.Provider` over HTTP.

    Answers are streamed, so that a gateway between does not take a model that writes for minutes for a dead one; a server that does not
    stream is understood, too. Retries 429, 5xx and refused connections after the delay in `Retry-After`; never retries a timeout or
    an answer that broke off, which may have been billed.

    Args:
        choice: model, address and limits; its `api_key_variable` names the environment variable with the key.
        max_retries: retries per request.
    """

    def __init__(self, choice: ModelChoice, max_retries: int = 2) -> None:
        self._choice = choice
        self._key = os.environ.get(choice.api_key_variable) or _NO_KEY
        self._secrets = known_secrets([self._key] if self._key != _NO_KEY else [])
        self._max_retries = max_retries
        self._closing = threading.Event()
        address = choice.base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_ADDRESS
        http_client = httpx.Client(
            transport=LimitedTransport(address, choice.timeout_s), timeout=choice.timeout_s
        )
        self._client = OpenAI(
            api_key=self._key,
            base_url=address,
            timeout=choice.timeout_s,
            max_retries=0,
            http_client=http_client,  # type: ignore[arg-type]  # typed for the newest httpx, accepts either
        )
        self._way = _Way()

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """See `Provider.complete`."""
        began_s = time.monotonic()
        clean = [Message(message.role, redact(message.content, self._secrets)) for message in messages]
        retries = 0
        while True:
            try:
                answer = self._send(clean, max_tokens or self._choice.max_tokens, key)
                return self._reply(answer, clean, time.monotonic() - began_s, retries)
            except _Failed as failed:
                wait_s = _wait_s(failed.response, retries)
                late = time.monotonic() + wait_s - began_s > self._choice.timeout_s
                if failed.kind not in _RETRIED or retries >= self._max_retries or late:
                    # `from None`: the chained exception contains the request with its Authorization header.
                    raise ProviderError(self._clean(str(failed)), failed.kind) from None
                retries += 1
                if self._closing.wait(wait_s):
                    raise ProviderError("the job ended while the request waited", "server") from None

    def close(self) -> None:
        """See `Provider.close`."""
        self._closing.set()
        self._client.close()

    def _send(self, messages: Sequence[Message], max_tokens: int, key: str | None) -> _Answer:
        # Several requests run at once: what this one sent decides what its next try leaves out.
        way = self._way
        limit = min(max_tokens, way.most_tokens or max_tokens)
        while True:
            try:
                answer = self._create(messages, way, limit, key)
                self._way = way
                return answer
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                refusal = str(error)
                if limit > _LEAST_TOKENS and _NO_ROOM.search(refusal):
                    limit //= 2  # for this prompt alone
                elif less := _allowed_tokens(refusal, limit):
                    limit, way = less, replace(way, most_tokens=less)
                elif way.with_usage and "stream_options" in refusal:
                    way = replace(way, with_usage=False)
                elif way.streams and "stream" in refusal.lower():
                    way = replace(way, streams=False)
                elif way.limit_name in refusal and way.limit_name != "max_tokens":
                    way = replace(way, limit_name="max_tokens")  # older servers know only this name
                else:
                    raise self._failed(error) from None
            except openai.OpenAIError as error:
                raise self._failed(error) from None
            except httpx.TransportError as error:  # while the answer was read
                raise _Failed(f"{type(error).__name__}: {error}", _kind_of_break(error), None) from None
            except (ValueError, RecursionError) as error:
                raise _Failed(f"the answer is not JSON: {error}", "protocol", None) from None

    def _failed(self, error: openai.OpenAIError) -> _Failed:
        return _Failed(
            f"{type(error).__name__}: {_words(error)}", _kind(error), getattr(error, "response", None)
        )

    def _create(self, messages: Sequence[Message], way: _Way, limit: int, key: str | None) -> _Answer:
        options: dict[str, Any] = {way.limit_name: limit}
        if way.streams:
            options["stream"] = True
            if way.with_usage:
                options["stream_options"] = {"include_usage": True}
        if self._choice.temperature is not None:
            options["temperature"] = self._choice.temperature
        if key is not None:
            options["extra_headers"] = {"Idempotency-Key": key}
        raw = self._client.chat.completions.with_raw_response.create(
            model=self._choice.model,
            messages=[{"role": message.role, "content": message.content} for message in messages],  # type: ignore[misc]
            **options,
        )
        response = raw.http_response
        try:
            if way.streams and "json" not in response.headers.get("Content-Type", ""):
                return _joined(_events(response))
            return _whole(json.loads(response.read()))
        finally:
            response.close()

    def _reply(self, answer: _Answer, messages: Sequence[Message], elapsed_s: float, retries: int) -> Reply:
        finish = "refusal" if answer.refusal else finish_of(answer.finish)
        model = answer.model or self._choice.model
        text = answer.text or answer.refusal
        return reply_of(text, finish, messages, answer.tokens, model, elapsed_s, self._secrets, retries)

    def _clean(self, text: str) -> str:
        """An error's text in one line, without the key, which some servers echo."""
        text = redact_message(" ".join(text.split()), self._secrets)
        return text.encode("utf-8", "replace").decode()[:_MAX_ERROR_CHARACTERS]


@dataclass(frozen=True)
class _Way:
    """How a server is asked: what it refused is left out. ``most_tokens`` of an answer, where it said so."""

    limit_name: str = "max_completion_tokens"
    most_tokens: int | None = None
    streams: bool = True
    with_usage: bool = True


def _allowed_tokens(refusal: str, limit: int) -> int | None:
    """How long an answer may be by a refusal of ``limit`` tokens; None if it is about something else."""
    if not _OF_ANSWERS.search(refusal):
        return None
    numbers = [
        int(number) for number in re.findall(r"(?<![\w-])\d{3,7}(?![\w-])", refusal)
    ]  # no parts of names
    return max((number for number in numbers if _FEWEST_TOKENS <= number < limit), default=None)


@dataclass
class _Answer:
    """What of an answer is used; ``tokens`` of prompt and answer are as reported, if at all."""

    text: str = ""
    refusal: str = ""
    finish: Any = None
    tokens: tuple[Any, Any] = (None, None)
    model: Any = None


def _whole(body: Any) -> _Answer:
    """An answer in one piece.

    Raises:
        _Failed: it holds no message.
    """
    answer = _Answer()
    try:
        first = body["choices"][0]
        _add(answer, body, first, first["message"])
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _Failed(f"the answer holds no message: {type(error).__name__}", "protocol", None) from None
    return answer


def _joined(events: Iterable[Any]) -> _Answer:
    """An answer in pieces.

    Raises:
        _Failed: it breaks off, is too long, or holds something else.
    """
    answer, pieces, length, ended, count = _Answer(), list[str](), 0, False, 0
    try:
        for event in events:
            count += 1
            if event is None:
                ended = True
                break
            if error := event.get("error"):
                # What came before may have been billed.
                kind = "cut" if length else "rate_limit" if "429" in str(error) else "server"
                raise _Failed(f"the server ended its answer with an error: {error}", kind, None)
            choice = (event.get("choices") or [{}])[0]
            _add(answer, event, choice, choice.get("delta") or {})
            pieces.append(answer.text)
            length += len(answer.text)
            answer.text = ""
            if length > MAX_BODY_BYTES:
                raise _Failed(f"the answer is longer than {MAX_BODY_BYTES} bytes", "too_long", None)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _Failed(
            f"a piece of the answer holds no text: {type(error).__name__}", "protocol", None
        ) from None
    if not count:
        raise _Failed("the answer holds no event", "protocol", None)
    if answer.finish is None and not ended:
        raise _Failed("the answer broke off", "cut", None)
    answer.text = "".join(pieces)
    return answer


def _events(response: Any) -> Iterator[Any]:
    """Data of the server-sent events of an httpx response; None for the one that ends them."""
    for line in response.iter_lines():
        data = line[5:].strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            yield None
            return
        if data:
            yield json.loads(data)


def _add(answer: _Answer, body: Any, choice: Any, message: Any) -> None:
    """Takes what a body, or an event, says of an answer."""
    text, refusal = message.get("content") or "", message.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError(f"content is {type(text).__name__}")
    answer.text = text
    answer.refusal += str(refusal)
    answer.finish = choice.get("finish_reason") or answer.finish
    answer.model = body.get("model") or answer.model
    if usage := body.get("usage"):
        answer.tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")


class _Failed(Exception):
    def __init__(self, message: str, kind: str, response: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.response = response


def _wait_s(response: Any, retries: int) -> float:
    """Seconds until the next try: the value of `Retry-After`, else exponential backoff."""
    try:
        asked_s = float(response.headers.get("Retry-After"))
    except (AttributeError, TypeError, ValueError):
        asked_s = -1.0
    if not 0 <= asked_s < float("inf"):
        asked_s = _FIRST_WAIT_S * 2**retries
    return min(asked_s, _MAX_WAIT_S)


def _words(error: openai.OpenAIError) -> str:
    cause = error.__cause__
    return f"{error} {cause}" if isinstance(error, openai.APIConnectionError) and cause else str(error)


def _kind_of_break(error: httpx.TransportError) -> str:
    if isinstance(error, BodyTooLong):
        return "too_long"
    return "timeout" if isinstance(error, httpx.TimeoutException) else "cut"


def _kind(error: openai.OpenAIError) -> str:
    if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
        return "authentication"
    if isinstance(error, openai.RateLimitError):
        return "rate_limit"
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    if isinstance(error, openai.APIConnectionError):
        # Only a connection that was never established certainly cost nothing.
        if isinstance(error.__cause__, BodyTooLong):
            return "too_long"
        return "server" if isinstance(error.__cause__, httpx.ConnectError) else "cut"
    if isinstance(error, openai.InternalServerError):
        return "server"
    if isinstance(error, openai.APIResponseValidationError):
        return "protocol"
    if isinstance(error, openai.BadRequestError) and (
        error.code == "context_length_exceeded" or _NO_ROOM.search(str(error))
    ):
        return "no_room"
    return "request"
