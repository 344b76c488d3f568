"""Sends requests to models within the budget, several at a time, and records each before and after.

A request that was already answered is served from the record at no cost. Each request runs in its own thread, which also
stores the answer, so a paid answer is saved immediately rather than when the job asks for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import copy_context
from dataclasses import replace
from secrets import token_hex
from typing import Any

from agent.budget import Cost, Ledger, Price, Reservation, price_of, price_snapshot, prompt_tokens_at_most
from agent.errors import ProviderError
from agent.messages import Message, Reply
from agent.prompts import prompts_sha256
from agent.providers.registry import Provider, provider_for
from agent.records import PREFIXES, Records, messages_sha256
from agent.redaction import known_secrets, redact
from agent.spec import Budget, ModelChoice
from agent.store import JobStore
from evaluator.counting import counted

Witness = Callable[[str, Sequence[Message]], None]
_log = logging.getLogger(__name__)
IN_FLIGHT = 8
LINGER_S = 5.0
"""How long to wait for answers in flight when a job ends; later answers count in full."""
LOOK_S = 0.5
"""How often a caller that waits for an answer checks whether to keep waiting."""
_COST_NOTHING = frozenset({"authentication", "rate_limit", "server", "request", "no_room", "waiting"})


def ledger_of(store: JobStore, budget: Budget) -> Ledger:
    """The job's caps, with the spending of all clients in earlier attempts."""
    return Ledger(budget, sum((Records(store, one).spent() for one in PREFIXES), Cost()))


