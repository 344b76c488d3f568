"""Stores verdicts, so that a second submission of the same source is answered at once.

One JSON file per verdict, below the referee's work folder, written atomically and only by the referee's process.
No sandbox sees the folder: the namespaces tier does not mount it, the landlock tier grants no access. A verdict is
reused only if everything that its figures depend on is the same, see :class:`Question` and
:meth:`VerdictStore.find`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.devices import Device
from evaluator.environment import harness_digest, measured_on
from evaluator.keeping import replacing
from evaluator.request import Request
from evaluator.submission import declares_space
from evaluator.verdict import SCHEMA, Verdict, as_json, from_json

#: Verdicts due to internal faults, the task, or a deadline of one run: not facts about the candidate.
_NOT_KEPT = ("not_judged", "timeout", "task_rejected")
#: Weakest first: a verdict from a stronger sandbox can be reused where a weaker one is allowed.
_TIERS = ("landlock", "namespaces")
_KEPT_PER_TASK = 10_000


@dataclass(frozen=True)
class Question:
    """What was asked, as far as the answer depends on it.

    Attributes:
        task, candidate: SHA-256 of the sources.
        effort: ``screen`` or ``confirm``.
        splits: which shapes, in any order.
        shapes: canonical JSON of everything else that decides at which shapes the task is judged, or an empty string.
    """

    task: str
    candidate: str
    effort: str
    splits: tuple[str, ...]
    shapes: str = ""

    @classmethod
    def of(cls, request: Request) -> Question:
        """The question in its canonical form."""
        given: dict[str, Any] = dict(request.shapes or {})
        if request.traffic:
            given["traffic"] = request.traffic
        if request.submitted and not declares_space(request.task):
            given["space"] = request.space or {}
        shapes = json.dumps(given, sort_keys=True) if given else ""
        splits = tuple(sorted(set(request.splits)))
        return cls(request.task.sha256, request.candidate.sha256, request.effort, splits, shapes)

    @property
    def repeatable(self) -> bool:
        """Held-out shapes are drawn anew each time, so a question about them is never the same twice."""
        return "held_out" not in self.splits


class VerdictStore:
    """The verdicts of one work folder.

    Args:
        folder: where the files are; created when the first verdict is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(self, request: Request, device: Device, minimum_tier: str) -> Verdict | None:
        """The stored verdict on a candidate, with the names of the current request, or None."""
        verdict = self.find(Question.of(request), measured_on(device), minimum_tier)
        if verdict is None:
            return None
        return replace(verdict, task=request.task.as_fields(), candidate=request.candidate.as_fields())

    def find(self, question: Question, environment: Mapping[str, Any], minimum_tier: str) -> Verdict | None:
        """The verdict on a question in this environment, marked ``reused``, or None.

        A ``confirm`` verdict answers a ``screen`` question, but not the reverse.

        Args:
            question: what is asked.
            environment: the current result of :func:`evaluator.environment.measured_on`.
            minimum_tier: the weakest sandbox in which the verdict may have been reached.
        """
        if not question.repeatable or minimum_tier not in _TIERS or not self._is_ours():
            return None
        efforts = ("confirm", "screen") if question.effort == "screen" else (question.effort,)
        for effort in efforts:
            asked = Question(**{**asdict(question), "effort": effort})
            for tier in _TIERS[_TIERS.index(minimum_tier) :]:
                verdict = self._read(asked, {**environment, "sandbox_tier": tier})
                if verdict is not None:
                    return replace(verdict, reused=True)
        return None

    def keep(self, question: Question, verdict: Verdict) -> None:
        """Stores a verdict, if it may be reused."""
        if not question.repeatable or verdict.verdict in _NOT_KEPT:
            return
        identity = _identity(question, verdict.environment)
        path = self._path(question, identity)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        _forget_oldest(path.parent)
        with replacing(path) as file:
            json.dump({"identity": identity, "verdict": as_json(verdict)}, file)

    def _is_ours(self) -> bool:
        """Whether the folder exists and only this user can write verdicts to it."""
        try:
            status = self._folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022

    def _path(self, question: Question, identity: dict[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return self._folder / question.task[:32] / f"{key}.json"

    def _read(self, question: Question, environment: Mapping[str, Any]) -> Verdict | None:
        identity = _identity(question, environment)
        try:
            kept = json.loads(self._path(question, identity).read_text(encoding="utf-8"))
            # The name is a hash of this. The comparison also rejects a file that was damaged or moved.
            if kept["identity"] != json.loads(json.dumps(identity)):
                return None
            return from_json(kept["verdict"]) if kept["verdict"]["schema"] == SCHEMA else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _identity(question: Question, environment: Mapping[str, Any]) -> dict[str, Any]:
    # Measured peak rates describe the machine. Measuring them again does not make it another machine.
    named = {name: value for name, value in environment.items() if name != "ceilings"}
    return {"question": asdict(question), "environment": named, "harness": harness_digest()}


def _forget_oldest(folder: Path) -> None:
    """Keeps a task's folder from growing without limit."""
    with os.scandir(folder) as entries:
        files = [(entry.stat().st_mtime_ns, entry.path) for entry in entries]
    for _, path in sorted(files)[: max(0, len(files) - _KEPT_PER_TASK + 1)]:
        Path(path).unlink(missing_ok=True)
