"""Candidates from language models: first attempts, each repaired once, then rounds of search; without rounds they are improved once.

Every request and reply is recorded before judging, so a resumed job replays them at no cost.
A model sees only its own verdict on visible and adversarial shapes, never validation or held-out figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from agent.candidates import Candidate, Judged
from agent.errors import AnswersAwaited, ProposalFailed, ProviderError
from agent.extraction import extract, unfolded
from agent.languages import device_words, kind_of_start
from agent.messages import Message, Reply
from agent.portfolio.clusters import visible_rows
from agent.prompts import fill
from agent.prompts.sizes import listed, precision_text, shape_words, space_text, timed_words
from agent.proposing import ProposalContext
from agent.providers.choice import Standing, choose
from agent.providers.client import IN_FLIGHT, LOOK_S, ModelClient, Witness
from agent.providers.registry import Provider, provider_for
from agent.records import ASKED_STEPS, messages_sha256, recorded
from agent.spec import Budget, ModelChoice, Strategy
from agent.strategy import mismatch
from agent.strategy.contrast import drawn, fewer, varies
from agent.strategy.conversation import QUOTED_CHARACTERS, measured_words
from agent.strategy.exemplars import judged_in
from agent.strategy.search import Search
from agent.strategy.tuner import tuned
from evaluator.devices import is_accelerator
from evaluator.verdict import Verdict

_DETAIL_CHARACTERS = 3000
_REASON_CHARACTERS = 300
_ROUNDS = 2
_NOTES = 2
_ENOUGH = 1.05  # below this speedup, the prompt says "not faster yet"
_PROBLEMS = {
    "empty": "Your answer was empty.",
    "truncated": "Your answer was cut off at the token limit before the file was complete. Be brief.",
    "no_code": "Your answer holds no code block.",
    "no_class": "No code block of your answer defines the class ModelNew.",
    "syntax": "The file in your answer is not valid Python.",
    "too_long": "The file in your answer is too long.",
}


class LLMProposer:
    """Proposes with language models: origin `llm`, or `policy` for a model that this project trained.

    Up to `in_flight` attempts run concurrently: answers arrive while other candidates are compiled and timed.
    An attempt's prompts depend only on its own verdict and on what was known at the first request, so the order of
    answers changes no prompt. A policy's follow-up shows the candidates accepted so far, from any origin; this selection is
    drawn once and recorded, and with concurrent attempts it does depend on the order.

    Args:
        models: models to use, each for at most `samples` attempts; `agent.providers.choice` sets the order.
        budget: `usd` and `tokens` limit all models and attempts of the job together.
        strategy: settings for the search after the first attempts; None omits the search.
        start_from: a user's kernel to turn into a candidate; the job itself judges a complete candidate.
        in_flight: number of concurrent attempts.
        origin: "llm" or "policy".
        provide: creates a model's provider; a replay passes one that answers only from the record.
        witness: notified of every request, see `ModelClient`.
    """

    def __init__(
        self,
        models: Sequence[ModelChoice],
        budget: Budget,
        *,
        strategy: Strategy | None = None,
        start_from: str | None = None,
        in_flight: int = IN_FLIGHT,
        origin: str = "llm",
        provide: Callable[[ModelChoice], Provider] = provider_for,
        witness: Witness | None = None,
    ) -> None:
        self._witness = witness
        self.origin = origin
        self._models = tuple(models)
        self._budget = budget
        self._strategy = strategy or Strategy()
        self._start_from = start_from
        self._in_flight = in_flight
        self._provide = provide

    def propose(self, context: ProposalContext) -> Iterator[Candidate | None]:
        """See `Proposer.propose`.

        Raises:
            ProposalFailed: if no model answered any request; gives the last failure.
            AnswersAwaited: if a batch has no answers yet.
        """
        batches = sum(choice.samples for choice in self._models if choice.provider == "batch")
        in_flight = max(self._in_flight, batches)  # all requests of a batch go into one file
        client = ModelClient(
            context.store,
            self._models,
            self._budget,
            prefix=f"{self.origin}/",
            provide=self._provide,
            witness=self._witness,
            ledger=context.ledger,
        )
        try:
            first = _First(client, context, self.origin, in_flight, self._start_from, self._strategy)
            yield from first.candidates()
            while context.others_wait():  # the search starts from the candidates of all proposers
                yield None
            if first.awaited:
                raise AnswersAwaited(first.awaited)
            if client.answered or client.last_failure is None:
                yield from self._search(client, context, first)
            self._tell(client)
        finally:
            client.close()

    def _search(self, client: ModelClient, context: ProposalContext, first: _First) -> Iterator[Candidate]:
        def begin(number: int) -> Callable[[Sequence[Judged]], list[Message]]:
            times = _recorded_times(client, context, f"baseline times {number}")
            if self.origin == "policy":
                return lambda shown: opening(context, times, self._start_from, shown)
            return lambda shown: opening(context, times, self._start_from, brief=True)

        yield from Search(
            context, client, first.standings, self._strategy, begin, _PROBLEMS, self.origin, first.told
        ).run()

    def _tell(self, client: ModelClient) -> None:
        """Report the outcomes of the requests."""
        outcomes = client.outcomes
        if outcomes:
            told = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
            data = {"origin": self.origin, "text": f"replies: {told}", "counts": dict(outcomes)}
            client.store.event("proposer.finished", data)
        if client.last_failure is not None and not client.answered:
            raise ProposalFailed(f"no model answered; the last failure: {client.last_failure}")


@dataclass
class _Attempt:
    """One conversation: `round` counts its requests; `waiting` is the pending answer, None if the budget has no room."""

    model: int
    sample: int
    messages: list[Message]
    waiting: Future[Reply] | None = None
    round: int = 1
    parent: str | None = None
    speedup: float | None = None
    shown: tuple[Judged, ...] = ()


class _First:
    """The first attempts of one proposer."""

    def __init__(
        self,
        client: ModelClient,
        context: ProposalContext,
        origin: str,
        in_flight: int,
        start_from: str | None,
        strategy: Strategy,
    ) -> None:
        self._client = client
        self._context = context
        self._origin = origin
        self._in_flight = in_flight
        self._start_from = start_from
        self._strategy = strategy
        # A policy gets prompts in its training format, follow-ups included (`agent.strategy.contrast`).
        self._trained = origin == "policy"
        self.standings = [
            Standing(choice.samples if varies(choice) or not self._trained else min(choice.samples, 1))
            for choice in client.models
        ]
        #: Digests of the prompts sent to each model.
        self.told: list[set[str]] = [set() for _ in client.models]
        self.awaited = ""
        self._attempts: list[_Attempt] = []
        self._begun = 0
        self._times: Mapping[str, str] = {}

    def candidates(self) -> Iterator[Candidate | None]:
        """Yield candidates as answers arrive; yield None instead of blocking while other proposers have work."""
        self._times = _recorded_times(self._client, self._context, "baseline times")
        self._begin()
        # Complete the request files before the rest of the job begins.
        batches = [one for one in self._attempts if self._client.models[one.model].provider == "batch"]
        wait([one.waiting for one in batches if one.waiting is not None], LOOK_S)
        while True:
            self._begin()
            if not self._attempts:
                break
            while self._would_wait() and self._context.others_wait():
                yield None
            attempt = self._next()
            if attempt is None:
                break
            self._attempts.remove(attempt)
            yield from self._answered(attempt)

    def _begin(self) -> None:
        """Start attempts up to the `in_flight` limit."""
        while len(self._attempts) < self._in_flight and not any(
            one.waiting is None for one in self._attempts
        ):
            self._begun += 1
            # Recorded: the choice depends on the measurements so far, and a resumed job has more of them.
            index = self._client.records.recall(f"choice {self._begun}", lambda: choose(self.standings))
            if index < 0 or not self.standings[index].open:
                self._begun -= 1
                return
            standing = self.standings[index]
            standing.attempts += 1
            attempt = _Attempt(index, standing.attempts, self._opening((), standing.attempts))
            self.told[index].add(messages_sha256(attempt.messages))
            self._attempts.append(attempt)
            if not self._ask(attempt):
                return

    def _opening(self, shown: Sequence[Judged], number: int = 1) -> list[Message]:
        files = shown if self._trained else None
        return opening(self._context, self._times, self._start_from, files, number)

    def _ask(self, attempt: _Attempt) -> bool:
        """Send the attempt's next request; False if the budget has no room for it."""
        attempt.waiting = self._client.ask(self._request(attempt), attempt.model, attempt.messages)
        if attempt.waiting is None:
            return False
        if attempt.round == 1 and attempt.sample == 1:
            self._context.store.finish_step(
                f"{ASKED_STEPS}{self._origin}", {"request": self._request(attempt)}
            )
        return True

    def _would_wait(self) -> bool:
        under_way = [one.waiting for one in self._attempts if one.waiting is not None]
        return bool(under_way) and not any(waiting.done() for waiting in under_way)

    def _next(self) -> _Attempt | None:
        """The first attempt with an answer; None if no answer is pending or the job must end."""
        while True:
            under_way: list[Future[Reply]] = []
            for attempt in self._attempts:
                if attempt.waiting is None and not self._ask(attempt):
                    continue
                assert attempt.waiting is not None
                if attempt.waiting.done():
                    return attempt
                under_way.append(attempt.waiting)
            if not under_way:
                self._client.say_exhausted()
                return None
            if not wait(under_way, LOOK_S, FIRST_COMPLETED).done and not self._context.may_go_on():
                return None

    def _answered(self, attempt: _Attempt) -> Iterator[Candidate]:
        """Process an answer: yield its candidate, then follow up with the referee's verdict."""
        choice = self._client.models[attempt.model]
        try:
            assert attempt.waiting is not None
            reply = attempt.waiting.result()
        except ProviderError as error:
            self._failed(attempt, choice, error)
            return
        self._client.answered += 1
        self.standings[attempt.model].usd += self._client.cost(self._request(attempt)).usd
        found = extract(reply.text, reply.finish)
        self._client.count(found.problem or "candidate")
        follow_up = (
            "" if found.problem == "refusal" else fill("again", problem=_PROBLEMS.get(found.problem, ""))
        )
        if found.source is not None:
            again = " again" if self._trained else " repaired"
            label = f"{choice.model} #{attempt.sample}" + (again if attempt.round > 1 else "")
            candidate = Candidate(unfolded(found.source), self._origin, label, attempt.parent, _note(reply))
            yield candidate
            verdict = self._context.store.verdict(candidate.sha256, "screen")
            if not self._trained:
                attempt.parent = candidate.sha256
            if verdict is not None:
                attempt.speedup = max(attempt.speedup or 0.0, Judged(candidate, verdict).speedup) or None
            follow_up = after_verdict(verdict)
            if verdict is not None and verdict.verdict == "accepted" and not self._trained:
                if self._strategy.tune:
                    yield from tuned(self._context, candidate, self._strategy)
                if self._strategy.rounds > 0:
                    follow_up = ""  # rounds improve the best of all attempts; this would improve each
        if follow_up and attempt.round < _ROUNDS:
            if not self._trained:
                said = reply.text[-QUOTED_CHARACTERS:]
                more = [Message("assistant", said), Message("user", follow_up)]
                self._go_on(attempt, [*attempt.messages, *more])
                return
            if self._asked_beside(attempt, self._drawn(attempt)):
                return
        elif (
            found.problem == "truncated"
            and attempt.shown
            and self._asked_beside(attempt, fewer(attempt.shown))
        ):
            return  # the shown candidates left no room for an answer; training drops some too
        self.standings[attempt.model].finished(attempt.speedup)

    def _asked_beside(self, attempt: _Attempt, shown: tuple[Judged, ...]) -> bool:
        """Continue with a prompt that shows these candidates; False if it would repeat a prompt to a deterministic model."""
        messages = self._opening(shown)
        told, choice = messages_sha256(messages), self._client.models[attempt.model]
        if told in self.told[attempt.model] and not varies(choice):
            return False
        attempt.shown = shown
        attempt.parent = shown[-1].candidate.sha256 if shown else None
        self._go_on(attempt, messages)
        return True

    def _drawn(self, attempt: _Attempt) -> tuple[Judged, ...]:
        """Draw the judged candidates that the next request shows; recorded, so a resumed job gets the same ones."""
        store = self._context.store
        now = [one.candidate.sha256 for one in judged_in(store, store.candidates())]
        generator, known = recorded(store, f"shown/{self._request(attempt)}", now, self._strategy.seed)
        wanted = set(known)
        then = [one for one in store.candidates() if one.sha256 in wanted]
        return drawn(judged_in(store, then), generator)

    def _go_on(self, attempt: _Attempt, messages: list[Message]) -> None:
        self.told[attempt.model].add(messages_sha256(messages))
        attempt.messages = messages
        attempt.round += 1
        attempt.waiting = None
        self._attempts.append(attempt)
        self._ask(attempt)

    def _failed(self, attempt: _Attempt, choice: ModelChoice, error: ProviderError) -> None:
        standing = self.standings[attempt.model]
        if error.kind == "waiting":
            self.awaited = str(error)
            return
        if error.kind == "no_room" and attempt.shown and self._asked_beside(attempt, fewer(attempt.shown)):
            return
        self._client.failed(choice, error)
        standing.finished(attempt.speedup)
        if error.kind == "authentication":
            standing.refused = True  # the next sample would fail the same way

    def _request(self, attempt: _Attempt) -> str:
        return f"{self._origin}/{attempt.model + 1}/{attempt.sample}/{attempt.round}"


