"""HTTP exchanges with a service: protection of the key, retries, and errors.

The key is sent in `Authorization: Bearer` over https, or over plain http to this machine only, since any machine in between
could read and use it. Redirects are not followed, and the environment's proxy is not used for loopback addresses.

Only idempotent requests are retried: GET, cancel, and requests with an `Idempotency-Key`.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import httpx

from services.client.errors import (
    OF_STATUS,
    Problem,
    ServiceFault,
    UnexpectedAnswer,
    Unreachable,
    UnsafeAddress,
    WrongField,
)
from services.users.addresses import is_loopback

KEY_VARIABLE = "KERNELWRIGHT_API_KEY"
TRIES = 4
_CONNECT_S = 10.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_PASSING = frozenset(
    {429, 502, 503, 504}
)  # responses of a busy or restarting service, or of a proxy in front of it
_LONGEST_TEXT = 2000
_MOST_FIELDS = 50
_KEY = re.compile(r"[\x21-\x7e]+")


class Exchange:
    """Sends requests to one service.

    Args:
        url: its address, for example https://kernels.example.org; a path in it is kept.
        api_key: None for no key.
        timeout_s: seconds without a byte after which a request fails.
        allow_insecure_key: allow sending the key over plain http to another machine.

    Raises:
        UnsafeAddress: the key must not be sent there, or the address or the key is malformed.
    """

    def __init__(
        self, url: str, api_key: str | None, *, timeout_s: float, allow_insecure_key: bool = False
    ) -> None:
        try:
            base = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UnsafeAddress(f"{url!r} is no address: {error}") from None
        if base.scheme not in ("http", "https") or not base.host:
            raise UnsafeAddress(f"{url!r} is no address of a service; write http://... or https://...")
        if base.userinfo or base.query or base.fragment:
            raise UnsafeAddress("the address holds a user, a query or a fragment; a key is given by itself")
        local = is_loopback(base.host)
        headers = {"User-Agent": "kernelwright", "Accept": "application/json"}
        if api_key is not None:
            if not _KEY.fullmatch(api_key):
                raise UnsafeAddress("the API key holds characters that no key has")
            if base.scheme == "http" and not local and not allow_insecure_key:
                raise UnsafeAddress(
                    f"the API key would travel to {base.host} unencrypted; use https, or say that you want that "
                    "(allow_insecure_key=True, --plain-http)"
                )
            headers["Authorization"] = f"Bearer {api_key}"
        self.shown = str(base).rstrip("/")
        self._http = httpx.Client(
            base_url=base,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            follow_redirects=False,
            trust_env=not local,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        again: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request and return its successful response.

        Args:
            method: the HTTP method.
            path: the path below the service's address.
            again: whether the request may be retried.
            headers: additional headers.
            timeout_s: overrides the default timeout.
            options: `json` or `params`, as httpx takes them.

        Raises:
            Problem: the service refused.
            Unreachable: no response on the last try.
        """
        if timeout_s is not None:
            options["timeout"] = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        for tried in range(1, TRIES + 1):
            last = not again or tried == TRIES
            try:
                response = self._http.request(method, path, headers=headers, **options)
            except httpx.RequestError as error:
                if last:
                    self.unreachable(error)
                pause(tried)
                continue
            if response.is_success:
                return response
            if last or not is_passing(response):
                raise problem_of(response)
            pause(tried, retry_after(response))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], read_timeout_s: float
    ) -> Iterator[httpx.Response]:
        """GET a streamed response; transport errors are raised as httpx's own, for the caller to handle."""
        timeout = httpx.Timeout(_CONNECT_S, read=read_timeout_s)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            yield response

    def unreachable(self, error: Exception) -> NoReturn:
        """Raise `Unreachable` for a transport error."""
        said = str(error) or type(error).__name__
        raise Unreachable(f"no service answers at {self.shown} ({said})") from None


def api_key_of(given: str | None) -> str | None:
    """The given key, else the environment's; an empty key counts as none."""
    return (given if given is not None else os.environ.get(KEY_VARIABLE, "").strip()) or None


def is_passing(response: httpx.Response) -> bool:
    """Whether a retry may soon succeed; False if the service asks for a longer wait than `_LONGEST_PAUSE_S`."""
    asked_s = retry_after(response)
    if asked_s is not None and asked_s > _LONGEST_PAUSE_S:
        return False
    # a 409 with Retry-After is a race with our own earlier request, whose response was lost
    return response.status_code in _PASSING or (response.status_code == 409 and asked_s is not None)


def pause(tried: int, asked_s: float | None = None) -> None:
    """Wait before the next try: exponential backoff with jitter, or as long as the service asks."""
    grown_s = _FIRST_PAUSE_S * 2 ** (tried - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
    time.sleep(min(grown_s if asked_s is None else asked_s, _LONGEST_PAUSE_S))


def problem_of(response: httpx.Response) -> Problem:
    """The exception for an error response. Text from the body is sanitized and bounded in length."""
    status = response.status_code
    kind = OF_STATUS.get(status, ServiceFault if status >= 500 else Problem)
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return kind(
            status, f"the answer was {status} {response.reason_phrase}", retry_after_s=retry_after(response)
        )
    listed = document.get("errors")
    errors = [
        WrongField(_text(item.get("field")), _text(item.get("message")))
        for item in (listed if isinstance(listed, list) else ())[:_MOST_FIELDS]
        if isinstance(item, dict)
    ]
    said = document.get("detail") or document.get("title") or f"the answer was {status}"
    return kind(
        status,
        _text(said),
        type=_text(document.get("type") or "about:blank"),
        errors=errors,
        retry_after_s=retry_after(response),
    )


def json_of(response: httpx.Response) -> Any:
    """Parse a response as JSON.

    Raises:
        UnexpectedAnswer: the response is not JSON.
    """
    try:
        return response.json()
    except ValueError:
        raise UnexpectedAnswer(f"{response.url} answered with something that is no JSON") from None


def _text(value: Any) -> str:
    return "".join(one if one.isprintable() else " " for one in str(value)[:_LONGEST_TEXT])


def retry_after(response: httpx.Response) -> float | None:
    """Seconds from the `Retry-After` header, if it holds a number."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 7 else None
