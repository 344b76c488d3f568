"""Candidates from language models: a first attempt per sample, then one round of repair or improvement.

Every request with its reply is stored as a step before anything is judged, so a resumed job replays it and pays nothing.
What a model sees of the referee: its own verdict on visible and adversarial shapes, never validation or held-out figures.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from agent.candidates import Candidate
from agent.errors import ProposalFailed, ProviderError
from agent.prompts import fill
from agent.proposers.base import ProposalContext
from agent.proposers.extraction import Extraction, extract
from agent.providers.base import Message, Provider, Reply
from agent.providers.openai_compatible import OpenAICompatible
from agent.spec import Budget, ModelChoice

_DETAIL_CHARACTERS = 3000
_ENOUGH = 1.05  # below this speedup an accepted candidate gets a round of improvement as "not faster yet"
_PROBLEMS = {
    "empty": "Your answer was empty.",
    "truncated": "Your answer was cut off at the token limit before the file was complete. Be brief.",
    "no_code": "Your answer holds no code block.",
    "no_class": "No code block of your answer defines the class ModelNew.",
    "syntax": "The file in your answer is not valid Python.",
    "too_long": "The file in your answer is too long.",
}


class LLMProposer:
    """Origin `llm`.

    Args:
        models: which models to ask, in this order, each `samples` times.
        budget: its `usd` and `tokens` are limits over all models and attempts.
    """

    origin = "llm"

    def __init__(self, models: Sequence[ModelChoice], budget: Budget) -> None:
        self._models = tuple(models)
        self._budget = budget

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """See `Proposer.propose`.

        Raises:
            ProposalFailed: when no request of any model was answered, with the last reason.
        """
        desk = _Desk(context, self._budget)
        for number, choice in enumerate(self._models, start=1):
            provider = OpenAICompatible(choice)
            for sample in range(1, choice.samples + 1):
                try:
                    yield from self._attempt(desk, provider, choice, f"llm/{number}/{sample}", sample)
                except ProviderError as error:
                    desk.failed(choice, error)
                    if error.kind == "authentication":
                        break  # the next sample would fail alike
                if desk.exhausted:
                    break
        desk.close()

    def _attempt(
        self, desk: _Desk, provider: Provider, choice: ModelChoice, step: str, sample: int
    ) -> Iterator[Candidate]:
        """First attempt, its verdict, and one more round with what the referee said."""
        messages = opening(desk.context)
        reply = desk.ask(provider, choice, f"{step}/1", messages)
        if reply is None:
            return
        found = desk.count(extract(reply.text, reply.finish))
        first: Candidate | None = None
        if found.source is not None:
            first = Candidate(found.source, self.origin, f"{choice.model} #{sample}", note=_note(reply))
            yield first
            follow_up = after_verdict(desk.context.store.verdict(first.sha256, "screen"))
        elif found.problem == "refusal":
            return
        else:
            follow_up = fill("again", problem=_PROBLEMS[found.problem])
        if not follow_up:
            return
        messages = [*messages, Message("assistant", reply.text), Message("user", follow_up)]
        reply = desk.ask(provider, choice, f"{step}/2", messages)
        if reply is None:
            return
        found = desk.count(extract(reply.text, reply.finish))
        if found.source is not None:
            parent = first.sha256 if first else None
            yield Candidate(
                found.source, self.origin, f"{choice.model} #{sample} repaired", parent, _note(reply)
            )


class _Desk:
    """Sends requests within the budget, replays stored ones, and keeps count."""

    def __init__(self, context: ProposalContext, budget: Budget) -> None:
        self.context = context
        self.exhausted = False
        self._budget = budget
        self._usd = 0.0
        self._tokens = 0
        self._answered = 0
        self._outcomes: Counter[str] = Counter()
        self._last_failure: ProviderError | None = None

    def ask(
        self, provider: Provider, choice: ModelChoice, step: str, messages: Sequence[Message]
    ) -> Reply | None:
        """The stored reply of `step`, or a new one; None when the budget allows no further request.

        Raises:
            ProviderError: when the request fails.
        """
        stored = self.context.store.step(step)
        if isinstance(stored, dict):
            reply = Reply(**stored["reply"])
            self._add(choice, reply)
            return reply
        if self._spent():
            return None
        reply = provider.complete(messages)
        usd = self._add(choice, reply)
        # Billed before it is stored: killed in between, the request is made again, and was paid twice indeed.
        self.context.store.event(
            "budget.spent",
            {
                "usd": usd,
                "tokens": reply.prompt_tokens + reply.completion_tokens,
                "prompt_tokens": reply.prompt_tokens,
                "completion_tokens": reply.completion_tokens,
                "estimated": reply.estimated,
                "model": reply.model,
                "elapsed_s": round(reply.elapsed_s, 3),
                "text": f"{choice.model}: {reply.prompt_tokens + reply.completion_tokens} tokens, {usd:.4f} USD",
            },
        )
        value = {
            "model": choice.model,
            "messages": [dataclasses.asdict(message) for message in messages],
            "reply": dataclasses.asdict(reply),
            "usd": usd,
        }
        self.context.store.finish_step(step, value)
        return reply

    def count(self, found: Extraction) -> Extraction:
        """Note what a reply was good for."""
        self._outcomes[found.problem or "candidate"] += 1
        return found

    def failed(self, choice: ModelChoice, error: ProviderError) -> None:
        """Note a request without an answer."""
        self._last_failure = error
        self._outcomes[f"failed: {error.kind}"] += 1
        data = {"origin": "llm", "model": choice.model, "kind": error.kind, "reason": str(error)}
        self.context.store.event("proposer.failed", data)

    def close(self) -> None:
        """Tell how the requests went.

        Raises:
            ProposalFailed: when there were requests and none was answered.
        """
        if self._outcomes:
            told = ", ".join(f"{count} {what}" for what, count in sorted(self._outcomes.items()))
            self.context.store.event("proposer.finished", {"origin": "llm", "text": f"replies: {told}"})
        if self._last_failure is not None and not self._answered:
            raise ProposalFailed(f"no model answered; the last failure: {self._last_failure}")

    def _add(self, choice: ModelChoice, reply: Reply) -> float:
        usd = (
            reply.prompt_tokens * choice.usd_per_million_input_tokens
            + reply.completion_tokens * choice.usd_per_million_output_tokens
        ) / 1e6
        self._usd += usd
        self._tokens += reply.prompt_tokens + reply.completion_tokens
        self._answered += 1
        return usd

    def _spent(self) -> bool:
        reason = ""
        if self._budget.usd is not None and self._usd >= self._budget.usd:
            reason = f"{self._budget.usd:g} USD"
        elif self._budget.tokens is not None and self._tokens >= self._budget.tokens:
            reason = f"{self._budget.tokens} tokens"
        if reason and not self.exhausted:
            text = f"the budget for models is spent: {reason}"
            self.context.store.event("budget.spent", {"reason": reason, "text": text})
        self.exhausted = self.exhausted or bool(reason)
        return bool(reason)


def opening(context: ProposalContext) -> list[Message]:
    """The conversation's beginning: rules, the task, its space, and the visible shapes with the times to beat."""
    times = _baseline_times(context)
    visible = (context.description.get("shapes") or {}).get("visible") or []
    device_name = {"cpu": "a CPU", "cuda": "an NVIDIA GPU"}.get(context.device, context.device)
    notes = fill("device_cuda" if context.device == "cuda" else "device_cpu")
    taught = context.background.of_memory() if context.background else ""
    prompt = fill(
        "propose",
        device_name=device_name,
        task_source=context.task.source,
        dims=_dims_text(context.description.get("dims") or {}),
        shapes=_list(f"{_words(dims)}{times.get(_words(dims), '')}" for dims in visible) or "- as given",
        device_notes=f"{notes}\n{taught}" if taught else notes,
    )
    return [Message("system", fill("system")), Message("user", prompt)]


