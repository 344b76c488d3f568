"""What lists say of a job is what its candidates and verdicts say one by one, on both databases."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from services.db.models import Job
from services.db.session import Database
from services.jobs import submit, tally
from services.jobs.requests import CandidateRequest
from services.jobs.rows import candidate_row, verdict_row
from services.jobs.views import CountsView
from tests.services.databases import BOTH_DATABASES, fresh_database, new_job

WORDS = ("accepted", "accepted", "incorrect", "timeout")
#: Few, so that candidates tie; 0.0 and None stand for nothing measured.
SPEEDUPS = (None, 0.0, 0.5, 1.5, 1.5, 2.0)


def drawn_verdict(drawn: random.Random) -> dict[str, Any]:
    """A verdict's body."""
    summary: dict[str, Any] = {"geomean_speedup": drawn.choice(SPEEDUPS), "geomean_ci95": [0.9, 1.1]}
    if drawn.random() < 0.6:
        summary["traffic"] = {"geomean_speedup": drawn.choice(SPEEDUPS), "geomean_ci95": [1.0, 1.2]}
    return {"verdict": drawn.choice(WORDS), "reason": "", "summary": summary}


def fill(base: Database, job_id: str, drawn: random.Random, count: int) -> dict[str, Any]:
    """Candidates of a job with verdicts; what a list should say of it, worked out one by one."""
    counts = dict.fromkeys(("candidates", "accepted", "rejected", "pending"), 0)
    best, winner, others = None, None, []
    with base.write() as session:
        session.get_one(Job, job_id).tally = None  # as whoever stores a candidate has it
        for number in range(count):
            sha256 = f"{drawn.getrandbits(256):064x}"
            session.add(candidate_row(job_id, sha256, "llm", f"number {number}", "x = 1\n"))
            session.flush()  # candidates are numbered in the order in which they come
            phases = {
                phase: drawn_verdict(drawn)
                for phase, share in (("screen", 0.8), ("validation", 0.4), ("held_out", 0.1))
                if drawn.random() < share
            }
            for phase, body in phases.items():
                session.add(verdict_row(job_id, sha256, phase, body))
            last = next(
                (phases[phase] for phase in ("held_out", "validation", "screen") if phase in phases), None
            )
            counts["candidates"] += 1
            counts[
                "pending" if last is None else "accepted" if last["verdict"] == "accepted" else "rejected"
            ] += 1
            shown = phases.get("validation") or phases.get("screen") or {"summary": {}}
            geomean = shown["summary"].get("geomean_speedup")
            traffic = shown["summary"].get("traffic", {}).get("geomean_speedup")
            others.append(sha256)
            if (
                "held_out" not in phases
                and last is not None
                and last["verdict"] == "accepted"
                and geomean is not None
            ):
                rank = ("validation" in phases, traffic or geomean)
                if best is None or rank > best[0]:
                    best = (rank, sha256, geomean, traffic)
        if others and drawn.random() < 0.5:
            winner = drawn.choice(others)
            job = session.get(Job, job_id)
            assert job is not None
            job.winner_sha256 = winner
    return {"counts": counts, "best": best[1:] if best else None, "winner": winner}


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_it_is_what_candidates_and_verdicts_say(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    drawn = random.Random(7)
    with fresh_database(kind, tmp_path, request) as base:
        expected = {
            job_id: fill(base, job_id, drawn, count)
            for count in (0, *[1, 2, 3, 4, 5] * 8, 30, 60)
            for job_id in [new_job(base, tmp_path)]
        }
        assert {bool(one["best"]) for one in expected.values()} == {True, False}
        assert {bool(one["winner"]) for one in expected.values()} == {True, False}
        with base.read() as session:
            jobs = [job for job_id in expected if (job := session.get(Job, job_id)) is not None]
            together = tally.tallies(session, jobs)
            alone = {job.id: tally.tallies(session, [job])[job.id] for job in jobs}
    assert together == alone
    for job_id, said in together.items():
        wanted, best = expected[job_id], said.best
        assert said.counts == CountsView(**wanted["counts"])
        assert (best and (best.sha256, best.geomean_speedup, best.traffic_speedup)) == wanted["best"]
        assert (said.winner and said.winner.sha256) == wanted["winner"]
        if best is not None:
            assert best.label.startswith("number ") and best.ci95 == (0.9, 1.1)
            assert best.traffic_ci95 in (None, (1.0, 1.2))


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_a_new_job_has_no_candidates_until_one_comes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        job_id = new_job(base, tmp_path)
        with base.read() as session:
            job = session.get_one(Job, job_id)
            assert tally.tallies(session, [job])[job_id].counts == CountsView()
        with base.uncommitted() as session:
            submit.add_external_candidate(session, job_id, CandidateRequest(candidate="x = 1\n"))
        with base.read() as session:
            said = tally.tallies(session, [session.get_one(Job, job_id)])[job_id]
        assert said.counts == CountsView(candidates=1, pending=1)


def test_the_candidates_of_other_jobs_are_not_gone_through(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database("sqlite", tmp_path, request) as base:
        job_ids = [new_job(base, tmp_path) for _ in range(8)]
        for job_id in job_ids:
            fill(base, job_id, random.Random(1), 30)
        with base.write() as session:  # what SQLite knows of the tables decides
            session.connection().exec_driver_sql("ANALYZE")
        texts: list[tuple[str, Any]] = []
        event.listen(base.engine, "before_cursor_execute", lambda *given: texts.append(given[2:4]))
        with base.read() as session:
            jobs = [session.get_one(Job, job_id) for job_id in job_ids[:2]]
            texts.clear()
            tally.tallies(session, jobs)
            asked = [one for one in texts if one[0].startswith("SELECT")]
            plans = [
                row[3]
                for text, parameters in asked
                for row in session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
            ]
    assert len(asked) == 2
    assert [plan for plan in plans if "candidates" in plan and not plan.startswith("SEARCH candidates")] == []
    assert any(plan.startswith("SEARCH candidates") for plan in plans)
