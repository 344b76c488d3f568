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


def package_version(package: str) -> str | None:
    """The version that a package's metadata names, without importing it; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def thread_count() -> int:
    """Threads that torch may use in a role."""
    return os.cpu_count() or 1


def measured_on(device: Device) -> dict[str, Any]:
    """A verdict's environment, all but the sandbox tier and the ceilings."""
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
    """Hex SHA-256 over this package's own sources: what an edited referee measured answers no question to another one."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
