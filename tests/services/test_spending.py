"""Spending in the database: billed once, within what was asked for, and a replay that reads the same record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from agent.proposers.llm import LLMProposer
from agent.providers.list_prices import list_price
from services.cli import app
from services.db.models import Job
from services.db.session import Database
from services.errors import Refused
from services.jobs import lease, read, submit
from services.jobs.lease import Lease
from services.jobs.requests import OptimizeRequest
from services.jobs.rows import job_spec
from services.jobs.store import SqlJobStore
from services.settings import Settings, get_settings
from tests.agent.chat_server import chat_server
from tests.agent.test_llm_proposer import DESCRIPTION, context, judged, reply, verdict
from tests.services.databases import new_sqlite
from tests.services.service import TINY_TASK

PRICES = {"m": (2.0, 10.0)}


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    found = new_sqlite(tmp_path)
    yield found
    found.close()


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings(data_dir=tmp_path, llm_base_url="http://127.0.0.1:1/v1", **more)  # type: ignore[arg-type]


def request(**more: object) -> OptimizeRequest:
    return OptimizeRequest.model_validate({"source": TINY_TASK, "device": "cpu", **more})


def new_job(base: Database, chosen: Settings, **more: object) -> str:
    with base.uncommitted() as session:
        return submit.make_job(session, request(**more), chosen).id


def work(base: Database, job_id: str, base_url: str) -> None:
    """What a worker does with models, each candidate judged at once."""
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
        row = session.get(Job, job_id)
        assert row is not None
        spec = job_spec(row)
    store = SqlJobStore(base, job_id, held or Lease(Job, job_id, "one", 1), lambda: False)
    store.finish_step("describe", DESCRIPTION.as_json())
    models = [type(choice)(**{**vars(choice), "base_url": base_url}) for choice in spec.models]
    where = context(store)  # type: ignore[arg-type]
    judged(LLMProposer(models, spec.budget).propose(where), store, verdict("incorrect"))  # type: ignore[arg-type]


def test_a_bill_is_paid_once_and_shown_with_its_cap(base: Database, tmp_path: Path) -> None:
    chosen = settings(tmp_path, llm_prices=PRICES)
    job_id = new_job(
        base,
        chosen,
        models=[{"model": "m", "samples": 1}],
        origins=["llm"],
        budget={"usd": 0.5, "tokens": 100_000},
    )
    with chat_server(reply("x"), reply("x + x")) as server:
        for _ in range(2):
            work(base, job_id, server.base_url)
        assert len(server.requests) == 2
    with base.read() as session:
        spend = read.get_job(session, job_id).spend
    assert spend.tokens == 300
    assert spend.usd == pytest.approx(2 * (100 * 2 + 50 * 10) / 1e6)
    assert (spend.usd_cap, spend.tokens_cap) == (0.5, 100_000)


def test_a_job_replays_from_the_database(
    base: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new_job(base, settings(tmp_path), models=[{"model": "m", "samples": 1}], origins=["llm"])
    with chat_server(reply("x"), reply("x + x")) as server:
        work(base, job_id, server.base_url)
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", str(base.engine.url))
    get_settings.cache_clear()
    try:
        told = CliRunner().invoke(app, ["replay", job_id, "--json", "--out", str(tmp_path / "record.jsonl")])
        unknown = CliRunner().invoke(app, ["replay", "nobody"])
    finally:
        get_settings.cache_clear()
    assert unknown.exit_code == 2
    shown = json.loads(told.stdout)
    # The proposer above was given another task than the job's, and a replay that takes the job's own must see that.
    assert told.exit_code == 1
    assert len(shown["prompts"]) == 2
    assert all(prompt["reached"] for prompt in shown["prompts"])
    assert shown["candidates"] == shown["recorded_candidates"] == 2
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 2


def test_a_list_price_stands_where_the_operator_names_none(base: Database, tmp_path: Path) -> None:
    def prices(**more: object) -> tuple[float, float]:
        job_id = new_job(
            base,
            settings(tmp_path, **more),
            models=[{"model": "gpt-5.5"}],
            origins=["llm"],
            budget={"usd": 0.5},
        )
        with base.read() as session:
            row = session.get(Job, job_id)
            assert row is not None
            [choice] = job_spec(row).models
        return choice.usd_per_million_input_tokens, choice.usd_per_million_output_tokens

    listed = list_price("gpt-5.5")
    assert listed is not None and prices() == listed.usd_per_million_tokens
    assert prices(llm_prices={"gpt-5.5": (0.0, 0.0)}) == (0.0, 0.0)


def test_a_cap_in_dollars_needs_a_price(base: Database, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no price is known of m"):
        new_job(base, settings(tmp_path), models=["m"], budget={"usd": 1.0})


def test_our_own_model_is_asked_where_it_is_configured(base: Database, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="KERNELWRIGHT_POLICY"):
        new_job(base, settings(tmp_path), origins=["policy"])
    job_id = new_job(base, settings(tmp_path, policy="/checkpoints/one"), origins=["policy"])
    with base.read() as session:
        row = session.get(Job, job_id)
        assert row is not None
        (choice,) = job_spec(row).models
    assert (choice.model, choice.provider, choice.origin) == ("/checkpoints/one", "policy", "policy")


def test_an_address_with_a_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="holds a user"):
        Settings(data_dir=tmp_path, llm_base_url="https://me:pass@host/v1")


def test_names_of_steps_are_found_by_their_beginning(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, settings(tmp_path))
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    store = SqlJobStore(base, job_id, held, lambda: False)
    for name in ("llm/1/1/1", "llm/1/1/1/sent/1", "llmx", "l_m/1"):
        store.finish_step(name, {"name": name})
    assert set(store.steps("llm/")) == {"llm/1/1/1", "llm/1/1/1/sent/1"}
    assert set(store.steps("l_m/")) == {"l_m/1"}