def opening(
    context: ProposalContext,
    times: Mapping[str, str],
    start_from: str | None = None,
    shown: Sequence[Judged] | None = None,
    number: int = 1,
    *,
    brief: bool = False,
) -> list[Message]:
    """The first messages: rules, the task, its space, and the visible shapes with the times to beat.

    `times` is the result of `baseline_times` at the job's first request. A kernel in `start_from` that is not a complete
    candidate is shown too, to be wrapped or ported. With `shown` (even empty), the prompt has the format that `rl` trains on:
    these accepted candidates with their speedups, slowest first, and answers in parts. Of several first attempts, each `number` is asked to
    take another approach. `brief` leaves out technique notes and lessons of other jobs.
    """
    visible = context.description.shapes.get("visible") or []
    strata = context.description.strata.get("visible") or [""] * len(visible)
    is_gpu, is_trained = is_accelerator(context.device), shown is not None
    device_name = device_words(context.device, "" if is_trained else context.description.device_name)
    notes = [fill("device_cuda" if is_gpu else "device_cpu", device_name=device_name)]
    # The prompts in `rl` training have none of these.
    if is_gpu and not is_trained:
        notes.append(fill("library"))
    if context.background and not is_trained:
        notes.append(context.background.of_profile(0 if brief else _NOTES))
        notes += [] if brief else [context.background.of_memory()]
    more = {
        "approach": fill("approach", number=number).strip(),
        "shown": [_as_shown(one) for one in shown or ()],
    }
    prompt = fill(
        "propose" if shown is None else "parts",
        device_name=device_name,
        task_source=context.task.source,
        dims=space_text(context.description.dims) or "Only the shapes that `get_inputs` makes.",
        shapes=listed(
            timed_words(dims, stratum) + times.get(shape_words(dims), "")
            for dims, stratum in zip(visible, strata, strict=True)
        )
        or "- as given",
        precision=precision_text(context.task.source),
        device_notes="\n".join(filter(None, notes)),
        **more,
    )
    kind = kind_of_start(start_from) if start_from is not None else "candidate"
    if start_from is not None and kind != "candidate":
        prompt += "\n" + fill("port", kind=kind, device_name=device_name, source=start_from)
    return [Message("system", fill("system")), Message("user", prompt)]


