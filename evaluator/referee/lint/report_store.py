"""Stores reports for the next submission of the same task on the same device with the same harness.

Only the referee's process reads and writes the folder; no sandbox sees it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.description import LintReport
from evaluator.environment import harness_digest
from evaluator.keeping import keep_json
from evaluator.sources import TaskSource


class ReportStore:
    """Reports in ``folder``, one file per task and environment.

    Args:
        folder: private to the referee.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, task: TaskSource, environment: Mapping[str, Any]) -> LintReport | None:
        """The report on a task in this environment, if there is one."""
        try:
            return LintReport.from_json(json.loads(self._path(task, environment).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, task: TaskSource, environment: Mapping[str, Any], report: LintReport) -> None:
        """Stores a report about the task. Failures of the machine are not stored, so they are tried again."""
        rules = {finding.rule for finding in report.findings}
        if report.verdict == "not_judged" or rules & {"too_slow", "too_large"}:
            return
        keep_json(self._path(task, environment), report.as_json())

    def _path(self, task: TaskSource, environment: Mapping[str, Any]) -> Path:
        parts = json.dumps([dict(environment), task.sha256, harness_digest()], sort_keys=True, default=str)
        return self._folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:40]}.json"
