"""Masks secrets in all text that is stored, shown, logged or sent to a model.

Secrets are known by value: the values of environment variables whose names mark them as secret. `redact` replaces each
value in plain, base64 and percent-encoded form. It does not replace strings that merely look like keys, since that would
change a candidate's source.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

MASK = "***"
_NAMES = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE
)
_LEAST_CHARACTERS = 8  # a shorter value would match ordinary text
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
# Key formats of well-known providers, and headers and URLs that carry credentials.
_KEY_FORMS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\bBearer\s+[\w.~+/-]{16,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{6,}"
    r"|://[^\s/:@\"']+:[^\s/@\"']+@"
)
_LEAST_FOUND_CHARACTERS = 6  # a shorter value would match by chance


def known_secrets(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Values of environment variables with secret names, plus `more`; at least 8 characters each, longest first."""
    values = {value for name, value in os.environ.items() if _NAMES.search(name)} | set(more)
    return tuple(sorted((one for one in values if len(one) >= _LEAST_CHARACTERS), key=len, reverse=True))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables that hold secrets by their names, for programs that need no key."""
    return {name: value for name, value in environment.items() if not _NAMES.search(name)}


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `MASK`."""
    for secret in secrets:
        encoded = secret.encode("utf-8", "surrogateescape")
        forms = (secret, base64.b64encode(encoded).decode().rstrip("="), quote(encoded, safe=""))
        for form in forms:
            if form in text:
                text = text.replace(form, MASK)
    return text


def redact_message(text: str, secrets: Iterable[str]) -> str:
    """`redact` for error messages, which may also contain headers and URLs with a password."""
    text = _IN_ADDRESS.sub(f"{MASK}@", redact(text, secrets))
    return _BEARER.sub(rf"\1 {MASK}", text)


class RedactingFilter(logging.Filter):
    """Log handler filter that masks secrets in the formatted message and the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`; never drops a record."""
        secrets = known_secrets()
        record.msg, record.args = redact_message(record.getMessage(), secrets), ()
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            record.exc_text = redact_message(text, secrets)
        return True


def mask_logs(logger: logging.Logger | None = None) -> None:
    """Mask secrets in all output of a logger's handlers; by default the root logger's, or logging's last-resort handler."""
    handlers = (logger or logging.getLogger()).handlers
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
    for handler in handlers:
        if not any(isinstance(one, RedactingFilter) for one in handler.filters):
            handler.addFilter(RedactingFilter())


def redact_json(value: Any, secrets: Iterable[str]) -> Any:
    """Apply `redact` to every string value inside a JSON value; keys stay."""
    kept = tuple(secrets)
    if isinstance(value, str):
        return redact(value, kept)
    if isinstance(value, list):
        return [redact_json(item, kept) for item in value]
    if isinstance(value, dict):
        return {key: redact_json(item, kept) for key, item in value.items()}
    return value


def holds_secret(text: str, known: Collection[str] = ()) -> bool:
    """Whether text contains one of the `known` secrets or a string formatted like a key."""
    return _KEY_FORMS.search(text) is not None or any(
        len(value) >= _LEAST_FOUND_CHARACTERS and value in text for value in known
    )
