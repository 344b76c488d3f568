"""The search rounds after the first attempts: choose parents, request one change to each, judge the results.

    round r:  recorded draw -> worst cluster -> beam -> per parent and branch: a conversation -> judged, tuned

Requests for all parents of a round run concurrently, so answers arrive while earlier candidates are compiled and timed. The
branches of one parent run in sequence, because each critic sees the previous critics' requests. Candidates are taken in beam
order, regardless of arrival order. A round's initial knowledge and every draw and choice are steps in the store.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent.candidates import Candidate, Judged
from agent.errors import AnswersAwaited, ProviderError
from agent.messages import Message
from agent.portfolio.clusters import worst_cluster
from agent.portfolio.cover import covering
from agent.portfolio.entries import Entry
from agent.providers.choice import Standing, choose
from agent.providers.client import LOOK_S
from agent.records import messages_sha256, recorded
from agent.strategy import exemplars
from agent.strategy.beam import Parent, select
from agent.strategy.contrast import ask_policy, drawn, varies
from agent.strategy.conversation import Conversation, Proposal, Round
from agent.strategy.exemplars import Exemplars, judged_in
from agent.strategy.novelty import likeness
from agent.strategy.tuner import tuned
from evaluator.counting import counted

if TYPE_CHECKING:
    import random

    from agent.proposing import ProposalContext
    from agent.providers.client import ModelClient
    from agent.spec import Strategy

_GAIN = 1.02


class Search:
    """Rounds of improvement and repair.

    Args:
        context: the proposer's context.
        client: sends the model requests.
        standings: gains and costs of each of the client's models so far, in the client's order.
        strategy: settings.
        opening: for a round, what builds the first messages (rules, task, shapes) with the given candidates shown, if any.
        problems: replies to an answer without a candidate, by `Extraction.problem`.
        origin: origin of the candidates; "policy" gets prompts in its training format (`agent.strategy.contrast`).
        told: digests of each model's earlier prompts; a deterministic policy is not sent the same prompt twice.
    """

    def __init__(
        self,
        context: ProposalContext,
        client: ModelClient,
        standings: Sequence[Standing],
        strategy: Strategy,
        opening: Callable[[int], Callable[[Sequence[Judged]], list[Message]]],
        problems: Mapping[str, str],
        origin: str,
        told: Sequence[set[str]] = (),
    ) -> None:
        self._context = context
        self._client = client
        self._told = told
        # The rounds set the number of requests, not a model's `samples`.
        self._standings = [replace(one, limit=sys.maxsize) for one in standings]
        self._strategy = strategy
        self._opening = opening
        self._conversation = Conversation(context, client, strategy, problems, origin)
        self._origin = origin
        self._trained = origin == "policy"
        self._awaited = ""

    def run(self) -> Iterator[Candidate]:
        """Yield candidates; the caller judges each before taking the next.

        Raises:
            AnswersAwaited: if a batch has not answered a round's requests yet.
        """
        stale = 0
        for number in range(1, self._strategy.rounds + 1):
            if self._client.exhausted or not self._context.may_go_on():
                return
            this, generator = self._begin(number)
            parents = select(this.judged, self._strategy.beam, this.cluster)
            groups = self._proposals(this, parents, generator)
            if not groups:
                return
            before = _best(this.judged)
            made: list[Candidate] = []
            for group in groups:
                # Daemon threads: an unresponsive server must not keep the process alive.
                work = partial(copy_context().run, self._work, this, group)
                threading.Thread(target=work, name=f"search {group[0].step}", daemon=True).start()
            for proposal in itertools.chain(*groups):
                if not self._arrived(proposal):
                    return
                for candidate in self._taken(this, proposal, made):
                    made.append(candidate)
                    yield candidate
            if self._awaited:
                raise AnswersAwaited(self._awaited)
            stale = 0 if self._better(before, made) else stale + 1
            if stale >= self._strategy.patience:
                self._tell(f"no gain in {counted(stale, 'round')}: the search ends after round {number}")
                return

    def _begin(self, number: int) -> tuple[Round, random.Random]:
        store = self._context.store
        now = [one.candidate.sha256 for one in judged_in(store, store.candidates())]
        generator, known = recorded(store, f"search/{self._origin}/{number}", now, self._strategy.seed)
        wanted = set(known)
        judged = judged_in(store, [one for one in store.candidates() if one.sha256 in wanted])
        # The first round aims at overall speed; later rounds target the cluster where the portfolio is worst.
        cluster = worst_cluster(one.verdict for one in _kept(judged)) if number > 1 else None
        return Round(number, judged, cluster, self._opening(number)), generator

    def _better(self, before: float, made: Sequence[Candidate]) -> bool:
        judged = judged_in(self._context.store, made)
        if before == 0.0:  # nothing is accepted yet: any accepted candidate is progress
            return any(one.accepted for one in judged)
        return _best(judged) >= _GAIN * before

    def _proposals(
        self, this: Round, parents: Sequence[Parent], generator: random.Random
    ) -> list[list[Proposal]]:
        """The round's proposals, in groups that are requested in sequence; all draws are made before any request is sent.

        The branches of one parent are a group, since each critic sees the earlier ones' requests; a policy has no critic.
        """
        groups: dict[str, list[Proposal]] = {}
        for one in self._drawn(this, parents, generator):
            key = one.step if self._trained else one.parent.judged.candidate.sha256
            groups.setdefault(key, []).append(one)
        return list(groups.values())

    def _drawn(self, this: Round, parents: Sequence[Parent], generator: random.Random) -> Iterator[Proposal]:
        for place, parent in enumerate(parents, start=1):
            # A failed candidate gets one repair; only a correct parent is worth several branches.
            branches = self._strategy.branches if parent.mode == "speed" else 1
            for branch in range(1, branches + 1):
                if self._trained:
                    shown = Exemplars(drawn(this.judged, generator), None)
                else:
                    # One, since the parent is shown too.
                    shown = exemplars.draw(this.judged, generator, {parent.judged.candidate.sha256}, count=1)
                step = f"{self._origin}/search/{this.number}/{place}/{branch}"
                model = self._client.records.recall(f"choice {step}", lambda: choose(self._standings))
                if model < 0:
                    return
                if self._trained and not self._is_new(this, shown, model):
                    continue
                self._standings[model].attempts += 1
                yield Proposal(parent, shown, model, step)

    def _is_new(self, this: Round, shown: Exemplars, model: int) -> bool:
        """Whether a policy could give a new answer to this prompt."""
        prompt = messages_sha256(this.retold(shown.successes))
        known = prompt in self._told[model]
        self._told[model].add(prompt)
        return not known or varies(self._client.models[model])

    def _work(self, this: Round, group: Sequence[Proposal]) -> None:
        """Request the proposals of one group in sequence."""
        fatal: BaseException | None = None
        for one in group:
            if fatal is not None:
                one.outcome.set_exception(fatal)
                continue
            try:
                if self._trained:
                    one.outcome.set_result(ask_policy(self._client, self._origin, this, one))
                else:
                    one.outcome.set_result(self._conversation.propose(this, one))
            except BaseException as error:  # noqa: BLE001 - the job's own thread raises it
                # A later critic's prompt depends on the earlier critic's answer; another failed request ends nothing.
                fatal = None if isinstance(error, ProviderError) and error.kind != "waiting" else error
                one.outcome.set_exception(error)

    def _arrived(self, proposal: Proposal) -> bool:
        """Wait for a proposal; False if the job must end first."""
        while not proposal.outcome.done():
            wait([proposal.outcome], LOOK_S)
            if not proposal.outcome.done() and not self._context.may_go_on():
                return False
        return True

    def _taken(self, this: Round, proposal: Proposal, made: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield a proposal's candidate if it is new, and its tuned form if it is accepted and declares `TUNABLES`."""
        choice, standing = self._client.models[proposal.model], self._standings[proposal.model]
        standing.usd += self._client.records.cost_below(f"{proposal.step}/").usd
        try:
            candidate = proposal.outcome.result()
        except ProviderError as error:
            if error.kind == "waiting":
                self._awaited = str(error)
                return
            self._client.failed(choice, error)
            standing.refused = standing.refused or error.kind == "authentication"
            return
        mode = proposal.parent.mode
        if candidate is None or likeness(candidate.shown, {one.sha256: one.shown for one in made}).repeats(
            mode
        ):
            if not self._client.exhausted:
                self._tell(f"round {this.number}: {choice.model} proposed nothing new")
            return
        yield candidate
        verdict = self._context.store.verdict(candidate.sha256, "screen")
        if verdict is None or verdict.verdict != "accepted":
            return
        # A repair is credited with its speedup, an improvement with its gain over the parent.
        before = proposal.parent.judged.speedup
        if self._trained:
            before = proposal.shown.successes[-1].speedup if proposal.shown.successes else 0.0
        standing.finished(Judged(candidate, verdict).speedup / (before or 1.0))
        if self._strategy.tune:
            yield from tuned(self._context, candidate, self._strategy)

    def _tell(self, text: str) -> None:
        self._context.store.event("proposer.finished", {"origin": self._origin, "text": text})


def _kept(judged: Sequence[Judged]) -> list[Entry]:
    """The candidates that a portfolio over the visible shapes would keep; the others would not be delivered."""
    accepted = [Entry(one.candidate, order, one.verdict) for order, one in enumerate(judged) if one.accepted]
    return covering(accepted)


def _best(judged: Sequence[Judged]) -> float:
    return max((one.speedup for one in judged), default=0.0)
