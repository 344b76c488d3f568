"""A job that is small enough for tests: a module that sorts twice, four scripted replies, one shape per split.

Run as a program (`python -m tests.agent.small_job FOLDER BASE_URL WORK_DIR`) it works on the job in FOLDER until it is done or
killed, as a worker does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agent.candidates import Candidate
from agent.job import run_job
from agent.spec import Budget, JobOutcome, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.sources import TaskSource
from tests.agent.chat_server import Answer

TASK = '''
import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=64), "cols": Dim(8, 1024, default=256)}


class Model(nn.Module):
    """Sorts twice for the same values, which no compiler notices: one sort is faster anywhere."""

    def __init__(self, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = torch.sort(x, dim=1).values
        again = torch.sort(x.flip(1), dim=1).values
        return (0.5 * once + 0.5 * again) * self.weight


def get_inputs(rows: int = 64, cols: int = 256):
    return [torch.randn(rows, cols)]


def get_init_inputs(cols: int = 256):
    return [cols]
'''

GOOD = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return torch.sort(x, dim=1).values * self.weight
"""
WRONG = GOOD.replace("* self.weight", "* self.weight.abs()")
BROKEN = GOOD.replace("torch.sort", "torch.sorted")
# Right, and so much slower than the other that noise cannot make it the winner: what a job delivers, and with it what is
# judged, must be the same every time.
SLOWER = GOOD.replace(
    "        return torch.sort(x, dim=1).values *",
    "        values = torch.sort(torch.sort(x, dim=1).values.flip(1), dim=1).values\n        return values *",
)

SHAPES = {
    "visible": [{"rows": 64, "cols": 256}],
    "validation": [{"rows": 96, "cols": 248}],
    "held_out": [{"rows": 120, "cols": 264}],
    "adversarial": [{"rows": 3, "cols": 8}],
}


def fenced(source: str) -> Answer:
    """A reply with a file."""
    return Answer(f"```python\n{source}```\n")


def scripted(request: dict[str, Any]) -> Answer:
    """The reply to a request, the same however often it is repeated: wrong first, then repaired."""
    first = request["model"] == "first"
    if len(request["messages"]) == 2:
        return fenced(WRONG if first else BROKEN)
    return fenced(GOOD if first else SLOWER)


def spec(base_url: str | None = None, **more: Any) -> JobSpec:
    """The job; with a model server when there is an address."""
    models = tuple(ModelChoice(name, base_url=base_url) for name in ("first", "second")) if base_url else ()
    settings: dict[str, Any] = {
        "origins": ("llm",),
        "budget": Budget(),
        "shapes": SHAPES,
        "strategy": Strategy(),
        **more,
    }
    task = settings.pop("task", TaskSource("sort_twice", TASK))
    return JobSpec("job", "sort twice", task, models=models, **settings)


def judged(store: FolderStore) -> set[tuple[str, str, str]]:
    """(candidate, phase, verdict word) of everything that was judged; optimized.py holds measured figures, so by its name."""
    return {
        (_known_by(candidate), phase, verdict.verdict)
        for candidate in store.candidates()
        for phase in ("screen", "validation", "held_out")
        if (verdict := store.verdict(candidate.sha256, phase)) is not None
    }


def _known_by(candidate: Candidate) -> str:
    return candidate.label if candidate.label == "optimized.py" else candidate.sha256


def main(folder: Path, base_url: str, work_dir: Path) -> JobOutcome:
    """Work on the job in `folder`."""
    with Referee("cpu", work_dir=work_dir) as referee:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        return run_job(spec(base_url), FolderStore(folder / "store"), referee, folder / "out")


if __name__ == "__main__":
    outcome = main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    sys.stdout.write(json.dumps({"state": outcome.state, "reason": outcome.reason}) + "\n")
