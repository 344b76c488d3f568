"""What a job has asked, been answered and drawn: enough to go on after a kill, and to replay it without any model.

    <request>/sent/1, /sent/2 ...   written before a request is sent: the prompt, the model, what was reserved
    <request>                       written when it was answered, or failed for good
    drawn/llm/<name>                a random draw, or an observation of the changing world that a prompt was made from

A request that was sent and has no answer was in flight when the process was killed. It is asked again and counted in full,
because it may have been billed; the same `Idempotency-Key` goes with it for servers that heed one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from agent.budget import Cost, Reservation
from agent.errors import ProviderError, StoreCorrupt
from agent.messages import Message, Reply
from agent.redaction import known_secrets, redact_json
from agent.store import JobStore

ASKED_STEPS = "asked/"
"""Steps that say, by origin, that a model was asked at all."""
_SENT = re.compile(r"(?P<request>.+)/sent/(?P<number>\d+)")


class Records:
    """The record of one job's requests and draws, kept as steps of its store.

    Args:
        store: the job's memory.
        prefix: names of requests begin with it, so that they are found again ("llm/").
    """

    def __init__(self, store: JobStore, prefix: str = "llm/") -> None:
        self._store = store
        self.prefix = prefix

    def recall(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returned the first time that this name was asked for; a JSON value that is not None.

        Every random draw goes through here, and everything that a prompt takes from what may have changed by the
        time of a replay (which candidates were known, which was the best).
        """
        step = f"drawn/{self.prefix}{name}"
        known = self._store.step(step)
        if known is None:
            self._store.finish_step(step, make())
            known = self._store.step(step)  # the first value of a name wins, also over what was just made
        return known

    def sending(
        self,
        request: str,
        model: str,
        messages: Sequence[Message],
        reservation: Reservation,
        prompts_sha256: str,
    ) -> None:
        """Note that a request is about to be sent, before it is.

        Secrets of this process are masked once more in whatever is stored here.
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
        """Note how a request ended."""
        if isinstance(outcome, Reply):
            ended: dict[str, Any] = {"reply": asdict(outcome)}
        else:
            ended = {"error": {"message": str(outcome), "kind": outcome.kind}}
        value = redact_json({"model": model, "cost": asdict(cost), **ended}, known_secrets())
        self._store.finish_step(request, value)

    def outcome(self, request: str) -> Reply | ProviderError | None:
        """How a request ended, or None when it has not been answered."""
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
        """What an answered request cost; nothing when there is no answer."""
        value = self._store.step(request)
        return Cost(**value["cost"]) if isinstance(value, dict) and "cost" in value else Cost()

    def prompt(self, request: str) -> dict[str, Any] | None:
        """What was sent first for a request: "model", "messages", "messages_sha256", "prompts_sha256"."""
        value = self._store.step(f"{request}/sent/1")
        return value if isinstance(value, dict) else None

    def requests(self) -> list[str]:
        """Names of all requests that were sent, answered or not."""
        found = (_SENT.fullmatch(name) for name in self._store.steps(self.prefix))
        return sorted({match["request"] for match in found if match})

    def spent(self) -> Cost:
        """What the requests with this prefix have cost: answered ones as settled, unanswered ones as reserved."""
        costs = [cost for request in self.requests() for cost in self.lost(request).values()]
        answered = (self.cost(request) for request in self.requests())
        return sum(answered, sum(costs, Cost()))

    def lost(self, request: str) -> dict[int, Cost]:
        """Tries at a request that were in flight at a kill, by number, with what they had reserved."""
        tries = (
            (int(match["number"]), value["reserved"])
            for name, value in self._store.steps(f"{request}/sent/").items()
            if (match := _SENT.fullmatch(name)) and isinstance(value, dict)
        )
        found = dict(sorted(tries, key=lambda one: one[0]))
        if found and self._store.step(request) is not None:
            found.popitem()  # the last try is the one that was answered
        return {number: Cost(**reserved) for number, reserved in found.items()}


def messages_sha256(messages: Sequence[Message]) -> str:
    """Hex digest of a conversation: two prompts are the same byte for byte when it is."""
    text = json.dumps([[message.role, message.content] for message in messages], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
