"""Leases: one worker at a time, a dead worker's row is free, a late worker's writing is refused, attempts are capped.

Every test runs on SQLite, and on PostgreSQL where its server program is installed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import select

from agent.candidates import Candidate
from agent.spec import JobOutcome
from evaluator.verdict import Summary, as_json, from_json
from services.db.models import Evaluation, Event, Job
from services.db.session import Database
from services.errors import LeaseLost
from services.jobs import endings, lease, read, submit
from services.jobs.endings import end_evaluation
from services.jobs.lease import Lease
from services.jobs.requests import CandidateRequest
from services.jobs.store import SqlJobStore
from services.settings import Settings
from services.worker.dispatch import Dispatcher
from services.worker.identity import is_known_dead, own_identity
from services.worker.referee_queue import RefereeQueue
from services.worker.runner import Runner
from tests.services.databases import BOTH_DATABASES, fresh_database, new_job

ATTEMPTS = 3


@pytest.fixture(params=BOTH_DATABASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database with the newest schema."""
    with fresh_database(request.param, tmp_path, request) as found:
        yield found


def claim(base: Database, job_id: str, owner: str = "one", seconds: float = 60.0) -> Lease | None:
    """Try to take a job."""
    with base.write() as session:
        return lease.claim(session, Job, job_id, owner, seconds, ATTEMPTS)


def taken(base: Database, job_id: str, owner: str = "one", seconds: float = 60.0) -> Lease:
    """Take a job that is free."""
    held = claim(base, job_id, owner, seconds)
    assert held is not None
    return held


def store(base: Database, held: Lease) -> SqlJobStore:
    """The agent's store under a lease."""
    return SqlJobStore(base, held.row_id, held, lambda: False)


def test_an_attempt_knows_how_long_the_earlier_ones_took(base: Database, tmp_path: Path) -> None:
    """By what they told: an attempt that only described and was killed has used its seconds, too."""
    job_id = new_job(base, tmp_path)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    told = (("job.started", 0), ("job.progress", 90), ("job.started", 600), ("candidate.progress", 640))
    with base.write() as session:
        session.add_all(
            Event(job_id=job_id, name=name, data={}, time=at + timedelta(seconds=second))
            for name, second in told
        )
        session.add(Event(job_id=job_id, name="job.started", data={}, time=at + timedelta(seconds=900)))
    assert store(base, taken(base, job_id)).seconds_before() == 130.0


