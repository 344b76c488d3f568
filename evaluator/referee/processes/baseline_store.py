"""What the baselines of a task took at a shape, kept for the next referee on this device.

Only the referee reads and writes it. Times are never taken on trust: they say which baselines are worth loading, and
count only after a few fresh rounds of the fastest two agree with them (:meth:`TaskSession.rank_baselines`). A file is sealed:
fresh rounds look at two baselines, and one that a damaged file called slow would be missed.
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

#: A ranking that nobody has repeated for so long is made anew.
_MAX_AGE_S = 7 * 24 * 3600.0
#: In place of a shape's dimensions; and for so long a referee trusts another one that the machine is fit for timing.
_AGREEMENT, _AGREEMENT_AGE_S = "agreement", 900.0


class BaselineStore:
    """Rankings in ``folder``, one file for a task, a shape and a place where it was measured.

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
        """Microseconds per call and reason of failure of each of the baselines ``names``; None if not all are known."""
        path = self._path(environment, task_sha256, dims, names)
        try:
            if time.time() - path.stat().st_mtime > _MAX_AGE_S:
                return None
            rows = read_sealed(path)
            known = {str(row["name"]): (float(row["median_us"]), str(row["failure"])) for row in rows}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        timed = [us for us, failure in known.values() if not failure]
        sound = bool(timed) and all(math.isfinite(us) and us > 0 for us in timed)
        return known if sound and set(known) == set(names) else None

    def put(
        self, environment: dict[str, Any], task_sha256: str, dims: Any, times: dict[str, tuple[float, str]]
    ) -> None:
        """Keeps a ranking in place of an earlier one."""
        path = self._path(environment, task_sha256, dims, list(times))
        rows = [{"name": name, "median_us": us, "failure": why} for name, (us, why) in times.items()]
        keep_sealed(path, rows)

    def agreement(self, environment: dict[str, Any], task_sha256: str) -> dict[str, Any] | None:
        """What another referee here has found a moment ago of the reference against itself; None if nobody has."""
        path = self._path(environment, task_sha256, _AGREEMENT)
        try:
            age_s = time.time() - path.stat().st_mtime
            found = read_sealed(path)
        except (OSError, ValueError):
            return None
        return found if 0 <= age_s <= _AGREEMENT_AGE_S and isinstance(found, dict) else None

    def keep_agreement(self, environment: dict[str, Any], task_sha256: str, found: dict[str, Any]) -> None:
        """Keeps what :func:`evaluator.referee.measuring.calibration.gate` found."""
        keep_sealed(self._path(environment, task_sha256, _AGREEMENT), found)
