"""Identifies the platform of a measurement: figures of two platforms are never shown together without saying so.

A platform is a card (or a CPU model with a number of threads) under one driver and power limit with one torch, one
Triton and one version of the referee. Its peak rates are measured anew on each platform. They describe it but do
not identify it, because two measurements of one card differ by noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What a figure depends on: keys of a verdict's environment, and their names for people.
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
#: Differences that make another type of machine. Threads count only on a CPU: a GPU's figures hardly depend on
#: them.
_TYPE = ("device", "device_name")


@dataclass(frozen=True)
class Change:
    """One difference between environments: ``name`` for people, and both values."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} {_word(self.before)} -> {_word(self.now)}"


def fingerprint(environment: Mapping[str, Any]) -> str:
    """16 hex digits that identify the platform of a verdict's environment."""
    parts = [environment.get(name) for name in _PARTS]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def platform(environment: Mapping[str, Any]) -> str:
    """The same for any card of its type: figures with equal values may be ranked together.

    A change of driver, power limit, torch, Triton, referee version, or number of CPU threads makes another
    platform.
    """
    parts = [environment.get(name) for name in _PARTS if name not in ("gpu_uuid", "threads")]
    return hashlib.sha256(json.dumps([*parts, type_of(environment)], default=str).encode()).hexdigest()[:16]


def type_of(environment: Mapping[str, Any]) -> str:
    """The type of machine, for people: the name of the card or CPU, for a CPU with its threads; empty if unknown."""
    name = str(environment.get("device_name") or "")
    if environment.get("device") == "cpu" and name:
        return f"{name}, {environment.get('threads')} threads"
    return name


def same_type(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether both were measured on the same type of machine; False if unknown."""
    known = all(before.get(name) is not None and before.get(name) == now.get(name) for name in _TYPE)
    return known and type_of(before) == type_of(now)


def comparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether figures are comparable: the same type of machine, measured by the same version of the referee."""
    return same_type(before, now) and before.get("harness") == now.get("harness")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    """The changed values on which figures depend."""
    return tuple(
        Change(words, before.get(name), now.get(name))
        for name, words in _PARTS.items()
        if before.get(name) != now.get(name)
    )


def _word(value: Any) -> str:
    return "unknown" if value is None else str(value)[:80]
