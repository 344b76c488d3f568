"""The rounds after the first attempts: choose parents, diagnose, plan, ask for one change, refuse what was tried before.

    round r:  recorded draw -> worst cluster -> beam -> per parent and branch: critic -> plan -> code -> novelty -> judged

Each request is a step of the store, and so is what a round knew when it began, so a job that was killed or is replayed makes
the same choices and the same prompts, whatever has arrived since. A model sees measurements at visible shapes alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from agent.candidates import Candidate
from agent.errors import ProviderError
from agent.prompts import fill, render
from agent.proposers.extraction import extract
from agent.providers.base import Message, Provider, Reply
from agent.strategy import critic, exemplars, mismatch, starting
from agent.strategy.beam import Parent, select
from agent.strategy.clusters import Cluster, visible_rows, worst_cluster
from agent.strategy.critic import Diagnosis
from agent.strategy.draws import recorded
from agent.strategy.exemplars import Judged
from agent.strategy.novelty import likeness
from agent.strategy.tuner import tuned

if TYPE_CHECKING:
    from agent.proposers.base import ProposalContext
    from agent.proposers.extraction import Extraction
    from agent.spec import ModelChoice
    from agent.store import JobStore
    from agent.strategy.settings import Strategy

_GAIN = 1.02
_HISTORY = 5
_DETAIL_CHARACTERS = 3000
_PLAN_CHARACTERS = 2500
DEVICES = {"cpu": "a CPU", "cuda": "an NVIDIA GPU"}


class Asks(Protocol):
    """Sends requests within the budget and replays stored ones: the desk of the proposer."""

    @property
    def exhausted(self) -> bool:
        """Whether the budget allows no more."""
        ...

    def ask(
        self, provider: Provider, choice: ModelChoice, step: str, messages: Sequence[Message]
    ) -> Reply | None:
        """The reply of a step; None when the budget allows none."""
        ...

    def count(self, found: Extraction) -> Extraction:
        """Note what a reply was good for."""
        ...

    def failed(self, choice: ModelChoice, error: ProviderError) -> None:
        """Note a request without an answer."""
        ...


@dataclass(frozen=True)
class Voice:
    """One model and how it is reached."""

    provider: Provider
    choice: ModelChoice


@dataclass(frozen=True)
class _Round:
    """What all requests of a round share."""

    number: int
    judged: list[Judged]
    cluster: Cluster | None
    generator: random.Random
    opening: list[Message]
    changes: dict[str, list[str]] = field(default_factory=dict)  # asked for in this round, by parent


class Search:
    """Rounds of improvement and repair.

    Args:
        context: of the proposer.
        desk: asks.
        voices: models, taken in turn.
        strategy: settings.
        opening: makes the beginning of a conversation (rules, task, shapes) from a context.
        problems: what to say to an answer without a candidate, by `Extraction.problem`.
        origin: of what is proposed.
    """

    def __init__(
        self,
        context: ProposalContext,
        desk: Asks,
        voices: Sequence[Voice],
        strategy: Strategy,
        opening: Callable[[ProposalContext], list[Message]],
        problems: Mapping[str, str],
        origin: str = "llm",
    ) -> None:
        self._context = context
        self._desk = desk
        self._voices = list(voices)
        self._strategy = strategy
        self._opening = opening
        self._problems = problems
        self._origin = origin
        self._device_name = DEVICES.get(context.device, context.device)

    def run(self) -> Iterator[Candidate]:
        """Yield candidates; each is judged before the next one is asked for."""
        stale = 0
        for number in range(1, self._strategy.rounds + 1):
            if self._desk.exhausted or not self._voices:
                return
            this = self._begin(number)
            parents = select(this.judged, self._strategy.beam, this.cluster)
            if not parents:
                return
            before = _best(this.judged)
            made: list[Candidate] = []
            for place, parent in enumerate(parents, start=1):
                # A failure has one cause; only what is right is worth several changes at once.
                branches = self._strategy.branches if parent.mode == "speed" else 1
                for branch in range(1, branches + 1):
                    for candidate in self._proposals(this, parent, place, branch, made):
                        made.append(candidate)
                        yield candidate
            stale = 0 if self._better(before, made) else stale + 1
            if stale >= self._strategy.patience:
                text = f"no gain in {stale} rounds: the search ends after round {number}"
                self._tell(text)
                return

    def _begin(self, number: int) -> _Round:
        store = self._context.store
        step = f"search/{number}"
        now = [one.candidate.sha256 for one in self._judged(store.candidates())]
        generator, known = recorded(store, step, now, self._strategy.seed)
        wanted = set(known)
        judged = self._judged([one for one in store.candidates() if one.sha256 in wanted])
        view = replace(self._context, store=_AsItWas(store, wanted))
        # The first round is for being fast at all; later ones for where the portfolio is worst.
        cluster = worst_cluster(one.verdict for one in judged) if number > 1 else None
        return _Round(number, judged, cluster, generator, self._opening(view))

    def _judged(self, candidates: Sequence[Candidate]) -> list[Judged]:
        found = []
        for candidate in candidates:
            verdict = self._context.store.verdict(candidate.sha256, "screen")
            if verdict is not None and verdict["verdict"] not in ("not_judged", "task_rejected"):
                found.append(Judged(candidate, verdict))
        return found

    def _better(self, before: float, made: Sequence[Candidate]) -> bool:
        judged = self._judged(made)
        if before == 0.0:  # nothing is right yet: being right, or failing later than before, is progress
            return any(one.accepted for one in judged)
        return _best(judged) >= _GAIN * before

    def _proposals(
        self, this: _Round, parent: Parent, place: int, branch: int, made: Sequence[Candidate]
    ) -> Iterator[Candidate]:
        """One proposal, and its tuned form if it is accepted and declares `TUNABLES`."""
        voice = self._voices[(this.number + place + branch) % len(self._voices)]
        step = f"search/{this.number}/{place}/{branch}"
        # Drawn before anything can fail, so that a failed request shifts no later draw.
        shown = exemplars.draw(this.judged, this.generator, {parent.judged.candidate.sha256})
        try:
            candidate = self._propose(this, parent, shown, voice, step, made)
        except ProviderError as error:
            self._desk.failed(voice.choice, error)
            if error.kind == "authentication":
                self._voices = [one for one in self._voices if one.choice is not voice.choice]
            return
        if candidate is None:
            return
        yield candidate
        verdict = self._context.store.verdict(candidate.sha256, "screen")
        if self._strategy.tune and verdict is not None and verdict["verdict"] == "accepted":
            yield from tuned(self._context, candidate, self._strategy)

    def _propose(
        self,
        this: _Round,
        parent: Parent,
        shown: exemplars.Exemplars,
        voice: Voice,
        step: str,
        made: Sequence[Candidate],
    ) -> Candidate | None:
        diagnosis: Diagnosis | None = None
        if parent.mode == "speed":
            diagnosis = self._diagnose(this, parent, voice, step)
            plan = self._plan(parent, diagnosis, voice, step)
            part = self._speed_prompt(this, parent, shown, diagnosis, plan)
        else:
            part = self._repair_prompt(this, parent, shown)
        if self._desk.exhausted:
            return None
        *first, last = this.opening
        messages = [*first, Message(last.role, f"{last.content.rstrip()}\n\n{part}")]
        tried = {one.candidate.sha256: one.candidate for one in this.judged} | {
            one.sha256: one for one in made
        }
        change = diagnosis.change if diagnosis else ""
        for attempt in (1, 2):
            reply = self._desk.ask(voice.provider, voice.choice, f"{step}/code/{attempt}", messages)
            if reply is None:
                return None
            found = self._desk.count(extract(reply.text, reply.finish))
            if found.problem == "refusal":
                return None
            if found.source is None:
                follow_up = fill("again", problem=self._problems[found.problem])
            else:
                near = likeness(found.source, {sha: one.source for sha, one in tried.items()})
                if not near.repeats(parent.mode):
                    return self._made(found.source, this, parent, diagnosis, reply)
                follow_up = self._repeated(tried[near.sha256], change)
            messages = [*messages, Message("assistant", reply.text), Message("user", follow_up)]
        self._tell(f"round {this.number}: {voice.choice.model} proposed nothing new")
        return None

    def _made(
        self, source: str, this: _Round, parent: Parent, diagnosis: Diagnosis | None, reply: Reply
    ) -> Candidate:
        what = f"{diagnosis.bottleneck}: {diagnosis.change}" if diagnosis else "repaired"
        label = f"{reply.model} round {this.number}" + (", repair" if parent.mode == "repair" else "")
        note = f"{what[:300]} ({reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens)"
        made = Candidate(source, self._origin, label, parent.judged.candidate.sha256, note)
        if diagnosis is not None:
            idea = {"bottleneck": diagnosis.bottleneck, "change": diagnosis.change}
            self._context.store.finish_step(f"idea/{made.sha256}", idea)
        return made

    def _diagnose(self, this: _Round, parent: Parent, voice: Voice, step: str) -> Diagnosis | None:
        """The critic's word, from a conversation of its own: it has not written the code that it judges."""
        if not self._strategy.critic:
            return None
        sha256 = parent.judged.candidate.sha256
        others = this.changes.setdefault(sha256, [])
        prompt = render(
            "critic",
            task_source=self._context.task.source,
            device_name=self._device_name,
            source=parent.judged.candidate.source,
            shapes=_measured(parent.judged.verdict),
            cluster=this.cluster,
            history=self._history(this, parent),
            others=list(others),
            bottlenecks=critic.BOTTLENECKS,
        )
        reply = self._desk.ask(voice.provider, voice.choice, f"{step}/critic", [Message("user", prompt)])
        diagnosis = critic.parse(reply.text) if reply is not None else None
        if diagnosis is not None:
            others.append(diagnosis.change)
        return diagnosis

    def _plan(self, parent: Parent, diagnosis: Diagnosis | None, voice: Voice, step: str) -> str:
        if not self._strategy.plan or diagnosis is None:
            return ""
        prompt = render(
            "plan",
            task_source=self._context.task.source,
            device_name=self._device_name,
            source=parent.judged.candidate.source,
            change=diagnosis.change,
        )
        reply = self._desk.ask(voice.provider, voice.choice, f"{step}/plan", [Message("user", prompt)])
        return reply.text.rpartition("</think>")[2].strip()[:_PLAN_CHARACTERS] if reply is not None else ""

    def _speed_prompt(
        self,
        this: _Round,
        parent: Parent,
        shown: exemplars.Exemplars,
        diagnosis: Diagnosis | None,
        plan: str,
    ) -> str:
        return render(
            "speed",
            exemplars=shown,
            source=parent.judged.candidate.source,
            shapes=_measured(parent.judged.verdict),
            cluster=this.cluster,
            history=self._history(this, parent),
            diagnosis=diagnosis,
            plan=plan,
        )

    def _repair_prompt(self, this: _Round, parent: Parent, shown: exemplars.Exemplars) -> str:
        source, verdict = parent.judged.candidate.source, parent.judged.verdict
        port = starting.needs_port(source, self._context.device)
        return render(
            "fix",
            exemplars=replace(
                shown, successes=shown.successes[-1:]
            ),  # what is right helps; speeds do not matter here
            source=source,
            verdict=verdict,
            findings=[f"{one.get('rule')}: {one.get('evidence')}" for one in verdict.get("findings") or []],
            places=mismatch.explained(verdict),
            detail=str(verdict.get("detail") or "")[-_DETAIL_CHARACTERS:],
            port_from=starting.language(source) if port else "",
            device_name=self._device_name,
            history=self._history(this, parent),
        )

    def _history(self, this: _Round, parent: Parent) -> list[str]:
        """Changes that were made to this parent, or led to it, and what came of each."""
        by_sha = {one.candidate.sha256: one for one in this.judged}
        own = parent.judged.candidate.sha256
        lines = []
        for one in this.judged:
            idea = self._context.store.step(f"idea/{one.candidate.sha256}")
            before = by_sha.get(one.candidate.parent_sha256 or "")
            if (
                isinstance(idea, dict)
                and before is not None
                and own in (one.candidate.sha256, before.candidate.sha256)
            ):
                result = (
                    f"{before.speedup:.2f}x became {one.speedup:.2f}x"
                    if one.accepted
                    else one.verdict["verdict"]
                )
                lines.append(f"{idea['change']}: {result}")
        return lines[-_HISTORY:]

    def _repeated(self, earlier: Candidate, change: str) -> str:
        verdict = self._context.store.verdict(earlier.sha256, "screen")
        outcome = str(verdict["verdict"]) if verdict is not None else "being judged"
        return render("repeated", label=earlier.label, outcome=outcome, change=change)

    def _tell(self, text: str) -> None:
        self._context.store.event("proposer.finished", {"origin": self._origin, "text": text})


class _AsItWas:
    """A store as it was when a round began: later candidates are not there."""

    def __init__(self, store: JobStore, known: set[str]) -> None:
        self._store = store
        self._known = known

    def candidates(self) -> list[Candidate]:
        return [one for one in self._store.candidates() if one.sha256 in self._known]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _best(judged: Sequence[Judged]) -> float:
    return max((one.speedup for one in judged), default=0.0)


def _measured(verdict: Mapping[str, Any]) -> list[str]:
    return [
        f"{', '.join(f'{name}={value}' for name, value in row['dims'].items())}: {row['speedup']:.2f}x "
        f"({row['candidate_us']:.1f} us against {row['baseline_us']:.1f} us, {row.get('best_baseline')})"
        for row in visible_rows(verdict)
    ]
