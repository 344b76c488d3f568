"""Stores how long a task's baselines took at a shape, for the next referee on this device.

Only the referee reads and writes it. Stored times are never trusted alone: they say which baselines to load, and
count only after a few fresh rounds of the fastest two confirm them (:meth:`TaskSession.rank_baselines`). Files are
sealed: fresh rounds cover two baselines, and a damaged file could hide a third by calling it slow.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluator.keeping import keep_sealed, read_sealed

#: A ranking that was not repeated for this long is made anew.
_MAX_AGE_S = 7 * 24 * 3600.0
#: The key used instead of a shape's dimensions, and how long one referee relies on another's check that the
#: machine is fit for timing.
_AGREEMENT, _AGREEMENT_AGE_S = "agreement", 900.0


class BaselineStore:
    """Rankings in ``folder``, one file per task, shape and machine.

    Args:
        folder: private to the referee.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(
        self, environment: dict[str, Any], task_sha256: str, dims: Any, names: Sequence[str] = ()
    ) -> Path:
        parts = json.dumps([environment, task_sha256, dims, sorted(names)], sort_keys=True, default=str)
        return self._folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:40]}.json"

    def get(
        self, environment: dict[str, Any], task_sha256: str, dims: Any, names: Sequence[str]
    ) -> dict[str, tuple[float, str]] | None:
        """Microseconds per call, or reason of failure, of each of the baselines ``names``; None if not all are
        known.
        """
        rows = _read(self._path(environment, task_sha256, dims, names), _MAX_AGE_S)
        try:
            known = {str(row["name"]): (float(row["median_us"]), str(row["failure"])) for row in rows or []}
        except (ValueError, KeyError, TypeError):
            return None
        timed = [us for us, failure in known.values() if not failure]
        sound = bool(timed) and all(math.isfinite(us) and us > 0 for us in timed)
        return known if sound and set(known) == set(names) else None

    def put(
        self, environment: dict[str, Any], task_sha256: str, dims: Any, times: dict[str, tuple[float, str]]
    ) -> None:
        """Stores a ranking, replacing an earlier one."""
        path = self._path(environment, task_sha256, dims, list(times))
        rows = [{"name": name, "median_us": us, "failure": why} for name, (us, why) in times.items()]
        keep_sealed(path, rows)

    def agreement(self, environment: dict[str, Any], task_sha256: str) -> dict[str, Any] | None:
        """Another referee's recent A/A result on this machine; None if there is none."""
        found = _read(self._path(environment, task_sha256, _AGREEMENT), _AGREEMENT_AGE_S)
        return found if isinstance(found, dict) else None

    def keep_agreement(self, environment: dict[str, Any], task_sha256: str, found: dict[str, Any]) -> None:
        """Stores the result of :func:`evaluator.referee.measuring.calibration.gate`."""
        keep_sealed(self._path(environment, task_sha256, _AGREEMENT), found)


def _read(path: Path, max_age_s: float) -> Any:
    """The stored value; None if there is none, or it is damaged, too old, or from the future."""
    try:
        return read_sealed(path) if 0 <= time.time() - path.stat().st_mtime <= max_age_s else None
    except (OSError, ValueError):
        return None
