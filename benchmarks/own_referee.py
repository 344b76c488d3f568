"""A referee without a process of its own, for measurements that must see what its clients are never told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.client import ProgressCallback
from evaluator.description import Description
from evaluator.errors import EvaluatorError
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.roles.tool_run import ToolResult
from evaluator.sources import CandidateSource, TaskSource
from evaluator.timing.cores import keep_to
from evaluator.verdict import Verdict, as_json, from_json


class OwnReferee:
    """A referee in this process, with the calls of `evaluator.client.Referee` that a job makes.

    Attributes:
        core: the referee itself; another one after `restart`.

    Args:
        device: "cpu" or "cuda".
        work_dir: for what compilers make.
        referees: how many share the device, this one among them.
    """

    def __init__(self, device: str, work_dir: Path, referees: int = 1) -> None:
        self._device = device
        self._work_dir = work_dir
        self._referees = referees
        self.core = self._open()

    def _open(self) -> RefereeCore:
        core = RefereeCore(self._device, self._work_dir, "landlock", referees=self._referees)
        keep_to(core.fleet.role_cores)
        core.fleet.warm_up()
        return core

    def restart(self) -> None:
        """See `Referee.restart`."""
        self.core.close()
        self.core = self._open()

    def close(self) -> None:
        """Ends its processes."""
        self.core.close()

    def describe(
        self,
        task: TaskSource,
        *,
        deadline_s: float = 120.0,
        traffic: Sequence[Mapping[str, Any]] | None = None,
        space: Mapping[str, Any] | None = None,
    ) -> Description:
        """See `Referee.describe`."""
        known = list(traffic) if traffic else None
        return Description.from_json(
            _as_told(lambda: self.core.describe(task, deadline_s, known, space).as_json())
        )

    def evaluate(
        self,
        task: TaskSource,
        candidate: CandidateSource,
        *,
        on_progress: ProgressCallback | None = None,
        deadline_s: float | None = None,
        **fields: Any,
    ) -> Verdict:
        """See `Referee.evaluate`."""

        def progress(stage: str, done: int, total: int, text: str) -> None:
            if on_progress is not None:
                on_progress({"stage": stage, "done": done, "total": total, "text": text})

        request = Request(task, candidate, deadline_s=deadline_s or 900.0, **fields)
        return from_json(_as_told(lambda: as_json(self.core.evaluate(request, progress))))

    def run_tool(self, program: str, files: Mapping[str, str], **limits: Any) -> ToolResult:
        """See `Referee.run_tool`."""
        return self.core.run_tool(program, files, **{"deadline_s": 120.0, **limits})


def _as_told(answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer as it would have come through pipes; a fault of ours as an error that a job can store."""
    try:
        told: dict[str, Any] = json.loads(json.dumps(answer()))
    except EvaluatorError:
        raise
    except Exception as error:
        raise EvaluatorError(f"Bug: {type(error).__name__}: {error}") from error
    return told
