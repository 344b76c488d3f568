"""Where a verdict was measured: the device and the versions that its figures depend on."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evaluator.devices import Device
from evaluator.fingerprint import fingerprint
from evaluator.verdict import HARNESS_VERSION

_SOURCES = (".py", ".c", ".cu")


@cache
def package_version(package: str) -> str | None:
    """A package's version from its metadata, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def thread_count() -> int:
    """Number of threads that torch may use in a role."""
    return os.cpu_count() or 1


def measured_on(device: Device) -> dict[str, Any]:
    """A verdict's environment, except the sandbox tier and the ceilings."""
    found = {
        **device.facts(),
        "torch": package_version("torch") or "none",
        "triton": package_version("triton"),
        "threads": thread_count(),
        "harness": HARNESS_VERSION,
    }
    return {**found, "fingerprint": fingerprint(found)}


@cache
def harness_digest() -> str:
    """Hex SHA-256 over this package's own sources: an edited referee must not reuse another one's results."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