def test_of_many_claimers_exactly_one_wins(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    won: list[Lease] = []
    together = threading.Barrier(8)

    def try_it(number: int) -> None:
        together.wait()
        held = claim(base, job_id, f"worker-{number}")
        if held is not None:
            won.append(held)

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert won[0].attempt == 1


def test_a_lease_that_ran_out_passes_to_another_and_the_late_writer_is_refused(
    base: Database, tmp_path: Path
) -> None:
    job_id = new_job(base, tmp_path)
    first = taken(base, job_id, seconds=0.3)
    assert claim(base, job_id, "two") is None
    time.sleep(0.5)
    second = taken(base, job_id, "two")
    assert second.attempt == 2

    late = store(base, first)
    for write in (
        lambda: late.add_candidate(Candidate("a = 1", "human", "a")),
        lambda: late.add_verdict("0" * 64, "screen", from_json({"verdict": "accepted"})),
        lambda: late.finish_step("describe", {"ok": True}),
        lambda: late.event("portfolio.changed", {}),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert late.stop_requested() == "cancelled"
    with base.write() as session:
        assert not lease.extend(session, first, 60)
        assert lease.extend(session, second, 60)
    assert store(base, second).add_candidate(Candidate("a = 1", "human", "a"))
    assert store(base, second).stop_requested() is None


def test_a_beaten_heart_keeps_the_lease(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    held = taken(base, job_id, seconds=0.4)
    for _ in range(4):
        time.sleep(0.2)
        with base.write() as session:
            assert lease.extend(session, held, 0.4)
        assert claim(base, job_id, "two") is None


def test_verdicts_and_their_events_are_stored_once(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    held = taken(base, job_id)
    memory = store(base, held)
    proposed = Candidate("a = 1", "human", "first")
    assert memory.add_candidate(proposed)
    assert not memory.add_candidate(Candidate("a = 1", "compiler", "again"))
    verdict = {
        "verdict": "accepted",
        "reason": "",
        "summary": {"geomean_speedup": 1.5, "geomean_ci95": [1.4, 1.6]},
    }
    assert memory.add_verdict(proposed.sha256, "screen", from_json(verdict))
    assert not memory.add_verdict(proposed.sha256, "screen", from_json({"verdict": "incorrect"}))
    memory.event("candidate.judged", {"sha256": proposed.sha256, "phase": "screen", "verdict": "accepted"})
    memory.event("candidate.proposed", {"sha256": proposed.sha256})
    memory.event("job.finished", {})
    assert memory.verdict(proposed.sha256, "screen") == from_json(verdict)
    assert memory.candidates() == [proposed]
    with base.read() as session:
        names = [event.name for event in read.list_events(session, job_id)]
        job = read.get_job(session, job_id)
    assert names == ["job.queued", "candidate.proposed", "candidate.judged"]
    assert (job.counts.accepted, job.counts.pending) == (1, 0)
    assert job.best is not None
    assert job.best.ci95 == (1.4, 1.6)


def test_what_is_best_goes_by_the_users_own_shapes(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    memory = store(base, taken(base, job_id))
    figures = {"average": (1.9, 1.1), "usual": (1.3, 1.4), "without": (1.2, None)}
    for label, (plain, weighted) in figures.items():
        candidate = Candidate(f"{label} = 1", "human", label)
        memory.add_candidate(candidate)
        traffic = weighted and {"geomean_speedup": weighted, "geomean_ci95": [weighted, 2.0], "share": 0.9}
        summary = {"geomean_speedup": plain, "geomean_ci95": [plain, 2.0], "traffic": traffic}
        memory.add_verdict(
            candidate.sha256, "validation", from_json({"verdict": "accepted", "summary": summary})
        )
    with base.read() as session:
        best = read.get_job(session, job_id).best
    assert best is not None
    assert (best.label, best.geomean_speedup, best.traffic_speedup) == ("usual", 1.3, 1.4)
    assert best.traffic_ci95 == (1.4, 2.0)


def test_steps_keep_their_first_value(base: Database, tmp_path: Path) -> None:
    memory = store(base, taken(base, new_job(base, tmp_path)))
    assert memory.step("describe") is None
    memory.finish_step("describe", {"ok": True})
    memory.finish_step("describe", {"ok": False})
    assert memory.step("describe") == {"ok": True}


def test_an_external_candidate_is_shown_to_the_job_when_it_has_been_judged(
    base: Database, tmp_path: Path
) -> None:
    job_id = new_job(base, tmp_path)
    memory = store(base, taken(base, job_id))
    with base.uncommitted() as session:
        submit.add_external_candidate(session, job_id, CandidateRequest(candidate="b = 2"))
    assert memory.candidates() == []
    with base.write() as session:
        [row] = session.scalars(select(Evaluation).where(Evaluation.job_id == job_id))
        end_evaluation(session, row, "succeeded", "", {"verdict": "accepted"})
    assert [candidate.origin for candidate in memory.candidates()] == ["external"]


def test_what_a_compiler_prints_can_be_stored(base: Database, tmp_path: Path) -> None:
    memory = store(base, taken(base, new_job(base, tmp_path)))
    verdict = {
        "verdict": "compile_error",
        "reason": "bad \x00 byte \udcff",
        "summary": {"geomean_speedup": float("nan")},
    }
    assert memory.add_verdict("0" * 64, "screen", from_json(verdict))
    assert memory.verdict("0" * 64, "screen") == from_json(
        {
            "verdict": "compile_error",
            "reason": "bad \N{REPLACEMENT CHARACTER} byte ?",
            "summary": {"geomean_speedup": None},
        }
    )


def test_a_job_that_kills_its_worker_without_progress_is_failed_with_the_reason(
    base: Database, tmp_path: Path
) -> None:
    job_id = new_job(base, tmp_path)
    dispatcher = Dispatcher(base, lambda *_: None, ATTEMPTS)
    for attempt in range(1, ATTEMPTS + 1):
        assert taken(base, job_id, seconds=0.0).attempt == attempt
        time.sleep(0.05)
    assert claim(base, job_id) is None
    dispatcher.look()
    with base.read() as session:
        job = read.get_job(session, job_id)
        names = [event.name for event in read.list_events(session, job_id)]
    assert (job.state, job.verdict) == ("failed", "not_judged")
    assert job.reason is not None
    assert "3 times in a row" in job.reason
    assert names[-1] == "job.failed"


def test_progress_makes_up_for_earlier_attempts(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    for number in range(2 * ATTEMPTS):
        held = taken(base, job_id, seconds=0.0 if number % 2 else 1.0)
        if number % 2 == 0:
            assert store(base, held).add_candidate(Candidate(f"a = {number}", "human", "a"))
            with base.write() as session:
                lease.expire_leases_of(session, ["one"])
        time.sleep(0.05)


def test_a_new_step_is_progress_too(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    for number in range(2 * ATTEMPTS):
        held = taken(base, job_id, seconds=1.0)
        store(base, held).finish_step(f"timed/{number}", {"ok": True})
        with base.write() as session:
            lease.expire_leases_of(session, ["one"])
    assert claim(base, job_id) is not None


def test_what_is_known_is_read_once_and_nobody_can_change_it_for_others(
    base: Database, tmp_path: Path
) -> None:
    memory = store(base, taken(base, new_job(base, tmp_path)))
    assert memory.step("describe") is None
    assert memory.verdict("0" * 64, "screen") is None
    memory.finish_step("describe", {"dims": {"rows": 1}})
    memory.add_verdict("0" * 64, "screen", from_json({"verdict": "accepted"}))
    memory.step("describe")["dims"]["rows"] = 2  # type: ignore[index]
    asked: list[str] = []
    sqlalchemy.event.listen(base.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    assert memory.step("describe") == {"dims": {"rows": 1}}
    assert memory.verdict("0" * 64, "screen") == from_json({"verdict": "accepted"})
    assert memory.verdict("0" * 64, "screen") == from_json({"verdict": "accepted"})
    assert sum("verdicts" in one for one in asked) == 1
    assert not any("steps" in one for one in asked)


def test_repeating_what_is_stored_is_no_progress(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    for attempt in range(1, ATTEMPTS + 2):  # the first one stores something, the others only repeat it
        held = taken(base, job_id, seconds=1.0)
        assert held.attempt == attempt
        memory = store(base, held)
        memory.finish_step("describe", {"ok": True})
        memory.add_candidate(Candidate("a = 1", "human", "a"))
        memory.add_verdict(
            Candidate("a = 1", "human", "a").sha256, "screen", from_json({"verdict": "incorrect"})
        )
        memory.event("candidate.progress", {"stage": "timing"})
        with base.write() as session:
            lease.expire_leases_of(session, ["one"])
        time.sleep(0.05)
    assert claim(base, job_id) is None


def test_a_running_job_whose_worker_is_dead_can_be_cancelled(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    taken(base, job_id, seconds=0.0)
    with base.uncommitted() as session:
        endings.cancel_job(session, job_id)
    with base.read() as session:
        assert read.get_job(session, job_id).state == "cancelling"
    Dispatcher(base, lambda *_: None, ATTEMPTS).look()
    with base.read() as session:
        assert read.get_job(session, job_id).state == "cancelled"


def test_a_job_that_is_given_back_while_it_is_being_cancelled_is_cancelled(
    base: Database, tmp_path: Path
) -> None:
    job_id = new_job(base, tmp_path)
    held = taken(base, job_id)
    with base.uncommitted() as session:
        endings.cancel_job(session, job_id)
    with base.write() as session:
        lease.release(session, held)
    assert claim(base, job_id) is None
    Dispatcher(base, lambda *_: None, ATTEMPTS).look()
    with base.read() as session:
        assert read.get_job(session, job_id).state == "cancelled"


def test_cancelling_a_job_stops_the_evaluations_of_candidates_added_by_hand(
    base: Database, tmp_path: Path
) -> None:
    """One runs at another worker, one waits; a restart takes up neither."""
    job_id = new_job(base, tmp_path)
    taken(base, job_id)
    for source in ("a = 1", "b = 1"):
        with base.uncommitted() as session:
            submit.add_external_candidate(session, job_id, CandidateRequest(candidate=source))
    with base.write() as session:
        running, waiting = session.scalars(select(Evaluation.id).order_by(Evaluation.id)).all()
        held = lease.claim(session, Evaluation, running, "two", 60.0, ATTEMPTS)
    assert held is not None
    with base.uncommitted() as session:
        endings.cancel_job(session, job_id)
    with base.read() as session:
        assert lease.wanted(session, held) == "cancelled", "its worker's watch stops it"
        assert session.get_one(Evaluation, waiting).state == "cancelled"
    with base.write() as session:
        lease.expire_leases_of(session, ["two"])
    with base.write() as session:
        assert lease.claim(session, Evaluation, running, "three", 60.0, ATTEMPTS) is None
    Dispatcher(base, lambda *_: None, ATTEMPTS).look()
    with base.read() as session:
        assert session.get_one(Evaluation, running).state == "cancelled"


def test_the_row_of_a_process_that_was_killed_is_free_at_once(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    program = "from services.worker.identity import own_identity; print(own_identity(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    owner = process.stdout.readline().strip()
    taken(base, job_id, owner, seconds=3600)
    dispatcher = Dispatcher(base, lambda *_: None, ATTEMPTS)
    dispatcher.look()
    assert claim(base, job_id, "two") is None
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    dispatcher.look()
    assert taken(base, job_id, "two").attempt == 2


def test_an_outcome_with_its_bundle_is_stored_whole(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    held = taken(base, job_id)
    path = tmp_path / "tiny.zip"
    path.write_bytes(bytes(range(256)) * 100)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )
    runner.finish(held, JobOutcome("succeeded", "accepted", "fine", "0" * 64, path, Summary(1.5)))
    with base.read() as session:
        job = read.get_job(session, job_id)
        assert read.get_bundle(session, job_id) == ("tiny.zip", path.read_bytes())
    assert (job.state, job.verdict, job.summary) == ("succeeded", "accepted", as_json(Summary(1.5)))
    with pytest.raises(LeaseLost):
        runner.finish(held, JobOutcome("failed", None, "late"))


def test_only_the_dead_of_this_machine_are_known() -> None:
    assert not is_known_dead(own_identity())
    assert is_known_dead(own_identity().rpartition("-")[0] + "-1")  # the same pid, started at another time
    assert not is_known_dead("elsewhere/1234-5678/1-1")
    assert not is_known_dead("")
