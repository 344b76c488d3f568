"""Money and token budget of one job: reserve before a call and settle after it, to enforce caps under concurrency.

A call is admitted only if the total spent, the reservations of calls in flight and its own reservation fit under the cap
together. A reservation covers the prompt (overestimated) and every completion token that the request allows, so a server
that respects its limit can never push the job over its cap. A server that reports more tokens than were reserved exceeds
the cap by that excess, but only for calls already in flight; later calls are not admitted.

The job's records supply the totals: answered requests count at their settled price. Requests that were sent but not
answered (because the process was killed) count in full, since the provider may have billed them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from agent.spec import Budget, ModelChoice
from evaluator.counting import counted

_BYTES_PER_TOKEN = 3  # overestimates tokens: for program text, tokenizers average 3.3 to 4.5 bytes per token
_TOKENS_PER_MESSAGE = 8  # roles and separators
LEAST_COMPLETION_TOKENS = 256
"""Smallest completion limit at which a request is worth sending."""

PLATEAU_GAIN = 1.01
"""A candidate must beat the best speedup by this factor to count as progress."""

ROOFLINE_SHARE = 0.95
"""A job stops at this share of the measured roofline: the remaining gain does not justify the cost."""

ROOFLINE_BELIEVED = 1.25
"""Above this ratio the roofline estimate is unreliable; ignore it."""


@dataclass(frozen=True)
class Cost:
    """Cost of a call: US dollars, and prompt plus completion tokens."""

    usd: float = 0.0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.usd + other.usd, self.tokens + other.tokens)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.usd - other.usd, self.tokens - other.tokens)


@dataclass(frozen=True)
class Reservation:
    """Budget reserved for one call.

    Attributes:
        cost: upper bound on the cost.
        max_tokens: completion limit for the request; near the cap, lower than the model's own limit.
    """

    cost: Cost
    max_tokens: int


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens, fixed when the job began."""

    usd_per_million_input_tokens: float = 0.0
    usd_per_million_output_tokens: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Cost of a call in US dollars."""
        return (
            prompt_tokens * self.usd_per_million_input_tokens
            + completion_tokens * self.usd_per_million_output_tokens
        ) / 1e6


class Ledger:
    """Tracks what one job spends on model calls; thread-safe.

    Args:
        budget: its `usd` and `tokens` are the caps.
        spent: total of earlier attempts at the job, see `agent.records.Records.spent`.
    """

    def __init__(self, budget: Budget, spent: Cost | None = None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._spent = spent or Cost()
        self._reserved = Cost()

    @property
    def spent(self) -> Cost:
        """Total cost of settled calls."""
        with self._lock:
            return self._spent

    def reserve(self, price: Price, prompt_tokens: int, max_tokens: int) -> Reservation | None:
        """Reserve budget for a call; None if it does not fit under the caps.

        If `max_tokens` does not fit, the completion limit is lowered, down to `LEAST_COMPLETION_TOKENS`.
        """
        with self._lock:
            room = min(max_tokens, self._room_for_answer(price, prompt_tokens))
            if room < min(max_tokens, LEAST_COMPLETION_TOKENS):
                return None
            cost = Cost(price.of(prompt_tokens, room), prompt_tokens + room)
            self._reserved += cost
            return Reservation(cost, room)

    def settle(self, reservation: Reservation, cost: Cost) -> None:
        """Release the reservation of a finished call and add its cost."""
        with self._lock:
            self._reserved -= reservation.cost
            self._spent += cost

    def exhausted(self) -> str:
        """The cap that spending has reached, in words; empty if none. Ignores reservations."""
        with self._lock:
            if self._budget.usd is not None and self._spent.usd >= self._budget.usd:
                return f"{self._budget.usd:g} USD"
            if self._budget.tokens is not None and self._spent.tokens >= self._budget.tokens:
                return counted(self._budget.tokens, "token")
            return ""

    def cap(self) -> str:
        """All caps in words, to explain why a call did not fit."""
        caps = []
        if self._budget.usd is not None:
            caps.append(f"{self._budget.usd:g} USD")
        if self._budget.tokens is not None:
            caps.append(counted(self._budget.tokens, "token"))
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
    """Overestimate a conversation's tokens from the bytes of its messages."""
    return sum(len(text.encode()) // _BYTES_PER_TOKEN + _TOKENS_PER_MESSAGE for text in contents)


def price_snapshot(models: Sequence[ModelChoice]) -> dict[str, dict[str, float]]:
    """The models' prices as a JSON value, stored when a job begins."""
    return {
        choice.model: asdict(Price(choice.usd_per_million_input_tokens, choice.usd_per_million_output_tokens))
        for choice in models
    }


def price_of(snapshot: Mapping[str, Mapping[str, float]], model: str) -> Price:
    """The price of a model in a snapshot; zero if the snapshot lacks the model."""
    return Price(**snapshot.get(model, {}))


def reason_to_stop(speedups: Sequence[float | None], roofline_share: float | None, budget: Budget) -> str:
    """The reason to stop proposing candidates; empty if the job should continue.

    Args:
        speedups: geometric mean speedup of each judged candidate in order, None for rejected ones.
        roofline_share: of the best candidate, see `agent.diagnosing.roofline_share`; None if unknown.
        budget: its `plateau` limits how many consecutive candidates may bring no progress.
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
    return f"{counted(idle, 'candidate')} in a row brought no progress" if idle >= budget.plateau else ""
