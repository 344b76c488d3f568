"""Which platform a measurement belongs to: figures of two platforms are never put beside each other unnamed.

A platform is a card (or a model of a CPU with so many threads) under one driver and power limit with one torch, one Triton
and one version of the referee. What it reaches at best is measured anew on each, so those rates describe it and do not
name it: two measurings of one card differ by noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What a figure depends on, in the words of a verdict's environment, and what people call it.
_PARTS = {
    "device": "device",
    "device_name": "device",
    "gpu_uuid": "card",
    "driver": "driver",
    "power_limit_w": "power limit (W)",
    "torch": "torch",
    "triton": "triton",
    "threads": "threads",
    "harness": "referee",
}
#: What makes it another type of machine. Threads count on a CPU only: a GPU's figures hardly know them.
_TYPE = ("device", "device_name")


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was: ``name`` for people, and both values."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} {_word(self.before)} -> {_word(self.now)}"


def fingerprint(environment: Mapping[str, Any]) -> str:
    """16 hex digits that name the platform of a verdict's environment."""
    parts = [environment.get(name) for name in _PARTS]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def platform(environment: Mapping[str, Any]) -> str:
    """The same for the platform whichever card of its type it is: figures may be ranked together where this is the same.

    Another driver, power limit, torch, Triton, version of the referee, or number of a CPU's threads makes another platform.
    """
    parts = [environment.get(name) for name in _PARTS if name not in ("gpu_uuid", "threads")]
    return hashlib.sha256(json.dumps([*parts, type_of(environment)], default=str).encode()).hexdigest()[:16]


def type_of(environment: Mapping[str, Any]) -> str:
    """The type of machine, for people: the card's or CPU's name, for a CPU with its threads; empty where nothing is known."""
    name = str(environment.get("device_name") or "")
    if environment.get("device") == "cpu" and name:
        return f"{name}, {environment.get('threads')} threads"
    return name


def same_type(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether figures of the two may be compared as those of one type of machine; no where it is not known."""
    known = all(before.get(name) is not None and before.get(name) == now.get(name) for name in _TYPE)
    return known and type_of(before) == type_of(now)


def comparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether figures of the two are in the same terms: one type of machine, measured by one version of the referee."""
    return same_type(before, now) and before.get("harness") == now.get("harness")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """What figures depend on and is no longer as it was."""
    return tuple(
        Change(words, before.get(name), now.get(name))
        for name, words in _PARTS.items()
        if before.get(name) != now.get(name)
    )


def _word(value: Any) -> str:
    return "unknown" if value is None else str(value)[:80]
