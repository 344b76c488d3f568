"""Ceilings of this machine: measured once per GPU and driver (per model of a CPU), kept, never looked up in a data sheet.

    {"schema": "kernelwright.ceilings/2", "environment": {...}, "measured_at": "...", "elapsed_s": 9.1, "rates": {name: number},
     "tried": {name: [{"size": 4096, "rate": 6.9e14}, ...]}}

Names end in their unit: ``_bytes_per_s``, ``_flops_per_s``, ``_per_s``, ``_s``. What a device cannot do is null. A copy
counts what it reads and what it writes. Memory and products are measured at several sizes and the best counts: ``tried`` holds
every size, so that a reader sees whether more would have come of a larger one. A size is the bytes that a copy reads and
writes (a sum reads), or the side of the square matrices of a product. The benchmark is our own code and runs in a process of its own, since measuring
takes torch, a CUDA context and memory that the caller does not want to keep.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evaluator.devices import Device, backend_of, open_device
from evaluator.environment import measured_on
from evaluator.errors import EvaluatorError
from evaluator.keeping import keep_json
from evaluator.timing.exclusive import DeviceLock

SCHEMA = "kernelwright.ceilings/2"
_DEADLINE_S = 300.0
#: A card with another driver or torch is another machine; a CPU has no driver, but a number of threads.
_IDENTITY = ("device_name", "gpu_uuid", "driver", "torch", "threads")
_ROOT = Path(__file__).resolve().parent.parent.parent


def kept_path(work_dir: Path, device: Device) -> Path:
    """Where the ceilings of a device lie."""
    environment = measured_on(device)
    identity = json.dumps([SCHEMA, *(str(environment.get(name)) for name in _IDENTITY)])
    return work_dir / "ceilings" / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


def kept(work_dir: Path, kind: str) -> dict[str, Any] | None:
    """The ceilings that were measured here before, or None.

    Raises:
        EvaluatorError: no such device.
    """
    try:
        value = json.loads(kept_path(work_dir, open_device(kind)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else None


def digest(work_dir: Path, kind: str) -> str | None:
    """16 hex digits that name the ceilings kept here, for measurements made beside them; None where there are none."""
    value = kept(work_dir, kind)
    if value is None:
        return None
    return hashlib.sha256(json.dumps(value["rates"], sort_keys=True).encode()).hexdigest()[:16]


def ceilings(work_dir: Path, kind: str, *, fresh: bool = False) -> dict[str, Any]:
    """The ceilings of a device, measured now if they are not known or if asked to (half a minute on a GPU, 15 s on two cores).

    Args:
        work_dir: the referee's work folder.
        kind: ``cpu`` or ``cuda``.
        fresh: measure again.

    Raises:
        EvaluatorError: no such device, or the benchmark failed.
    """
    found = None if fresh else kept(work_dir, kind)
    if found is not None:
        return found
    device = open_device(kind)
    environment = measured_on(device)
    with DeviceLock(str(environment["gpu_uuid"] or "cpu")).exclusive():
        found = None if fresh else kept(work_dir, kind)
        if found is not None:  # another process measured them while this one waited
            return found
        started = time.monotonic()
        measured = _measure(kind)
        elapsed_s = time.monotonic() - started
    value = {
        "schema": SCHEMA,
        "environment": environment,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "elapsed_s": round(elapsed_s, 1),
        "rates": measured["rates"],
        "tried": measured["tried"],
    }
    path = kept_path(work_dir, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    keep_json(path, value)
    return value


def _measure(kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "evaluator.profiling.ceilings", kind]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EvaluatorError(f"the microbenchmarks took longer than {_DEADLINE_S:.0f} s") from None
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:]
        raise EvaluatorError(f"the microbenchmarks failed: {' '.join(last)}")
    measured: dict[str, Any] = json.loads(ran.stdout)
    return measured


def _main(kind: str) -> None:
    sys.stdout.write(json.dumps(backend_of(kind).ceilings()))


if __name__ == "__main__":
    _main(sys.argv[1])
