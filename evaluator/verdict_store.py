"""Verdicts kept for the next time that the same source is submitted: a second submission is answered from here.

One JSON file a verdict, below the referee's work folder, written by the referee's process alone and atomically. No
sandbox sees the folder: the namespaces tier mounts none of it, the landlock tier grants none of it. A verdict answers a
question only if everything that its figures depend on is the same, see :class:`Question` and :meth:`VerdictStore.find`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluator.devices import Device
from evaluator.environment import harness_digest, measured_on
from evaluator.keeping import replacing
from evaluator.sources import CandidateSource, TaskSource
from evaluator.submission import declares_space
from evaluator.verdict import SCHEMA

#: Faults of ours and of the task, and a deadline that was set for one run: not facts about the candidate.
_NOT_KEPT = ("not_judged", "timeout", "task_rejected")
#: Weakest first: a verdict reached behind a stronger wall serves where a weaker one is allowed.
_TIERS = ("landlock", "namespaces")
_KEPT_PER_TASK = 10_000


@dataclass(frozen=True)
class Question:
    """What was asked, as far as the answer depends on it.

    Attributes:
        task, candidate: SHA-256 of the sources.
        effort: ``screen`` or ``confirm``.
        splits: which shapes, in any order.
        shapes: canonical JSON of the shapes that were given instead of sampled ones, or an empty text.
    """

    task: str
    candidate: str
    effort: str
    splits: tuple[str, ...]
    shapes: str = ""

    @classmethod
    def of(
        cls,
        task_sha256: str,
        candidate_sha256: str,
        effort: str,
        splits: Sequence[str],
        shapes: Mapping[str, Any] | None,
    ) -> Question:
        """The question in its canonical form."""
        given = json.dumps(shapes, sort_keys=True) if shapes else ""
        return cls(task_sha256, candidate_sha256, effort, tuple(sorted(set(splits))), given)

    @property
    def repeatable(self) -> bool:
        """Held-out shapes are drawn anew each time, so that question is never the same twice."""
        return "held_out" not in self.splits


def given_shapes(
    task: TaskSource,
    shapes: Mapping[str, Any] | None,
    traffic: Sequence[Any] | None,
    space: Mapping[str, Any] | None,
    *,
    submitted: bool,
) -> dict[str, Any]:
    """All that decides at which shapes a task is judged, for :attr:`Question.shapes`."""
    given: dict[str, Any] = dict(shapes or {})
    if traffic:
        given["traffic"] = list(traffic)
    if submitted and not declares_space(task):
        given["space"] = dict(space or {})
    return given


class VerdictStore:
    """The verdicts of one work folder.

    Args:
        folder: where the files lie; made when the first verdict is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(
        self,
        task: TaskSource,
        candidate: CandidateSource,
        device: Device,
        *,
        effort: str,
        splits: Sequence[str],
        shapes: Mapping[str, Any] | None,
        minimum_tier: str,
        traffic: Sequence[Any] | None = None,
        space: Mapping[str, Any] | None = None,
        submitted: bool = False,
    ) -> dict[str, Any] | None:
        """The kept verdict on a candidate, under the names by which it is asked for now, or None."""
        given = given_shapes(task, shapes, traffic, space, submitted=submitted)
        question = Question.of(task.sha256, candidate.sha256, effort, splits, given)
        verdict = self.find(question, measured_on(device), minimum_tier)
        if verdict is None:
            return None
        asked = {"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label}
        return {**verdict, "task": {"name": task.name, "sha256": task.sha256}, "candidate": asked}

    def find(
        self, question: Question, environment: Mapping[str, Any], minimum_tier: str
    ) -> dict[str, Any] | None:
        """The verdict on a question in this environment, marked ``reused``, or None.

        A ``confirm`` verdict answers a ``screen`` question, not the other way round.

        Args:
            question: what is asked.
            environment: as :func:`evaluator.environment.measured_on` says it now.
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
                    return {**verdict, "reused": True}
        return None

    def keep(self, question: Question, verdict: dict[str, Any]) -> None:
        """Keeps a verdict as JSON-able dictionaries, if it is one that may be used again."""
        if not question.repeatable or verdict["verdict"] in _NOT_KEPT:
            return
        identity = _identity(question, verdict["environment"])
        path = self._path(question, identity)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        _forget_oldest(path.parent)
        with replacing(path) as file:
            json.dump({"identity": identity, "verdict": verdict}, file)

    def _is_ours(self) -> bool:
        """Whether the folder is there and nobody else can put a verdict into it."""
        try:
            status = self._folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022

    def _path(self, question: Question, identity: dict[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return self._folder / question.task[:32] / f"{key}.json"

    def _read(self, question: Question, environment: Mapping[str, Any]) -> dict[str, Any] | None:
        identity = _identity(question, environment)
        try:
            kept = json.loads(self._path(question, identity).read_text(encoding="utf-8"))
            # The name is a hash of this; the comparison also drops a file that was damaged or put in another's place.
            if kept["identity"] != json.loads(json.dumps(identity)):
                return None
            verdict: dict[str, Any] = kept["verdict"]
            return verdict if verdict["schema"] == SCHEMA else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _identity(question: Question, environment: Mapping[str, Any]) -> dict[str, Any]:
    # What the machine reaches at best describes it, and measuring that again makes no other machine of it.
    named = {name: value for name, value in environment.items() if name != "ceilings"}
    return {"question": asdict(question), "environment": named, "harness": harness_digest()}


def _forget_oldest(folder: Path) -> None:
    """Keeps a task's folder from growing without end."""
    with os.scandir(folder) as entries:
        files = [(entry.stat().st_mtime_ns, entry.path) for entry in entries]
    for _, path in sorted(files)[: max(0, len(files) - _KEPT_PER_TASK + 1)]:
        Path(path).unlink(missing_ok=True)