class ModelClient:
    """Sends requests to the models of one job.

    Args:
        store: the job's store.
        models: the available models; callers select one by index.
        budget: its `usd` and `tokens` are hard caps that include earlier attempts at the job.
        prefix: prefix of this client's request names.
        provide: makes the provider of a model.
        witness: called with every request, including recorded ones.
        ledger: shared by all clients that are open at once, see `ledger_of`; None creates one for this client.
    """

    def __init__(
        self,
        store: JobStore,
        models: Sequence[ModelChoice],
        budget: Budget,
        *,
        prefix: str = "llm/",
        provide: Callable[[ModelChoice], Provider] = provider_for,
        witness: Witness | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._witness = witness
        self.store = store
        self.models = tuple(models)
        self.records = Records(store, prefix)
        self.outcomes: Counter[str] = Counter()
        self.exhausted = False
        self.answered = 0
        self.last_failure: ProviderError | None = None
        self._prices = self.records.recall("prices", lambda: price_snapshot(self.models))
        # Request names repeat across jobs; the keys sent to servers and batches must be unique.
        self._nonce = self.records.recall("request names", lambda: token_hex(8))
        self._ledger = ledger or ledger_of(store, budget)
        self._provide = provide
        self._providers: dict[int, Provider] = {}
        self._secrets = known_secrets(os.environ.get(one.api_key_variable, "") for one in self.models)
        self._lock = threading.RLock()
        self._providing = threading.Lock()
        self._under_way: set[Future[Reply]] = set()
        self._closed = False
        self._tell_recorded()

    @property
    def spent(self) -> Cost:
        """Total cost of requests over all attempts at the job."""
        return self._ledger.spent

    def cost(self, request: str) -> Cost:
        """The cost of an answered request."""
        return self.records.cost(request)

    def ask(self, request: str, model: int, messages: Sequence[Message]) -> Future[Reply] | None:
        """Send a request; None if it does not fit in the budget now, or the client is closed.

        It may fit later, when a request in flight turns out cheaper than its reservation; with none in flight, it never
        will. The future raises ProviderError if the request fails.

        Args:
            request: its name within the job, the same on a resume; begins with the client's prefix.
            model: index of the model.
            messages: the conversation.
        """
        # Masked here rather than where it is stored or sent: the recorded, digested and sent texts must be identical.
        clean = [Message(one.role, redact(one.content, self._secrets)) for one in messages]
        if self._witness is not None:
            self._witness(request, clean)
        recorded = self.records.outcome(request)
        if recorded is not None:
            return self._settled(recorded)
        choice = self.models[model]
        price = price_of(self._prices, choice.model)
        contents = [message.content for message in clean]
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                return None
            reservation = self._ledger.reserve(price, prompt_tokens_at_most(contents), choice.max_tokens)
            if reservation is None:
                return None
            self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        # Daemon thread: a silent server must not keep the process from exiting.
        thread = threading.Thread(
            target=copy_context().run,  # the context carries the job's identity into log records
            args=(self._answer, future, request, model, clean, reservation, price),
            name=f"model {request}",
            daemon=True,
        )
        thread.start()
        return future

    def answer(self, request: str, model: int, messages: Sequence[Message]) -> Reply | None:
        """Like `ask`, but wait for budget and for the answer; None if the budget cannot fit it or the client is closed.

        Raises:
            ProviderError: if the request fails.
        """
        while True:
            with self._lock:  # the requests in flight must be read at the moment when the budget had no room
                future = self.ask(request, model, messages)
                others = set(self._under_way)
            if future is not None:
                return future.result()
            if self._closed:
                return None
            if not others:
                self.say_exhausted()
                return None
            wait(others, LOOK_S, FIRST_COMPLETED)

    def count(self, outcome: str) -> None:
        """Count the outcome of a reply."""
        with self._lock:
            self.outcomes[outcome] += 1

    def failed(self, choice: ModelChoice, error: ProviderError) -> None:
        """Record a failed request and emit an event."""
        self.last_failure = error
        self.outcomes[f"failed: {error.kind}"] += 1
        data = {
            "origin": self.records.prefix.rstrip("/"),
            "model": choice.model,
            "kind": error.kind,
            "reason": str(error),
        }
        self.store.event("proposer.failed", data)

    def close(self) -> None:
        """Close the client: keep answers that arrive within `LINGER_S`; count the rest as lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        wait(set(self._under_way), timeout=LINGER_S)
        with self._providing:
            for provider in self._providers.values():
                provider.close()

    def _answer(self, future: Future[Reply], *request: Any) -> None:
        try:
            future.set_result(self._complete(*request))
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller that waits for the answer
            future.set_exception(error)

    def _complete(
        self,
        request: str,
        model: int,
        messages: Sequence[Message],
        reservation: Reservation,
        price: Price,
    ) -> Reply:
        choice = self.models[model]
        batch = choice.provider == "batch"  # a batch has a file of requests: sending one again costs nothing
        if not batch:
            # Make the record durable before sending: if killed after this line, the request counts as paid for.
            self.records.sending(request, choice.model, messages, reservation, prompts_sha256())
        key = f"{self._nonce}-{request.replace('/', '-')}"
        if (
            batch
        ):  # the answer may arrive after an upgrade that changes the prompt, but it answers only this prompt
            key = f"{key}-{messages_sha256(messages)[:8]}"
        try:
            reply = self._provider(model).complete(messages, max_tokens=reservation.max_tokens, key=key)
        except ProviderError as error:
            cost = Cost() if error.kind in _COST_NOTHING else reservation.cost
            if batch and cost.tokens:  # the batch answered, so the request has been paid for
                self.records.sending(request, choice.model, messages, reservation, prompts_sha256())
            self._end(request, choice, error, reservation, cost)
            raise
        except Exception as fault:  # noqa: BLE001 - a bug in a provider must end its request, not the job
            _log.exception("the provider of %s failed", choice.model)
            failure = ProviderError(f"{type(fault).__name__} in the provider of {choice.model}", "protocol")
            self._end(request, choice, failure, reservation, reservation.cost)
            raise failure from None
        if batch:
            self.records.sending(request, choice.model, messages, reservation, prompts_sha256())
        text, name = redact(reply.text, self._secrets), redact(reply.model, self._secrets)
        reply = replace(reply, text=text, model=name)
        tokens = reply.prompt_tokens + reply.completion_tokens
        cost = Cost(price.of(reply.prompt_tokens, reply.completion_tokens), tokens)
        self._end(request, choice, reply, reservation, cost)
        return reply

    def _end(
        self,
        request: str,
        choice: ModelChoice,
        outcome: Reply | ProviderError,
        reservation: Reservation,
        cost: Cost,
    ) -> None:
        if isinstance(outcome, ProviderError) and outcome.kind == "waiting":
            return  # no outcome yet; the reservation stays because the answers will cost as much
        self._ledger.settle(reservation, cost)
        self.records.answered(request, choice.model, outcome, cost)
        if cost.tokens or isinstance(outcome, Reply):
            self._tell(request, choice.model, outcome, cost)

    def _tell(self, request: str, model: str, outcome: Reply | ProviderError, cost: Cost) -> None:
        data: dict[str, Any] = {
            "request": request,
            "usd": cost.usd,
            "tokens": cost.tokens,
            "model": model,
            "text": f"{model}: {counted(cost.tokens, 'token')}, {cost.usd:.4f} USD",
        }
        if isinstance(outcome, Reply):
            data |= {
                "prompt_tokens": outcome.prompt_tokens,
                "completion_tokens": outcome.completion_tokens,
                "estimated": outcome.estimated,
                "elapsed_s": round(outcome.elapsed_s, 3),
                "retries": outcome.retries,
            }
        else:
            data |= {"estimated": True, "text": f"{data['text']} at most: {outcome.kind}"}
        self.store.event("budget.spent", data)

    def _tell_recorded(self) -> None:
        """Emit billing events that an earlier attempt may have been killed before emitting; repeats have no effect."""
        for request in self.records.requests():
            outcome = self.records.outcome(request)
            prompt = self.records.prompt(request) or {}
            if outcome is not None:
                cost = self.records.cost(request)
                if cost.tokens or isinstance(outcome, Reply):
                    self._tell(request, str(prompt.get("model")), outcome, cost)
            for number, lost in self.records.lost(request).items():
                self._tell_lost(request, number, str(prompt.get("model")), lost)

    def _tell_lost(self, request: str, number: int, model: str, cost: Cost) -> None:
        words = "a request was in flight when the job was interrupted; counted in full"
        self.store.event(
            "budget.spent",
            {
                "request": request,
                "try": number,
                "usd": cost.usd,
                "tokens": cost.tokens,
                "estimated": True,
                "model": model,
                "text": words,
            },
        )

    def _provider(self, model: int) -> Provider:
        with self._providing:
            if model not in self._providers:
                self._providers[model] = self._provide(self.models[model])
            return self._providers[model]

    def _settled(self, outcome: Reply | ProviderError) -> Future[Reply]:
        future: Future[Reply] = Future()
        if isinstance(outcome, Reply):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
        return future

    def say_exhausted(self) -> None:
        """Emit one event saying that the budget has no room for another request."""
        with self._lock:
            first, self.exhausted = not self.exhausted, True
        if first:
            reason = self._ledger.exhausted() or f"no room for another request under {self._ledger.cap()}"
            text = f"the budget for models is spent: {reason}"
            self.store.event("budget.spent", {"reason": reason, "text": text})
