"""Where requests to models are made: within the budget, several at a time, each recorded before and after.

What was answered before is answered from the record and costs nothing. A request is sent from a thread of its own, and its
answer is stored by that thread, so nothing that was paid for waits until the job looks for it.
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
from agent.providers.base import Provider
from agent.providers.registry import provider_for
from agent.records import Records, messages_sha256
from agent.redaction import known_secrets, redact
from agent.spec import Budget, ModelChoice
from agent.store import JobStore

Witness = Callable[[str, Sequence[Message]], None]
_log = logging.getLogger(__name__)
IN_FLIGHT = 8
PREFIXES = ("llm/", "policy/")
"""Of all clients of a job, which share its caps."""
LINGER_S = 5.0
"""How long answers under way are waited for when a job ends; what is later is counted in full."""
LOOK_S = 0.5
"""How often whoever waits for an answer looks whether there is still reason to."""
_COST_NOTHING = frozenset({"authentication", "rate_limit", "server", "request", "no_room", "waiting"})


def ledger_of(store: JobStore, budget: Budget) -> Ledger:
    """The job's caps with what all clients of earlier attempts have spent."""
    return Ledger(budget, sum((Records(store, one).spent() for one in PREFIXES), Cost()))


class ModelClient:
    """Asks the models of one job.

    Args:
        store: the job's memory.
        models: which may be asked; callers name one by its index.
        budget: its `usd` and `tokens` are hard caps, over earlier attempts at the job too.
        prefix: names of this client's requests begin with it.
        provide: makes the provider of a model.
        witness: is told of every request that is asked, recorded ones included.
        ledger: of all clients that are open at once, see `ledger_of`; None for one of its own.
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
        # Names of requests are the same in every job; what servers and batches know them by must not be.
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
        """What requests have cost, over all attempts at the job."""
        return self._ledger.spent

    def cost(self, request: str) -> Cost:
        """What an answered request cost."""
        return self.records.cost(request)

    def ask(self, request: str, model: int, messages: Sequence[Message]) -> Future[Reply] | None:
        """The answer to a request, now or later; None when the budget has no room for it now.

        There may be room again when a request under way has turned out cheaper than was reserved for it; with nothing
        under way there will be none. The future raises ProviderError when the request fails.

        Args:
            request: its name within the job, the same on a resume; begins with the client's prefix.
            model: index of the model.
            messages: the conversation.
        """
        # Here and not where it is stored or sent, so that what is recorded, digested and sent is one text.
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
        # A daemon: a silent server must not keep a process alive that wants to end.
        thread = threading.Thread(
            target=copy_context().run,  # whose job it is goes into what it logs
            args=(self._answer, future, request, model, clean, reservation, price),
            name=f"model {request}",
            daemon=True,
        )
        thread.start()
        return future

    def answer(self, request: str, model: int, messages: Sequence[Message]) -> Reply | None:
        """As `ask`, waiting for room and for the answer; None when there will be no room, or the client was closed.

        Raises:
            ProviderError: when the request fails.
        """
        while True:
            with self._lock:  # what is under way is seen at the very moment at which there was no room
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
        """Note what a reply was good for."""
        with self._lock:
            self.outcomes[outcome] += 1

    def failed(self, choice: ModelChoice, error: ProviderError) -> None:
        """Note a request without an answer, and tell of it."""
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
        """End what is under way: answers that come soon are kept, the rest counts as lost."""
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
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it
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
        batch = choice.provider == "batch"  # it has its file of requests: sending one again costs nothing
        if not batch:
            # Durable before anything is sent: killed after this line, the request counts as paid for.
            self.records.sending(request, choice.model, messages, reservation, prompts_sha256())
        key = f"{self._nonce}-{request.replace('/', '-')}"
        if (
            batch
        ):  # its answer may come after an upgrade that words the prompt otherwise; it is to this prompt alone
            key = f"{key}-{messages_sha256(messages)[:8]}"
        try:
            reply = self._provider(model).complete(messages, max_tokens=reservation.max_tokens, key=key)
        except ProviderError as error:
            cost = Cost() if error.kind in _COST_NOTHING else reservation.cost
            if batch and cost.tokens:  # it was answered, so it has been paid for
                self.records.sending(request, choice.model, messages, reservation, prompts_sha256())
            self._end(request, choice, error, reservation, cost)
            raise
        except Exception as fault:  # noqa: BLE001 - a provider's fault must end its request, not the job
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
            return  # no ending, and its reservation stays: it will cost as much when the answers come
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
            "text": f"{model}: {cost.tokens} tokens, {cost.usd:.4f} USD",
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
        """Bill what an earlier attempt was killed before billing; what is billed already changes nothing."""
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
        """The budget has no room for another request: tell of it once."""
        with self._lock:
            first, self.exhausted = not self.exhausted, True
        if first:
            reason = self._ledger.exhausted() or f"no room for another request under {self._ledger.cap()}"
            text = f"the budget for models is spent: {reason}"
            self.store.event("budget.spent", {"reason": reason, "text": text})
