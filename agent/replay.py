"""Replays a job from its record: calls no model, judges nothing, and writes nothing to the job.

The proposers run again on a read-only view of the record, with writes kept in memory. Answers, verdicts and draws come from
the record; each prompt is rebuilt from the templates and must match the recorded one byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from agent.background import Background
from agent.errors import ProposalFailed, ProviderError
from agent.judging import task_of
from agent.messages import Message, Reply
from agent.prompts import prompts_sha256
from agent.proposers.llm import LLMProposer
from agent.proposing import ProposalContext
from agent.records import PREFIXES, Records, messages_sha256
from agent.spec import Budget, JobSpec, ModelChoice
from agent.store import PLAN_STEPS, JobStore
from agent.strategy.finishing import Finisher
from agent.strategy.graph_variants import graph_variant
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.roles.tool_run import ToolResult


@dataclass(frozen=True)
class ReplayedPrompt:
    """One recorded request.

    Attributes:
        request: its name.
        same: whether the rebuilt prompt matches the sent one byte for byte.
        reached: whether the replay reached the request; otherwise `same` is False.
        sha256: digest of the recorded conversation.
    """

    request: str
    same: bool
    reached: bool
    sha256: str


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    Attributes:
        prompts: all recorded requests.
        candidates: number of recorded model-made candidates reproduced byte for byte.
        recorded_candidates: number of model-made candidates in the record.
        templates_changed: whether the prompt templates differ from those of the original run.
    """

    prompts: tuple[ReplayedPrompt, ...]
    candidates: int
    recorded_candidates: int
    templates_changed: bool

    @property
    def same(self) -> bool:
        """Whether all prompts and candidates match the record."""
        return all(prompt.same for prompt in self.prompts) and self.candidates == self.recorded_candidates


def replay(spec: JobSpec, store: JobStore) -> Replay:
    """Replay a job.

    Args:
        spec: the job's spec.
        store: the job's store; only read.
    """
    asked: dict[str, str] = {}
    made: set[str] = set()
    templates: set[str] = set()
    prompts: list[ReplayedPrompt] = []
    memory = cast("JobStore", _Memory(store))

    def witness(request: str, messages: Sequence[Message]) -> None:
        asked[request] = messages_sha256(messages)

    found = store.step("describe")
    description = Description.from_json(found if isinstance(found, dict) else {})
    task = task_of(spec, store)
    context = ProposalContext(
        task,
        description,
        spec.device,
        cast("Referee", _NoSandbox()),
        memory,
        background=Background(memory, task.source, description, spec.device),
    )
    for prefix in PREFIXES:
        origin = prefix.rstrip("/")
        models = [choice for choice in spec.models if choice.origin == origin]
        if not models:
            continue
        # No limits: only the record decides which requests are made.
        proposer = LLMProposer(
            models,
            Budget(),
            strategy=spec.strategy,
            start_from=spec.start_from,
            origin=origin,
            provide=_NoModel,
            witness=witness,
        )
        try:
            made |= {candidate.sha256 for candidate in proposer.propose(context) if candidate is not None}
        except ProposalFailed:
            pass  # the original proposer failed the same way, with all its requests
        records = Records(store, prefix)
        for request in records.requests():
            recorded = records.prompt(request) or {}
            templates.add(str(recorded.get("prompts_sha256")))
            digest = str(recorded.get("messages_sha256"))
            prompts.append(ReplayedPrompt(request, asked.get(request) == digest, request in asked, digest))
    # Tuned, ablated and graph variants keep the origin of the model's file; optimized.py is assembled, not proposed.
    made |= {candidate.sha256 for candidate in Finisher(spec.strategy).propose(context)}
    variants = (graph_variant(store, one, spec.device) for one in store.candidates() if one.sha256 in made)
    made |= {variant.sha256 for variant in variants if variant is not None}
    plans = store.steps(PLAN_STEPS).values()
    delivered = {plan["source"] for plan in plans if isinstance(plan, dict)}
    known = {
        one.sha256
        for one in store.candidates()
        if f"{one.origin}/" in PREFIXES and one.source not in delivered
    }
    return Replay(tuple(prompts), len(known & made), len(known), bool(templates - {prompts_sha256()}))


class _NoModel:
    """Replaces a model; fails every request without a recorded answer."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        raise ProviderError("the record has no answer to this request", "request")

    def close(self) -> None:
        return


class _NoSandbox:
    """Replaces the referee; tool results come from the record."""

    def run_tool(self, *_: Any, **__: Any) -> ToolResult:
        return ToolResult("replayed", -1, "")


class _Memory:
    """A `JobStore` that reads a job's store and keeps steps in memory; it forgets everything else that is written."""

    def __init__(self, recorded: JobStore) -> None:
        self.candidates, self.verdict = recorded.candidates, recorded.verdict
        self._recorded = recorded
        self._written: dict[str, object] = {}

    def step(self, name: str) -> object | None:
        recorded = self._recorded.step(name)
        return self._written.get(name) if recorded is None else recorded

    def finish_step(self, name: str, value: object) -> None:
        self._written.setdefault(name, value)

    def steps(self, prefix: str) -> dict[str, object]:
        written = {name: value for name, value in self._written.items() if name.startswith(prefix)}
        return {**written, **self._recorded.steps(prefix)}

    def event(self, name: str, data: dict[str, Any]) -> None:
        return
