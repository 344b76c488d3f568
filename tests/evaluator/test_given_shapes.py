"""Shapes that somebody names: within what a machine can hold, and not kept open for ever."""

from __future__ import annotations

import os
import signal

import pytest

from evaluator.referee.judging import core as core_module
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

TASK = TaskSource(
    "wide",
    """import torch
from kernelbench_tasks import Dim

DIMS = {"n": Dim(1, 1 << 36, default=64)}


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1.0


def get_inputs(n=64):
    return [torch.randn(n)]


def get_init_inputs():
    return []
""",
)
WRONG = CandidateSource(
    "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 2.0\n"
)


def judged(core: RefereeCore, *sizes: int) -> Verdict:
    shapes = {"visible": [{"n": size} for size in sizes], "adversarial": [{"n": 5}]}
    return core.evaluate(Request(TASK, WRONG, shapes=shapes), lambda *_: None)


def test_a_shape_that_no_machine_holds_is_refused_with_its_name(core: RefereeCore) -> None:
    found = judged(core, 64, 1 << 35)
    assert found.verdict == "task_rejected"
    assert "at n=34359738368 the inputs are larger than" in str(found.reason)
    assert judged(core, 64).verdict == "incorrect"


def test_a_task_with_very_many_open_shapes_is_closed(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "_MOST_OPEN_SHAPES", 3)
    judged(core, 64)
    assert TASK.sha256 in core._sessions
    judged(core, 65, 66, 67)
    assert TASK.sha256 not in core._sessions
    assert judged(core, 64).verdict == "incorrect"


def test_a_reference_that_has_served_and_dies_is_started_once_more(core: RefereeCore) -> None:
    """A fault of the device may end it between two candidates, of which neither is to blame, nor is the task."""
    assert judged(core, 64).verdict == "incorrect"
    os.kill(core._sessions[TASK.sha256].process.pid, signal.SIGKILL)
    assert judged(core, 65).verdict == "incorrect"


def test_a_reference_that_fails_in_a_new_process_too_is_refused(core: RefereeCore) -> None:
    assert judged(core, 64).verdict == "incorrect"
    assert judged(core, 1 << 35).verdict == "task_rejected"
