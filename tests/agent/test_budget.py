"""Caps: what is admitted, what is settled, and 16 jobs with 8 proposals in flight each that never exceed theirs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.budget import (
    LEAST_COMPLETION_TOKENS,
    Cost,
    Ledger,
    Price,
    price_of,
    price_snapshot,
    prompt_tokens_at_most,
    reason_to_stop,
)
from agent.messages import Message
from agent.proposers.llm import LLMProposer
from agent.providers.client import ModelClient
from agent.records import Records
from agent.spec import Budget, ModelChoice
from agent.stores.folder import FolderStore
from tests.agent.chat_server import Answer, chat_server
from tests.agent.test_llm_proposer import context, judged, reply

PRICE = Price(1.0, 10.0)
IN_FLIGHT = 8
MAX_TOKENS = 1000
DOLLARS = ModelChoice(
    "m",
    samples=40,
    max_tokens=MAX_TOKENS,
    usd_per_million_input_tokens=10.0,
    usd_per_million_output_tokens=10.0,
)


def test_what_is_reserved_cannot_be_reserved_again_until_it_is_settled() -> None:
    ledger = Ledger(Budget(tokens=2500))
    first, second = ledger.reserve(PRICE, 200, 1000), ledger.reserve(PRICE, 200, 1000)
    assert first is not None
    assert second is not None
    assert ledger.reserve(PRICE, 200, 1000) is None
    ledger.settle(first, Cost(0.0, 300))
    assert ledger.reserve(PRICE, 200, 1000) is not None
    assert ledger.spent == Cost(0.0, 300)


def test_an_answer_gets_the_room_that_is_left_down_to_what_is_worth_asking_for() -> None:
    left = Ledger(Budget(usd=0.005)).reserve(PRICE, 1000, 8192)
    assert left is not None
    assert left.max_tokens == 400
    assert left.cost.usd <= 0.005
    least = LEAST_COMPLETION_TOKENS
    assert Ledger(Budget(tokens=100 + least)).reserve(PRICE, 100, 8192) is not None
    assert Ledger(Budget(tokens=99 + least)).reserve(PRICE, 100, 8192) is None
    assert Ledger(Budget(usd=0.0)).reserve(Price(), 1, 1) is None


def test_earlier_spending_counts() -> None:
    assert Ledger(Budget(usd=1.0), Cost(1.0, 0)).reserve(PRICE, 1, 300) is None
    assert Ledger(Budget(usd=1.0), Cost(1.0, 0)).exhausted() == "1 USD"


def test_many_threads_never_reserve_more_than_the_cap() -> None:
    ledger = Ledger(Budget(usd=1.0))
    taken: list[float] = []
    gate = threading.Barrier(32)

    def take(_: int) -> None:
        gate.wait()
        while (found := ledger.reserve(PRICE, 1000, 1000)) is not None:
            taken.append(found.cost.usd)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(take, range(32)))
    assert 0.98 < sum(taken) <= 1.0 + 1e-9


def test_the_prompt_is_counted_generously() -> None:
    assert prompt_tokens_at_most(["x" * 300]) >= 100
    assert prompt_tokens_at_most(["\N{GREEK SMALL LETTER ALPHA}" * 300]) >= 200


def test_the_price_snapshot_outlives_a_change_of_price(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    records = Records(store)
    records.recall("prices", lambda: price_snapshot([DOLLARS]))
    later = records.recall("prices", lambda: price_snapshot([ModelChoice("m")]))
    assert price_of(later, "m") == Price(10.0, 10.0)


def run_job(folder: Path, base_url: str, budget: Budget) -> FolderStore:
    """One job's proposals, each candidate judged by nobody."""
    store = FolderStore(folder)
    model = ModelChoice(**{**vars(DOLLARS), "base_url": base_url})
    proposer = LLMProposer([model], budget, in_flight=IN_FLIGHT)
    judged(proposer.propose(context(store)), store)
    return store


def run_jobs(tmp_path: Path, server: Any, budget: Budget, jobs: int) -> list[FolderStore]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda job: run_job(tmp_path / str(job), server.base_url, budget), range(jobs)))


class Scripted:
    """Answers from an endpoint that keeps count of how many requests it has at once."""

    def __init__(self, usage: Any) -> None:
        self._usage = usage
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            self.count += 1
            number = self.count
        return reply(f"x * {number}", usage=self._usage(body), delay_s=0.05)


def test_sixteen_jobs_with_eight_proposals_in_flight_never_exceed_their_caps(tmp_path: Path) -> None:
    cap = Budget(usd=0.1)  # four or five calls of about 2200 tokens

    def honest(body: dict[str, Any]) -> tuple[int, int]:
        return 1000, int(body["max_completion_tokens"])  # to the last token that was allowed

    with chat_server(chosen=Scripted(honest)) as server:
        stores = run_jobs(tmp_path, server, cap, 16)
    spent = [Records(store).spent().usd for store in stores]
    assert max(spent) <= 0.1
    assert min(spent) > 0.07, "a cap is there to be used"


def test_a_server_that_bills_more_than_was_allowed_exceeds_the_cap_by_the_calls_in_flight_only(
    tmp_path: Path,
) -> None:
    cap, each = Budget(usd=0.5), 0.2  # reserved are about 0.022 USD a call, so all eight are sent at first

    with chat_server(chosen=Scripted(lambda _: (10_000, 10_000))) as server:
        stores = run_jobs(tmp_path, server, cap, 4)
        asked = len(server.requests)
    for store in stores:
        spent = Records(store).spent().usd
        assert 0.5 < spent <= 0.5 + IN_FLIGHT * each
    assert asked <= 4 * (3 + IN_FLIGHT)
    told = [event["data"]["usd"] for event in stores[0].events() if event["data"].get("usd")]
    assert sum(told) == pytest.approx(Records(stores[0]).spent().usd)


def test_who_waits_for_room_gets_it_when_others_settle_and_hears_when_there_is_none(tmp_path: Path) -> None:
    """Room for one request of 1000 tokens at a time: answers of 150 make room for the next, until there is none."""
    store = FolderStore(tmp_path)
    with chat_server(chosen=lambda _: reply("x", delay_s=0.02)) as server:
        model = ModelChoice("m", base_url=server.base_url, max_tokens=1000)
        client = ModelClient(store, [model], Budget(tokens=1500))
        ask = [Message("user", "x" * 30)]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            replies = list(pool.map(lambda n: client.answer(f"llm/{n}", 0, ask), range(40)))
        served = sum(one is not None for one in replies)
        assert len(server.requests) == served == 9, "while 256 tokens are left for an answer"
        assert client.exhausted
        client.close()
        assert client.answer("llm/late", 0, ask) is None
        assert client.answer("llm/0", 0, ask) == replies[0], "the record answers always"
    told = [
        event for event in store.events() if "budget for models is spent" in event["data"].get("text", "")
    ]
    assert len(told) == 1
    assert Records(store).spent().tokens <= 1500


def test_a_job_stops_where_nothing_improves_or_the_roofline_is_near() -> None:
    plateau = Budget(plateau=3)
    assert reason_to_stop([1.5, None, 1.505], None, plateau) == ""
    assert reason_to_stop([1.5, None, 1.505, 1.2], None, plateau)
    assert reason_to_stop([1.5, None, 1.505, 1.6], None, plateau) == ""
    assert reason_to_stop([None] * 50, None, Budget()) == ""
    assert reason_to_stop([], 0.96, Budget())
    assert reason_to_stop([], 0.9, Budget()) == ""
    assert reason_to_stop([], 1.5, Budget()) == "", "no roofline of this module"
