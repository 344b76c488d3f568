"""A database that is away is waited for: nothing that was judged is lost, and what may have happened happens once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from agent.candidates import Candidate
from evaluator.verdict import from_json
from services.application import create_app
from services.db import outages
from services.db.models import Evaluation, Event, Job, Worker
from services.db.session import Database
from services.jobs import lease, read, turns
from services.jobs.store import SqlJobStore
from services.settings import Settings
from services.worker.dispatch import Dispatcher
from services.worker.referee_queue import RefereeQueue
from services.worker.runner import EvaluationOutcome, Runner
from tests.services.databases import new_job, new_postgres, new_sqlite
from tests.services.test_turns import queue

AWAY = OperationalError("SELECT 1", {}, Exception("the database system is starting up"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_FIRST_PAUSE_S", 0.001)


def test_what_never_passes_by_itself_is_no_outage() -> None:
    too_long = OperationalError(
        "INSERT", {}, psycopg.errors.ProgramLimitExceeded("index row size 9000 exceeds")
    )
    full = OperationalError("INSERT", {}, psycopg.errors.DiskFull("no space left on device"))
    assert outages.is_outage(AWAY) and outages.is_outage(full)
    assert not outages.is_outage(too_long)
    assert not outages.is_outage(IntegrityError("INSERT", {}, Exception("UNIQUE")))


class Outage:
    """Fails so many commits of a database, before or behind the commit itself."""

    def __init__(self, base: Database, times: int, *, behind: bool = False) -> None:
        self.left = times
        self._base, self._behind = base, behind
        event.listen(base.engine, "commit", self._on_commit)

    def _on_commit(self, connection: Any) -> None:
        if self.left > 0:
            self.left -= 1
            if self._behind:  # done, and the answer lost
                connection.connection.driver_connection.commit()
            raise AWAY


def started(base: Database, folder: Path) -> SqlJobStore:
    """The store of a job that a worker has taken."""
    job_id = new_job(base, folder)
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    return SqlJobStore(base, job_id, held, lambda: False)


@pytest.mark.parametrize("behind", [False, True])
def test_a_verdict_and_its_bill_are_stored_once_through_an_outage(tmp_path: Path, behind: bool) -> None:
    base = new_sqlite(tmp_path)
    store = started(base, tmp_path)
    candidate = Candidate("a = 1", "human", "a")
    outage = Outage(base, 0, behind=behind)
    writes: list[Callable[[], object]] = [
        lambda: store.add_candidate(candidate),
        lambda: store.add_verdict(candidate.sha256, "screen", from_json({"verdict": "incorrect"})),
        lambda: store.finish_step("describe", {"ok": True}),
        lambda: store.event("budget.spent", {"request": "llm/1", "usd": 0.5, "tokens": 7}),
    ]
    for write in writes:
        outage.left = 2
        write()
        assert outage.left == 0, "the outage was not met"
    with base.read() as session:
        told = [one.name for one in read.list_events(session, store._job_id)]
        job = session.get_one(Job, store._job_id)
        assert (job.tokens, job.usd) == (7, 0.5)
    assert told == ["job.queued", "candidate.proposed", "candidate.judged", "budget.spent"]
    assert store.verdict(candidate.sha256, "screen") == from_json({"verdict": "incorrect"})
    assert store.step("describe") == {"ok": True}
    base.close()


def test_a_fault_of_ours_is_not_repeated(tmp_path: Path) -> None:
    tries = []

    def wrong() -> None:
        tries.append(1)
        raise IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))

    with pytest.raises(IntegrityError):
        outages.through_outages(wrong)
    assert len(tries) == 1


def test_patience_ends_and_so_does_that_of_a_worker_that_stops() -> None:
    def away() -> None:
        raise AWAY

    with pytest.raises(OperationalError):
        outages.through_outages(away, patience_s=0.01)
    with pytest.raises(OperationalError):
        outages.through_outages(away, give_up=lambda: True)


def test_a_job_cut_off_by_an_outage_is_given_back_and_the_attempt_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )

    def cut_off(*_: object) -> None:
        raise AWAY

    monkeypatch.setattr("services.worker.runner.run_job", cut_off)
    monkeypatch.setattr(base, "answers", lambda: False)
    for attempt in range(1, 6):  # more often than faults may happen
        assert runner.work_on_next(Job)
        with base.read() as session:
            job = session.get_one(Job, job_id)
            assert (job.state, job.stalled_attempts, job.attempt) == ("queued", 0, attempt)
    base.close()


@pytest.mark.services("postgres")
def test_a_job_whose_every_attempt_the_database_cuts_off_while_it_answers_others_ends(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operational error that never passes: a statement that takes longer than the server allows."""
    with new_postgres(postgres_url) as base:
        job_id = new_job(base, tmp_path)
        settings = Settings(data_dir=tmp_path, max_lost_workers=4)
        runner = Runner(settings, base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None)

        def too_long(*_: object) -> None:
            with base.uncommitted() as session:
                session.execute(text("SET LOCAL statement_timeout = 20"))
                session.execute(text("SELECT pg_sleep(5)"))

        monkeypatch.setattr("services.worker.runner.run_job", too_long)
        for _ in range(4):
            assert runner.work_on_next(Job)
        assert not runner.work_on_next(Job)
        Dispatcher(base, lambda *_: None, 4)._end_abandoned(Job)
        with base.read() as session:
            job = session.get_one(Job, job_id)
            assert (job.state, job.attempt, job.faults) == ("failed", 4, 0)
            assert "the database failed (OperationalError)" in (job.reason or "")


