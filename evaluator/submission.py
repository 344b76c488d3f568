"""Prepares a user's task for judging: the file itself or, if it declares no `DIMS`, the file with its inferred
space.

The result is stored: a task has the same space for every candidate, and later referees need not infer it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.environment import harness_digest
from evaluator.errors import RoleFailure
from evaluator.keeping import keep_json
from evaluator.roles.tool_run import RunsTools
from evaluator.shapes.inference.declaring import declared, overridden
from evaluator.shapes.inference.result import DEADLINE_S, TOO_LATE, Inferred, infer
from evaluator.sources import TaskSource

# Not parsed, which would need a separate process. A file that hides its DIMS from this check gets the inferred
# one.
_DECLARATION = re.compile(r"^\s*DIMS\s*[:=]", re.MULTILINE)
_OWN_REDRAW = re.compile(r"^\s*(def\s+redraw\b|redraw\s*[:=])", re.MULTILINE)
#: PyTorch's default initialization shrinks a signal sixfold at every linear layer with a ReLU. A deep module's
#: output is then almost only its biases. A matrix of variance 2 / fan-in keeps the signal's size (He et al., 2015,
#: arXiv:1502.01852).
_REDRAW = '''

def redraw(model, generator):
    """Weights at a scale that keeps a signal's size from layer to layer: at that of the file, the output hardly depends on the inputs."""
    import torch

    parameters = {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            noise = torch.empty(tensor.shape).normal_(generator=generator)
            spread = float(tensor.double().std(correction=0))
            if name.endswith("running_var"):
                tensor.copy_(torch.empty(tensor.shape).uniform_(0.5, 1.5, generator=generator))
            elif name.endswith("running_mean"):
                tensor.copy_(0.25 * noise)
            elif name in parameters and tensor.dim() > 1:
                tensor.copy_(tensor.mean() + noise * max(spread, (2 / tensor[0].numel()) ** 0.5))
            elif name in parameters and tensor.numel() > 1:
                tensor.add_(noise * (spread or 0.25 * float(tensor.abs().mean()) or 0.25))
'''


@dataclass(frozen=True)
class Submission:
    """A task as it is judged.

    Attributes:
        task: the file that is judged.
        inferred: the inference result, without the rebuilt file; None if the file declares its space.
    """

    task: TaskSource
    inferred: Inferred | None = None


def declares_space(task: TaskSource) -> bool:
    """Whether the file declares which sizes it may have."""
    return _DECLARATION.search(task.source) is not None


def livelier(given: Submission) -> Submission | None:
    """The same task with weights that make its output depend on its inputs.

    None if the file declares its space or ``redraw``.
    """
    if given.inferred is None or _OWN_REDRAW.search(given.task.source):
        return None
    return replace(given, task=TaskSource(given.task.name, given.task.source + _REDRAW))


class Submissions:
    """Infers the space of tasks and stores the results in ``folder``, which is private to the referee."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(
        self,
        task: TaskSource,
        space: Mapping[str, Any],
        tools: RunsTools,
        deadline_s: float = DEADLINE_S,
    ) -> Submission:
        """The task as it is to be judged.

        Args:
            task: as it was submitted.
            space: the user's overrides, see :func:`evaluator.shapes.inference.declaring.overridden`.
            tools: where its code may run.
            deadline_s: seconds for the search.

        Raises:
            RoleFailure: ``space`` asks for what the task does not have, or the file declares its own.
        """
        if declares_space(task):
            if space:
                raise RoleFailure(
                    "task_rejected", "the file declares DIMS, so its space is changed there: edit DIMS"
                )
            return Submission(task)
        path = self._path(task, space)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return Submission(TaskSource(task.name, kept["source"]), Inferred.from_json(kept["inferred"]))
        except (OSError, ValueError, KeyError, TypeError, RoleFailure):
            pass
        found = infer(tools, task.source, min(deadline_s, DEADLINE_S))
        source = task.source
        if found.ok:
            found = replace(found, space=overridden(found, space))
            source = declared(found.source, found, space)
        elif space:
            raise RoleFailure(
                "task_rejected", f"no size of the task can be varied: {found.reason}; leave the space out"
            )
        inferred = replace(found, source="")
        # A failure that a busy machine may have caused is tried again.
        if found.reason != TOO_LATE:
            self._keep(path, source, inferred)
        return Submission(TaskSource(task.name, source), inferred)

    def give_up(self, task: TaskSource, inferred: Inferred, reason: str) -> Submission:
        """The task with its one shape, since the inferred space does not hold."""
        inferred = replace(inferred, ok=False, reason=reason, space={})
        self._keep(self._path(task, {}), task.source, inferred)
        return Submission(task, inferred)

    def _keep(self, path: Path, source: str, inferred: Inferred) -> None:
        keep_json(path, {"source": source, "inferred": inferred.as_json()})

    def _path(self, task: TaskSource, space: Mapping[str, Any]) -> Path:
        parts = json.dumps([task.sha256, space, harness_digest()], sort_keys=True)
        return self._folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:40]}.json"
