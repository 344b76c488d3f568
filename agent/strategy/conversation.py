"""One proposal of the search: critic -> plan -> code -> rejected once if it was tried before.

Its prompts depend only on what was known when its round began and on its own answers. Several proposals of a round can
therefore run concurrently, and a resumed or replayed job sends the same prompts. A model sees measurements at visible shapes
only.

The critic is apart from the coder and names one bottleneck per answer, the best-supported part of such loops (CudaForge, arXiv
2511.01884: 90.8 % correct at 1.11x with self-refinement, 97.6 % at 1.68x with a judge, at equal rounds).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent.candidates import Candidate, Judged
from agent.extraction import extract, unfolded
from agent.languages import device_words, language_of, needs_port
from agent.messages import Message, Reply
from agent.portfolio.clusters import Cluster, visible_rows
from agent.prompts import fill
from agent.prompts.sizes import timed_words
from agent.strategy import mismatch
from agent.strategy.exemplars import Exemplars
from agent.strategy.novelty import likeness
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from agent.proposing import ProposalContext
    from agent.providers.client import ModelClient
    from agent.spec import Strategy
    from agent.strategy.beam import Parent

QUOTED_CHARACTERS = 60_000
"""Maximum characters of an answer quoted in the follow-up, where it is paid for a second time."""
BOTTLENECKS = (
    "memory_bandwidth", "memory_latency", "compute", "launch_overhead", "synchronization", "occupancy", "call_overhead",
    "numerics", "other",
)  # fmt: skip
_MAX_WORDS = 45
_OBJECT = re.compile(r"\{[^{}]*\}", re.DOTALL)
_HISTORY = 5
_NOTES = 2
_DETAIL_CHARACTERS = 3000
_PLAN_CHARACTERS = 2500


@dataclass(frozen=True)
class Diagnosis:
    """One thing to change.

    Attributes:
        bottleneck: one of `BOTTLENECKS`.
        evidence: the measurements that support it.
        change: the one change, in words.
    """

    bottleneck: str
    evidence: str
    change: str


@dataclass(frozen=True)
class Round:
    """State shared by all proposals of a round.

    Attributes:
        number: from 1.
        judged: everything judged when the round began.
        cluster: the shapes to improve, if any stand out.
        retold: builds the first messages (rules, task, shapes) with the given candidates shown, possibly none.
        changes: changes requested by critics in this round, by the sha256 of the parent.
    """

    number: int
    judged: list[Judged]
    cluster: Cluster | None
    retold: Callable[[Sequence[Judged]], list[Message]]
    changes: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """One candidate that a round requests.

    Attributes:
        parent: what it goes on from.
        shown: other candidates in the prompt.
        model: index of the model in the client.
        step: prefix of its request names.
        outcome: the candidate, or None if there is no new one.
    """

    parent: Parent
    shown: Exemplars
    model: int
    step: str
    outcome: Future[Candidate | None] = field(default_factory=Future)


class Conversation:
    """Requests one change to one parent from one model.

    Args:
        context: the proposer's context.
        client: sends the requests and waits for the answers.
        strategy: settings.
        problems: replies to an answer without a candidate, by `Extraction.problem`.
        origin: origin of the candidates.
    """

    def __init__(
        self,
        context: ProposalContext,
        client: ModelClient,
        strategy: Strategy,
        problems: Mapping[str, str],
        origin: str,
    ) -> None:
        self._context = context
        self._client = client
        self._strategy = strategy
        self._problems = problems
        self._origin = origin
        self._device_name = device_words(context.device, context.description.device_name)

    def propose(self, this: Round, one: Proposal) -> Candidate | None:
        """The candidate; None if the budget has no room, the model refuses, or neither of two answers is new.

        Raises:
            ProviderError: if a request fails.
        """
        parent, diagnosis = one.parent, None
        if parent.mode == "speed":
            diagnosis = self._diagnose(this, one)
            plan = self._plan(one, diagnosis)
            part = self._speed_prompt(this, one, diagnosis, plan)
        else:
            part = self._repair_prompt(this, one)
        *first, last = this.retold(())
        messages = [*first, Message(last.role, f"{last.content.rstrip()}\n\n{part}")]
        tried = {known.candidate.sha256: known for known in this.judged}
        for attempt in (1, 2):
            reply = self._ask(one, f"code/{attempt}", messages)
            if reply is None:
                return None
            found = extract(reply.text, reply.finish)
            self._client.count(found.problem or "candidate")
            if found.problem == "refusal":
                return None
            if found.source is None:
                follow_up = fill("again", problem=self._problems[found.problem])
            else:
                near = likeness(found.source, {sha: known.candidate.shown for sha, known in tried.items()})
                if not near.repeats(parent.mode):
                    return self._made(found.source, this, one, diagnosis, reply)
                outcome = tried[near.sha256].verdict.verdict
                follow_up = fill("repeated", outcome=outcome, change=diagnosis is not None)
            said = reply.text[-QUOTED_CHARACTERS:]
            messages = [*messages, Message("assistant", said), Message("user", follow_up)]
        return None

    def _ask(self, one: Proposal, name: str, messages: Sequence[Message]) -> Reply | None:
        return self._client.answer(f"{one.step}/{name}", one.model, messages)

    def _made(
        self, source: str, this: Round, one: Proposal, diagnosis: Diagnosis | None, reply: Reply
    ) -> Candidate:
        what = f"{diagnosis.bottleneck}: {diagnosis.change}" if diagnosis else "repaired"
        label = f"{self._client.models[one.model].model} round {this.number}"
        label += ", repair" if one.parent.mode == "repair" else ""
        note = f"{what[:300]} ({reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens)"
        made = Candidate(unfolded(source), self._origin, label, one.parent.judged.candidate.sha256, note)
        if diagnosis is not None:
            idea = {"bottleneck": diagnosis.bottleneck, "change": diagnosis.change}
            self._context.store.finish_step(f"idea/{made.sha256}", idea)
        return made

    def _diagnose(self, this: Round, one: Proposal) -> Diagnosis | None:
        """The critic's diagnosis, from a separate conversation: the critic did not write the code it judges.

        A batch has no critic, since every request takes a trip of files: the coder names the bottleneck itself.
        """
        if not self._strategy.critic or self._client.models[one.model].provider == "batch":
            return None
        others = this.changes.setdefault(one.parent.judged.candidate.sha256, [])
        prompt = fill(
            "critic",
            task_source=self._context.task.source,
            device_name=self._device_name,
            source=one.parent.judged.candidate.shown,
            shapes=measured_words(one.parent.judged.verdict),
            cluster=this.cluster,
            history=self._history(this, one.parent),
            others=list(others),
            bottlenecks=BOTTLENECKS,
        )
        reply = self._ask(one, "critic", [Message("user", prompt)])
        diagnosis = read_diagnosis(reply.text) if reply is not None else None
        if diagnosis is not None:
            others.append(diagnosis.change)
        return diagnosis

    def _plan(self, one: Proposal, diagnosis: Diagnosis | None) -> str:
        if not self._strategy.plan or diagnosis is None:
            return ""
        prompt = fill(
            "plan",
            task_source=self._context.task.source,
            device_name=self._device_name,
            source=one.parent.judged.candidate.shown,
            change=diagnosis.change,
        )
        reply = self._ask(one, "plan", [Message("user", prompt)])
        return reply.text.rpartition("</think>")[2].strip()[:_PLAN_CHARACTERS] if reply is not None else ""

    def _speed_prompt(self, this: Round, one: Proposal, diagnosis: Diagnosis | None, plan: str) -> str:
        source, background = one.parent.judged.candidate.shown, self._context.background
        notes = ""
        if background is not None and diagnosis is not None:
            written = language_of(source)
            notes = background.of_knowledge(diagnosis.bottleneck, written.key if written else None, _NOTES)
        return fill(
            "speed",
            exemplars=one.shown,
            source=source,
            shapes=measured_words(one.parent.judged.verdict),
            cluster=this.cluster,
            history=self._history(this, one.parent),
            diagnosis=diagnosis,
            plan=plan,
            notes=notes,
        )

    def _repair_prompt(self, this: Round, one: Proposal) -> str:
        source, verdict = one.parent.judged.candidate.shown, one.parent.judged.verdict
        port = needs_port(source, self._context.device)
        return fill(
            "fix",
            # one correct example helps; speeds do not matter here
            exemplars=replace(one.shown, successes=one.shown.successes[-1:]),
            source=source,
            verdict=verdict,
            findings=[f"{finding.rule}: {finding.evidence}" for finding in verdict.findings],
            places=mismatch.explained(verdict),
            detail=verdict.detail[-_DETAIL_CHARACTERS:],
            port_from=written.name if port and (written := language_of(source)) else "",
            device_name=self._device_name,
            history=self._history(this, one.parent),
        )

    def _history(self, this: Round, parent: Parent) -> list[str]:
        """Changes made to this parent or leading to it, each with its result."""
        by_sha = {one.candidate.sha256: one for one in this.judged}
        own = parent.judged.candidate.sha256
        lines = []
        for one in this.judged:
            before = by_sha.get(one.candidate.parent_sha256 or "")
            if before is None or own not in (one.candidate.sha256, before.candidate.sha256):
                continue
            idea = self._context.store.step(f"idea/{one.candidate.sha256}")
            if isinstance(idea, dict):
                result = (
                    f"{before.speedup:.2f}x became {one.speedup:.2f}x"
                    if one.accepted
                    else one.verdict.verdict
                )
                lines.append(f"{idea['change']}: {result}")
        return lines[-_HISTORY:]


def measured_words(verdict: Verdict) -> list[str]:
    """What a verdict measured at visible shapes, a line each."""
    return [
        f"{timed_words(row.dims, row.stratum)}: {row.speedup:.2f}x "
        f"({row.candidate_us:.1f} us against {row.baseline_us:.1f} us, {row.best_baseline})"
        for row in visible_rows(verdict)
    ]


def read_diagnosis(text: str) -> Diagnosis | None:
    """The diagnosis in a critic's untrusted answer; None if it names none or several.

    The last valid JSON object counts. Texts longer than `_MAX_WORDS` words are truncated: the coder needs one decision, not an essay.
    """
    answer = text.rpartition("</think>")[2]
    for found in reversed(_OBJECT.findall(answer)):
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            continue
        diagnosis = _as_diagnosis(value)
        if diagnosis is not None:
            return diagnosis
    return None


def _as_diagnosis(value: dict[str, Any]) -> Diagnosis | None:
    change = value.get("change")
    bottleneck = value.get("bottleneck")
    if not isinstance(change, str) or not change.strip() or not isinstance(bottleneck, str):
        return None  # for example a list of changes
    name = re.sub(r"[^a-z]+", "_", bottleneck.strip().lower()).strip("_")
    evidence = value.get("evidence")
    return Diagnosis(
        name if name in BOTTLENECKS else "other",
        _short(evidence if isinstance(evidence, str) else ""),
        _short(change),
    )


def _short(text: str) -> str:
    words = text.split()
    return " ".join(words[:_MAX_WORDS]) + (" ..." if len(words) > _MAX_WORDS else "")