def after_verdict(verdict: dict[str, Any] | None) -> str:
    """The next user message after a screen verdict; empty when there is nothing to learn from it."""
    if verdict is None or verdict["verdict"] in ("not_judged", "task_rejected"):
        return ""
    if verdict["verdict"] == "accepted":
        speed = (verdict.get("summary") or {}).get("geomean_speedup") or 0.0
        aim = "It is not faster yet. Make it faster." if speed < _ENOUGH else "Make it faster still."
        shapes = _list(
            f"{_words(row['dims'])}: {row['speedup']:.2f}x ({row['candidate_us']:.1f} us against "
            f"{row['baseline_us']:.1f} us, {row.get('best_baseline')})"
            for row in _visible_rows(verdict)
        )
        return fill("improve", shapes=shapes, aim=aim)
    findings = _list(
        f"{finding.get('rule')}: {finding.get('evidence')}" for finding in verdict.get("findings") or []
    )
    detail = str(verdict.get("detail") or "")[-_DETAIL_CHARACTERS:]
    return fill(
        "repair",
        verdict=verdict["verdict"],
        reason=verdict.get("reason") or "",
        findings=findings,
        detail=f"```text\n{detail}\n```" if detail else "",
    )


def _visible_rows(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        row
        for row in verdict.get("shapes") or []
        if row.get("split") == "visible" and row.get("timed") and row.get("speedup")
    ]


def _baseline_times(context: ProposalContext) -> dict[str, str]:
    """Best baseline per visible shape, from any candidate that was screened before."""
    for candidate in context.store.candidates():
        verdict = context.store.verdict(candidate.sha256, "screen")
        rows = _visible_rows(verdict) if verdict else []
        if rows:
            return {
                _words(row["dims"]): f": {row['baseline_us']:.1f} us ({row['best_baseline']})" for row in rows
            }
    return {}


def _dims_text(dims: dict[str, Any]) -> str:
    lines = []
    for name, dim in dims.items():
        if "choices" in dim:
            lines.append(f"{name}: one of {', '.join(map(str, dim['choices']))}")
        else:
            multiple = f", a multiple of {dim['multiple_of']}" if (dim.get("multiple_of") or 1) > 1 else ""
            lines.append(f"{name}: {dim['min']} to {dim['max']}{multiple}")
    return _list(lines) or "Only the shapes that `get_inputs` makes."


def _words(dims: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items())


def _list(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _note(reply: Reply) -> str:
    return f"{reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens"
