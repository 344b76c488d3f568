"""Records a job's requests, answers and draws, to resume it after a kill or replay it without a model.

    <request>/sent/1, /sent/2 ...   written before a request is sent: the prompt, the model, the reservation
    <request>                       written when the request is answered or fails permanently
    drawn/llm/<name>                a random draw, or mutable state that a prompt was built from

A request that was sent but has no answer was in flight when the process was killed. It is resent, and the lost try counts
in full because it may have been billed. Both carry the same `Idempotency-Key`, for servers that support it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from agent.budget import Cost, Reservation
from agent.errors import ProviderError, StoreCorrupt
from agent.messages import Message, Reply
from agent.redaction import known_secrets, redact_json
from agent.store import JobStore

PREFIXES = ("llm/", "policy/")
"""Prefixes of the requests of all clients of a job, which share its caps."""
ASKED_STEPS = "asked/"
"""Prefix of the steps that record, by origin, that a model was asked."""
_SENT = re.compile(r"(?P<request>.+)/sent/(?P<number>\d+)")


class Records:
    """The record of one job's requests and draws, kept as steps of its store.

    Args:
        store: the job's memory.
        prefix: common prefix of the request names, used to find them again ("llm/").
    """

    def __init__(self, store: JobStore, prefix: str = "llm/") -> None:
        self._store = store
        self.prefix = prefix

    def recall(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value that `make` returned on the first call with this name; a JSON value other than None.

        Every random draw goes through here, and so does every prompt input that may have changed by the time of a
        replay (the known candidates, the best one).
        """
        step = f"drawn/{self.prefix}{name}"
        known = self._store.step(step)
        if known is None:
            self._store.finish_step(step, make())
            known = self._store.step(step)  # the first stored value wins, even over the one just made
        return known

    def sending(
        self,
        request: str,
        model: str,
        messages: Sequence[Message],
        reservation: Reservation,
        prompts_sha256: str,
    ) -> None:
        """Record a request before it is sent.

        Masks this process's secrets in the record again.
        """
        tries = 0
        while self._store.step(f"{request}/sent/{tries + 1}") is not None:
            tries += 1
        value = {
            "model": model,
            "messages": [asdict(message) for message in messages],
            "messages_sha256": messages_sha256(messages),
            "prompts_sha256": prompts_sha256,
            "max_tokens": reservation.max_tokens,
            "reserved": asdict(reservation.cost),
        }
        self._store.finish_step(f"{request}/sent/{tries + 1}", redact_json(value, known_secrets()))

    def answered(self, request: str, model: str, outcome: Reply | ProviderError, cost: Cost) -> None:
        """Record the outcome of a request."""
        if isinstance(outcome, Reply):
            ended: dict[str, Any] = {"reply": asdict(outcome)}
        else:
            ended = {"error": {"message": str(outcome), "kind": outcome.kind}}
        value = redact_json({"model": model, "cost": asdict(cost), **ended}, known_secrets())
        self._store.finish_step(request, value)

    def outcome(self, request: str) -> Reply | ProviderError | None:
        """The outcome of a request, or None if it has no answer yet."""
        value = self._store.step(request)
        if value is None:
            return None
        try:
            assert isinstance(value, dict)
            if "error" in value:
                return ProviderError(value["error"]["message"], value["error"]["kind"])
            return Reply(**value["reply"])
        except (AssertionError, KeyError, TypeError) as error:
            raise StoreCorrupt(f"the record of {request} is not one of a request: {error}") from error

    def cost(self, request: str) -> Cost:
        """The cost of an answered request; zero if it has no answer."""
        value = self._store.step(request)
        return Cost(**value["cost"]) if isinstance(value, dict) and "cost" in value else Cost()

    def cost_below(self, prefix: str) -> Cost:
        """The cost of all answered requests whose names begin with `prefix`."""
        return sum((self.cost(name) for name in self._store.steps(prefix)), Cost())

    def prompt(self, request: str) -> dict[str, Any] | None:
        """The record of a request's first try: "model", "messages", "messages_sha256", "prompts_sha256" and more."""
        value = self._store.step(f"{request}/sent/1")
        return value if isinstance(value, dict) else None

    def requests(self) -> list[str]:
        """Names of all requests that were sent, answered or not."""
        found = (_SENT.fullmatch(name) for name in self._store.steps(self.prefix))
        return sorted({match["request"] for match in found if match})

    def spent(self) -> Cost:
        """Total cost of the requests with this prefix: answered tries as settled, lost tries as reserved."""
        costs = [cost for request in self.requests() for cost in self.lost(request).values()]
        answered = (self.cost(request) for request in self.requests())
        return sum(answered, sum(costs, Cost()))

    def lost(self, request: str) -> dict[int, Cost]:
        """Reserved costs, by try number, of the tries that were in flight when the process was killed."""
        tries = (
            (int(match["number"]), value["reserved"])
            for name, value in self._store.steps(f"{request}/sent/").items()
            if (match := _SENT.fullmatch(name)) and isinstance(value, dict)
        )
        found = dict(sorted(tries, key=lambda one: one[0]))
        if found and self._store.step(request) is not None:
            found.popitem()  # the last try was answered
        return {number: Cost(**reserved) for number, reserved in found.items()}


