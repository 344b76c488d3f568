"""Rate limits: per key, per address without one, in memory and in Redis, and what a flood is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits import parse_many
from pydantic import ValidationError

from services.settings import Settings
from services.users.rates import Rates
from tests import servers
from tests.services.keyed import Keyed
from tests.services.test_keys import log

FIVE = parse_many("5/day")


def test_a_flood_of_one_key_is_told_when_to_come_again_and_holds_nobody_else_up(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rate_limit="10/day")
    ada, bob = keyed.client(keyed.key("ada")), keyed.client(keyed.key("bob"))
    answers = [ada.get("/jobs") for _ in range(12)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 2
    refused = answers[-1]
    assert 0 < int(refused.headers["Retry-After"]) <= 86_400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "/problems/too-many"
    assert bob.get("/jobs").status_code == 200
    assert keyed.client(keyed.key("ada")).get("/jobs").status_code == 200, "another key"
    assert keyed.client().get("/healthz").status_code == 200, "never counted"
    assert ("ada", "refused: GET at the gate", None, 429) in log(keyed)
    keyed.close()


def test_who_has_no_key_is_counted_by_address(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rate_limit_without_key="6/day")
    key = keyed.key("ada")
    guesser = keyed.client("kw_aaaaaaaa_" + "A" * 43)
    assert [guesser.get("/jobs").status_code for _ in range(8)] == [401] * 6 + [429] * 2
    assert keyed.client().get("/login").status_code == 429, "same address, also without any key"
    assert keyed.client(key).get("/jobs").status_code == 200, "same address, with one"
    elsewhere = keyed.client("kw_aaaaaaaa_" + "A" * 43, address="10.0.0.7")
    assert elsewhere.get("/jobs").status_code == 401
    many = [keyed.client(address=f"2001:db8::{number:x}") for number in range(8)]
    assert [one.get("/jobs").status_code for one in many] == [401] * 6 + [429] * 2, "one household has 2**64"
    keyed.close()


def test_without_any_key_an_address_has_what_a_key_has(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rate_limit="5/day;1000/month", rate_limit_without_key="1/minute")
    assert [keyed.client().get("/jobs").status_code for _ in range(6)] == [200] * 5 + [429]
    keyed.close()


@pytest.mark.parametrize("text", ["", "many", "5", "5/fortnight"])
def test_a_rate_that_is_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValidationError):
        Settings(rate_limit=text)


@pytest.mark.services("redis")
def test_processes_that_share_a_redis_count_together(redis_url: str) -> None:
    one, two = Rates(redis_url), Rates(redis_url)
    assert [one.take(FIVE, "ada") for _ in range(3)] + [two.take(FIVE, "ada") for _ in range(2)] == [0.0] * 5
    assert one.take(FIVE, "ada") > 0
    assert two.take(FIVE, "ada") > 0
    assert two.take(FIVE, "bob") == 0


@pytest.mark.services("redis")
def test_a_redis_that_is_gone_costs_the_common_count_and_not_the_service(tmp_path: Path) -> None:
    with servers.running_redis(tmp_path) as url:
        rates = Rates(url)
        assert rates.take(FIVE, "ada") == 0
    assert [rates.take(FIVE, "ada") > 0 for _ in range(6)] == [False] * 5 + [True], "counts by itself"


def test_a_redis_that_was_never_there_does_neither(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rate_limit="5/day", broker_url=f"redis://127.0.0.1:{servers.free_port()}/0")
    assert [keyed.client().get("/jobs").status_code for _ in range(6)] == [200] * 5 + [429]
    keyed.close()
