"""Verdicts of one platform only: a job that was resumed on another machine does not choose between figures of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from evaluator.fingerprint import platform


class Measured(Protocol):
    """What carries a verdict."""

    @property
    def verdict(self) -> Mapping[str, Any]: ...


Entry = TypeVar("Entry", bound=Measured)


def of_one_platform(entries: Sequence[Entry]) -> list[Entry]:
    """Those measured on the platform on which most were; among equals where the last one was, since the job is there now."""
    keys = [platform(entry.verdict.get("environment") or {}) for entry in entries]
    if not keys:
        return []
    last = {key: place for place, key in enumerate(keys)}
    chosen = max(last, key=lambda key: (keys.count(key), last[key]))
    return [entry for entry, key in zip(entries, keys, strict=True) if key == chosen]