def _as_shown(one: Judged) -> dict[str, Any]:
    return {"speedup": one.speedup, "source": one.candidate.shown}


def after_verdict(verdict: Verdict | None) -> str:
    """The next user message after a screen verdict; empty if the verdict says nothing about the candidate."""
    if verdict is None or verdict.verdict in ("not_judged", "task_rejected"):
        return ""
    if verdict.verdict == "accepted":
        speed = verdict.summary.geomean_speedup or 0.0
        aim = "It is not faster yet. Make it faster." if speed < _ENOUGH else "Make it faster still."
        return fill("improve", shapes=listed(measured_words(verdict)), aim=aim)
    findings = listed(f"{finding.rule}: {finding.evidence}" for finding in verdict.findings)
    detail = verdict.detail[-_DETAIL_CHARACTERS:]
    return fill(
        "repair",
        verdict=verdict.verdict,
        reason=_one_line(verdict.reason),
        findings=findings,
        places=mismatch.explained(verdict),
        detail=detail,
    )


def _recorded_times(client: ModelClient, context: ProposalContext, name: str) -> Mapping[str, str]:
    """`baseline_times` when they were first asked for by this name; a replayed job finds more verdicts in its store."""
    found: Mapping[str, str] = client.records.recall(name, lambda: baseline_times(context))
    return found


def baseline_times(context: ProposalContext) -> dict[str, str]:
    """Best baseline time per visible shape, from the first screened candidate that has timings."""
    for candidate in context.store.candidates():
        verdict = context.store.verdict(candidate.sha256, "screen")
        rows = visible_rows(verdict) if verdict else []
        if rows:
            return {
                shape_words(row.dims): f": {row.baseline_us:.1f} us ({row.best_baseline})" for row in rows
            }
    return {}


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:_REASON_CHARACTERS]


def _note(reply: Reply) -> str:
    return f"{reply.model}, {reply.prompt_tokens} + {reply.completion_tokens} tokens"
