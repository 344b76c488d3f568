"""Background for prompts: technique notes that fit the task and lessons of earlier jobs.

Everything that depends on the machine or on other jobs is looked up once and stored as a step. A job resumed or
replayed elsewhere therefore shows its models the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.diagnosing import PROFILE_STEP
from agent.knowledge.architectures import architecture_of_cpu, architecture_of_gpu
from agent.knowledge.reading import DEFAULT_LIMIT, bottleneck_of, notes_for
from agent.memory.entries import Memory, MemoryEntry, Question, Recalled
from agent.memory.features import features_of
from agent.prompts import fill
from agent.store import JobStore
from evaluator.description import Description
from evaluator.profiling.bottleneck import ceilings_told

_ARCHITECTURE_STEP = "background.architecture"
_MEMORY_STEP = "memory.recalled"
_MOST_MEMORIES = 3


class Background:
    """The background of one job.

    Args:
        store: the job's store.
        task_source: source text of the job's task.
        description: result of `Referee.describe` for the task.
        device: "cpu" or "cuda".
        memory: lessons of earlier jobs; None without a memory.
    """

    def __init__(
        self,
        store: JobStore,
        task_source: str,
        description: Description,
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
        """One of `agent.knowledge.architectures.ARCHITECTURES`, or "" if unknown; stored once known."""
        stored = self._store.step(_ARCHITECTURE_STEP)
        if isinstance(stored, str):
            return stored
        found = architecture_of_cpu() if self._device == "cpu" else architecture_of_gpu(self._gpu_name())
        if found:
            self._store.finish_step(_ARCHITECTURE_STEP, found)
        return found

    def of_memory(self) -> str:
        """Lessons of earlier jobs about similar modules, as Markdown; empty if there are none."""
        found = self._store.step(_MEMORY_STEP)  # read even without a memory: a replay shows the same text
        if found is None and self._memory is not None:
            question = Question(
                features_of(self._task_source, self._description), self._device, self.architecture
            )
            told = self._memory.similar(question, _MOST_MEMORIES)
            value = [{"entry": one.entry.to_json(), "similarity": one.similarity} for one in told]
            self._store.finish_step(_MEMORY_STEP, value)
            found = self._store.step(
                _MEMORY_STEP
            )  # concurrent requests may race: the first answer applies to all
        rows = found if isinstance(found, list) else []
        memories = [Recalled(MemoryEntry.from_json(row["entry"]), row["similarity"]) for row in rows]
        return _rendered(notes=(), memories=memories)

    def of_knowledge(self, diagnosis: str, language: str | None = None, limit: int = DEFAULT_LIMIT) -> str:
        """Notes for a bottleneck, as Markdown; empty if none fits or the device is unknown.

        Args:
            diagnosis: a critic's label (`agent.strategy.conversation.BOTTLENECKS`) or a profile's
                (`evaluator.profiling.bottleneck.Diagnosis.label`).
            language: a key of `agent.languages`, or None for any.
            limit: maximum number of notes.
        """
        bottleneck = bottleneck_of(diagnosis)
        if bottleneck is None or not self.architecture:
            return ""
        features = features_of(self._task_source, self._description)
        return _rendered(
            notes=notes_for(bottleneck, self.architecture, language, limit, features), memories=()
        )

    @property
    def bottleneck(self) -> str:
        """The label of the reference's profile, or "" without a profile."""
        return str(self._profile().get("label") or "")

    def of_profile(self, limit: int = DEFAULT_LIMIT) -> str:
        """The reference's profile, the device's ceilings and notes on the bottleneck, as Markdown; empty without a profile."""
        profile = self._profile()
        if not profile.get("sentences"):
            return ""
        return fill(
            "profile",
            sentences=profile["sentences"],
            ceilings=ceilings_told(profile.get("ceilings") or {}),
            notes=self.of_knowledge(self.bottleneck, limit=limit),
        )

    def _profile(self) -> Mapping[str, Any]:
        stored = self._store.step(PROFILE_STEP)
        return stored if isinstance(stored, dict) else {}

    def _gpu_name(self) -> str:
        """GPU name reported by the referee; this process may not see the GPU."""
        if self._description.device_name:
            return self._description.device_name
        for candidate in self._store.candidates():
            verdict = self._store.verdict(candidate.sha256, "screen")
            if verdict is not None and verdict.environment.get("device_name"):
                return str(verdict.environment["device_name"])
        return ""


def _rendered(**values: object) -> str:
    text = fill("background", **values)
    return text if text.strip() else ""
