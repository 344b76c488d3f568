"""What a prompt says beyond the task itself: technique notes that fit, and what memory has from earlier jobs.

Everything that depends on the machine or on other jobs is asked once and stored as a step, so that a job that is resumed or
replayed elsewhere shows its models the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.diagnosing import PROFILE_STEP
from agent.knowledge.architectures import architecture_of_cpu, architecture_of_gpu
from agent.knowledge.retrieval import DEFAULT_LIMIT, bottleneck_of, notes_for
from agent.memory.entries import Memory, Question
from agent.memory.features import FEATURES_STEP, Features, features_of
from agent.memory.recall import recall, recalled
from agent.prompts import fill
from agent.store import JobStore

_ARCHITECTURE_STEP = "background.architecture"


class Background:
    """The background of one job.

    Args:
        store: of the job.
        task_source: its task's text.
        description: what `Referee.describe` said of the task.
        device: "cpu" or "cuda".
        memory: where earlier jobs' lessons are; None where nobody keeps any.
    """

    def __init__(
        self,
        store: JobStore,
        task_source: str,
        description: Mapping[str, Any],
        device: str,
        memory: Memory | None = None,
    ) -> None:
        self._store = store
        self._task_source = task_source
        self._description = description
        self._device = device
        self._memory = memory

    @property
    def architecture(self) -> str:
        """One of `agent.knowledge.architectures.ARCHITECTURES`, or "" where it is not known; stored once it is."""
        stored = self._store.step(_ARCHITECTURE_STEP)
        if isinstance(stored, str):
            return stored
        found = architecture_of_cpu() if self._device == "cpu" else architecture_of_gpu(self._gpu_name())
        if found:
            self._store.finish_step(_ARCHITECTURE_STEP, found)
        return found

    def of_memory(self, without_task: str = "") -> str:
        """What earlier jobs taught about modules like this one, as Markdown; empty where nothing is known.

        Args:
            without_task: a task's sha256 whose lessons are left out (see `Question`).
        """
        found = recalled(self._store)  # also where nobody keeps a memory now: a replay shows what was shown
        if found is None:
            if self._memory is None:
                return ""
            question = Question(self._features(), self._device, self.architecture, without_task)
            found = recall(self._store, self._memory, question)
        return _rendered(notes=(), memories=found)

    def of_knowledge(self, diagnosis: str, language: str | None = None, limit: int = DEFAULT_LIMIT) -> str:
        """Notes for a bottleneck, as Markdown; empty where none fits or the device is unknown.

        Args:
            diagnosis: in a critic's word (`agent.strategy.critic.BOTTLENECKS`) or a profile's
                (`evaluator.profiling.bottleneck.Diagnosis.label`).
            language: a key of `agent.languages`, or None for any.
            limit: how many at most.
        """
        bottleneck = bottleneck_of(diagnosis)
        if bottleneck is None or not self.architecture:
            return ""
        return _rendered(notes=notes_for(bottleneck, self.architecture, language, limit), memories=())

    @property
    def bottleneck(self) -> str:
        """The label of the reference's profile, or "" where it has none."""
        return str(self._profile().get("label") or "")

    def of_profile(self, limit: int = DEFAULT_LIMIT) -> str:
        """What the reference's profile says, with notes on its bottleneck, as Markdown; empty where it has none."""
        sentences = self._profile().get("sentences") or ()
        if not sentences:
            return ""
        return fill("profile", sentences=sentences, notes=self.of_knowledge(self.bottleneck, limit=limit))

    def _profile(self) -> Mapping[str, Any]:
        stored = self._store.step(PROFILE_STEP)
        return stored if isinstance(stored, dict) else {}

    def _gpu_name(self) -> str:
        """As the referee says; this process need not see the GPU."""
        if self._description.get("device_name"):
            return str(self._description["device_name"])
        for candidate in self._store.candidates():
            verdict = self._store.verdict(candidate.sha256, "screen")
            if verdict is not None and verdict.environment.get("device_name"):
                return str(verdict.environment["device_name"])
        return ""

    def _features(self) -> Features:
        stored = self._store.step(FEATURES_STEP)
        if isinstance(stored, dict):
            return Features.from_json(stored)
        return features_of(self._task_source, self._description)


def _rendered(**values: object) -> str:
    text = fill("background", **values)
    return text if text.strip() else ""