def test_workers_that_died_use_up_no_attempt_of_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )

    def fault(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("services.worker.runner.run_job", fault)
    counted = []
    for dies in (True, True, True, False, True, False):
        if dies:
            assert turns.take(base, Job, "cpu", "dead", 60.0, 10) is not None
            with base.write() as session:
                lease.expire_leases_of(session, ["dead"])
        else:
            assert runner.work_on_next(Job)
        with base.read() as session:
            job = session.get_one(Job, job_id)
            counted.append((job.stalled_attempts, job.faults))
            assert job.state != "failed"
    assert counted == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (4, 2)]
    base.close()


def test_an_evaluation_that_is_cancelled_as_it_ends_is_cancelled(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )
    with base.write() as session:
        session.add(
            Evaluation(
                id="e",
                device="cpu",
                effort="screen",
                task_name="t",
                task_sha256="s",
                task_source="src",
                candidate_sha256="a",
                candidate_source="c",
            )
        )
    held = turns.take(base, Evaluation, "cpu", "one", 60.0, 3)
    assert held is not None
    with base.write() as session:
        session.get_one(Evaluation, "e").cancel_requested = True
    runner.finish(held, EvaluationOutcome("succeeded", "right", {"verdict": "accepted"}))
    with base.read() as session:
        row = session.get_one(Evaluation, "e")
        assert (row.state, row.verdict) == ("cancelled", None)
    base.close()


def test_a_fault_in_the_same_place_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )

    def fault(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("services.worker.runner.run_job", fault)
    for _ in range(3):
        assert runner.work_on_next(Job)
    with base.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.attempt) == ("failed", 3)
        assert "KeyError" in (job.reason or "")
        assert session.query(Event).filter_by(job_id=job_id, name="job.started").count() == 3
    base.close()


def test_a_round_that_fails_does_not_end_the_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_sqlite(tmp_path)
    dispatcher = Dispatcher(base, lambda *_: None, 3)
    monkeypatch.setattr("services.worker.dispatch.LOOK_EVERY_S", 0.01)
    thrice, rounds = threading.Event(), []

    def look() -> None:
        rounds.append(1)
        if len(rounds) >= 3:
            thrice.set()
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(dispatcher, "look", look)
    dispatcher.start()
    assert thrice.wait(10)
    dispatcher.stop()
    base.close()


def test_whatever_a_broker_raises_the_message_is_sent_later(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    new_job(base, tmp_path)
    with base.write() as session:
        session.add(Worker(id="one", device="cpu", tier="landlock", seen_at=time.time()))
    tries: list[str] = []

    def loading_at_first(device: str, _: str) -> None:
        tries.append(device)
        if len(tries) == 1:
            raise RuntimeError("LOADING Redis is loading the dataset in memory")

    dispatcher = Dispatcher(base, loading_at_first, 3)
    dispatcher.look()
    dispatcher.look()
    assert tries == ["cpu", "cpu"], "again at once"
    dispatcher.look()
    assert tries == ["cpu", "cpu"], "not again for a while"
    base.close()


def test_rows_that_no_worker_hears_of_do_not_stand_before_those_of_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_sqlite(tmp_path)
    monkeypatch.setattr("services.worker.dispatch.EXPIRES_S", 0.0)
    with base.write() as session:
        session.add(Worker(id="one", device="cpu", tier="landlock", seen_at=time.time()))
    queue(base, "ada", 20, device="cuda")
    queue(base, "bob")
    told: list[str] = []
    dispatcher = Dispatcher(base, lambda device, _: told.append(device), 3)
    for _ in range(3):
        dispatcher.look()
    assert set(told) == {"cpu"}
    with base.write() as session:
        session.add(Worker(id="two", device="cuda", tier="landlock", seen_at=time.time()))
    dispatcher.look()
    assert "cuda" in told
    base.close()


def test_a_request_during_an_outage_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi.testclient import TestClient

    from services.jobs import read as reading

    def cut_off(*_: object, **__: object) -> None:
        raise AWAY

    app = create_app(Settings(data_dir=tmp_path))
    local = {"base_url": "http://localhost", "client": ("127.0.0.1", 50000)}
    with TestClient(app, raise_server_exceptions=False, **local) as client:  # type: ignore[arg-type]
        monkeypatch.setattr(reading, "get_job", cut_off)
        answer = client.get("/jobs/01m838cqvpw6vwaj69m81ys43a")
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["content-type"] == "application/problem+json"
