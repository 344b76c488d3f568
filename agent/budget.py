"""Money and tokens of one job: reserved before a call, settled after it, so that a cap holds under concurrency.

A call is admitted only if what has been spent, what the calls in flight have reserved and its own reservation fit under
the cap together. A reservation covers the prompt (counted generously) and every completion token that the request allows,
so a server that keeps to the limit it was given can never make the job exceed its cap. One that reports more than was
reserved exceeds it by that excess, of the calls that were in flight at that moment and of no later one.

The numbers come from the job's records: what was answered at its settled price, and what was sent but never answered (the
process was killed meanwhile) in full, since it may have been billed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from agent.spec import Budget, ModelChoice

_BYTES_PER_TOKEN = 3  # of program text: counted generously, tokenizers make 3.3 to 4.5 bytes of it
_TOKENS_PER_MESSAGE = 8  # roles and separators
LEAST_COMPLETION_TOKENS = 256
"""A request with less room than this for its answer is not worth sending."""

PLATEAU_GAIN = 1.01
"""A candidate that is not faster than the best by this factor counts as no progress."""

ROOFLINE_SHARE = 0.95
"""At this share of the measured roofline a job stops: what is left is not worth its price."""

ROOFLINE_BELIEVED = 1.25
"""Who is this much faster than the roofline shows that it says nothing about the module."""


@dataclass(frozen=True)
class Cost:
    """What a call costs: US dollars, and prompt plus completion tokens."""

    usd: float = 0.0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.usd + other.usd, self.tokens + other.tokens)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.usd - other.usd, self.tokens - other.tokens)


@dataclass(frozen=True)
class Reservation:
    """Room that was set aside for one call.

    Attributes:
        cost: the most that it should cost.
        max_tokens: completion tokens the request may allow; fewer than the model's own limit near the cap.
    """

    cost: Cost
    max_tokens: int


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens, as they were when the job began."""

    usd_per_million_input_tokens: float = 0.0
    usd_per_million_output_tokens: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars of a call."""
        return (
            prompt_tokens * self.usd_per_million_input_tokens
            + completion_tokens * self.usd_per_million_output_tokens
        ) / 1e6


class Ledger:
    """Spending of one job's model calls; safe to use from several threads.

    Args:
        budget: its `usd` and `tokens` are the caps.
        spent: what earlier attempts at the job have spent, see `agent.records.Records.spent`.
    """

    def __init__(self, budget: Budget, spent: Cost | None = None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._spent = spent or Cost()
        self._reserved = Cost()

    @property
    def spent(self) -> Cost:
        """What settled calls have cost so far."""
        with self._lock:
            return self._spent

    def reserve(self, price: Price, prompt_tokens: int, max_tokens: int) -> Reservation | None:
        """Set room aside for a call, or None when the caps do not allow it.

        The answer is given less room than `max_tokens` where only that fits, down to `LEAST_COMPLETION_TOKENS`.
        """
        with self._lock:
            room = min(max_tokens, self._room_for_answer(price, prompt_tokens))
            if room < min(max_tokens, LEAST_COMPLETION_TOKENS):
                return None
            cost = Cost(price.of(prompt_tokens, room), prompt_tokens + room)
            self._reserved += cost
            return Reservation(cost, room)

    def settle(self, reservation: Reservation, cost: Cost) -> None:
        """A call is over: its reservation goes, its cost stays."""
        with self._lock:
            self._reserved -= reservation.cost
            self._spent += cost

    def exhausted(self) -> str:
        """Which cap leaves no room now that nothing is in flight, in words; empty when none does."""
        with self._lock:
            if self._budget.usd is not None and self._spent.usd >= self._budget.usd:
                return f"{self._budget.usd:g} USD"
            if self._budget.tokens is not None and self._spent.tokens >= self._budget.tokens:
                return f"{self._budget.tokens} tokens"
            return ""

    def cap(self) -> str:
        """The caps in words, for a call that did not fit."""
        caps = []
        if self._budget.usd is not None:
            caps.append(f"{self._budget.usd:g} USD")
        if self._budget.tokens is not None:
            caps.append(f"{self._budget.tokens} tokens")
        return " and ".join(caps)

    def _room_for_answer(self, price: Price, prompt_tokens: int) -> int:
        taken = self._spent + self._reserved
        room = 2**53
        if self._budget.tokens is not None:
            room = min(room, self._budget.tokens - taken.tokens - prompt_tokens)
        if self._budget.usd is not None:
            left_usd = self._budget.usd - taken.usd - price.of(prompt_tokens, 0)
            if left_usd < 0 or self._budget.usd <= taken.usd:
                return -1
            if price.usd_per_million_output_tokens > 0:
                room = min(room, int(left_usd * 1e6 / price.usd_per_million_output_tokens))
        return room


def prompt_tokens_at_most(contents: Sequence[str]) -> int:
    """A generous count of a conversation's tokens, from the bytes of its messages."""
    return sum(len(text.encode()) // _BYTES_PER_TOKEN + _TOKENS_PER_MESSAGE for text in contents)


def price_snapshot(models: Sequence[ModelChoice]) -> dict[str, dict[str, float]]:
    """The prices of the models as a JSON value, to be stored when a job begins."""
    return {
        choice.model: asdict(Price(choice.usd_per_million_input_tokens, choice.usd_per_million_output_tokens))
        for choice in models
    }


def price_of(snapshot: Mapping[str, Mapping[str, float]], model: str) -> Price:
    """The price of a model in a snapshot; free when the snapshot does not name it."""
    return Price(**snapshot.get(model, {}))


def reason_to_stop(speedups: Sequence[float | None], roofline_share: float | None, budget: Budget) -> str:
    """Why more candidates are not worth their price; empty when they are.

    Args:
        speedups: geometric mean speedup of each judged candidate in order, None for those that were rejected.
        roofline_share: of the best one, see `agent.diagnosing.roofline_share`; None where it is not known.
        budget: its `plateau` is how many candidates in a row may bring no progress.
    """
    if roofline_share is not None and ROOFLINE_SHARE <= roofline_share <= ROOFLINE_BELIEVED:
        return f"the best candidate reaches {roofline_share:.0%} of the measured roofline"
    if budget.plateau is None:
        return ""
    leader, idle = 1.0, 0
    for speedup in speedups:
        if speedup is not None and speedup >= leader * PLATEAU_GAIN:
            leader, idle = speedup, 0
        else:
            idle += 1
    return f"{idle} candidates in a row brought no progress" if idle >= budget.plateau else ""