def messages_sha256(messages: Sequence[Message]) -> str:
    """Hex digest of a conversation; equal digests mean byte-identical prompts."""
    text = json.dumps([[message.role, message.content] for message in messages], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def recorded(
    store: JobStore, step: str, known: Sequence[str], seed: int | None = None
) -> tuple[random.Random, list[str]]:
    """The generator of a step, and the candidates known when the step first ran.

    A resumed or replayed job finds more candidates in its store than it had at that moment; with the stored list and seed it
    repeats the same decisions and requests.

    Args:
        store: stores both under the name `step`.
        step: for example "search/3".
        known: sha256 of the candidates to decide among, in order of arrival.
        seed: makes draws repeatable across jobs (combined with the step's name); None takes a seed from the system.

    Returns:
        The generator, and the stored list.
    """
    stored = store.step(step)
    if not isinstance(stored, dict):
        # `random` hashes a string seed with SHA-512, so it gives the same sequence in every process.
        text = f"{seed}/{step}" if seed is not None else secrets.token_hex(16)
        store.finish_step(step, {"seed": text, "known": list(known)})
        stored = store.step(step)
    if not isinstance(stored, dict):
        raise TypeError(f"the store did not keep the step {step!r}")
    return random.Random(str(stored["seed"])), [str(one) for one in stored["known"]]  # noqa: S311


def account(store: JobStore) -> dict[str, Any]:
    """The account as a JSON value; empty if no model was asked.

    It contains digests instead of texts: prompts may quote parts of a private module that the bundle's recipient must not see.
    """
    prices: dict[str, Any] = {}
    requests: list[dict[str, Any]] = []
    templates: set[str] = set()
    spent = Cost()
    for prefix in PREFIXES:
        records = Records(store, prefix)
        found = store.step(f"drawn/{prefix}prices")
        prices |= found if isinstance(found, dict) else {}
        spent += records.spent()
        for request in records.requests():
            prompt = records.prompt(request) or {}
            templates.add(str(prompt.get("prompts_sha256")))
            requests.append(
                {
                    "request": request,
                    "model": prompt.get("model"),
                    "prompt_sha256": prompt.get("messages_sha256"),
                    **_ending(records, request),
                }
            )
    if not requests:
        return {}
    return {
        "prompts_sha256": sorted(templates),
        "prices_usd_per_million_tokens": prices,
        "spent": asdict(spent),
        "requests": requests,
    }


def _ending(records: Records, request: str) -> dict[str, Any]:
    outcome = records.outcome(request)
    cost = asdict(records.cost(request))
    if outcome is None:
        return {"ending": "no answer", **cost}
    if isinstance(outcome, ProviderError):
        return {"ending": outcome.kind, **cost}
    text = json.dumps(outcome.text, ensure_ascii=True)
    return {"ending": outcome.finish, "answer_sha256": hashlib.sha256(text.encode()).hexdigest(), **cost}
