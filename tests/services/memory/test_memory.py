"""Memory in the database: what a job leaves, and that nothing of one person's reaches another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from agent.memory.entries import Question
from agent.memory.features import features_of
from agent.memory.lessons import LESSON_STEPS
from agent.spec import JobOutcome
from agent.strategy.ablation import ABLATED_STEPS, Lesson
from evaluator.description import Description
from evaluator.sources import sha256_of
from kernelbench_tasks import catalog
from services.db.models import Candidate, Job, MemoryEntry, Step, Verdict
from services.db.session import Database
from services.jobs import lease, submit
from services.jobs.requests import CandidateRequest, OptimizeRequest
from services.jobs.rows import candidate_row
from services.memory.ownership import ONE_USER, SHARED, readable_owners
from services.memory.remembering import remember_job
from services.memory.store import SqlMemory
from services.settings import Settings
from services.worker.referee_queue import RefereeQueue
from services.worker.runner import Runner
from tests.services.databases import new_sqlite

PRIVATE = "private_attention_of_acme"
TASK = catalog.load("softmax").source
# the same computation, so that it is found by everything but its text
OWN_TASK = f"# {PRIVATE}\n{TASK}"


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    """An empty database with the newest schema."""
    found = new_sqlite(tmp_path)
    yield found
    found.close()


def ended_job(base: Database, folder: Path, origin: str = "llm", **request: Any) -> str:
    """A job whose model proposed a slow, a fast and a wrong candidate, each of which quotes its task."""
    with base.uncommitted() as session:
        asked = OptimizeRequest.model_validate({"source": TASK, "name": PRIVATE, **request})
        job_id = submit.make_job(session, asked, Settings(data_dir=folder)).id
    with base.write() as session:
        words = {"slow": ("accepted", 0.8), "fast": ("accepted", 2.0), "wrong": ("incorrect", None)}
        for name, (word, speed) in words.items():
            source = f"# {name} of {job_id}, after {PRIVATE if 'source' in request else 'softmax'}\n"
            sha256 = sha256_of(source)
            session.add(candidate_row(job_id, sha256, origin, PRIVATE, source, note=PRIVATE))
            body = {
                "verdict": word,
                "reason": PRIVATE,
                "detail": PRIVATE,
                "findings": [{"rule": "mismatch", "severity": "error", "evidence": PRIVATE}],
                "summary": {"geomean_speedup": speed},
                "environment": {"device_name": PRIVATE},
            }
            session.add(
                Verdict(job_id=job_id, sha256=sha256, phase="screen", word=word, reason=PRIVATE, body=body)
            )
            hidden = {**body, "summary": {"geomean_speedup": 77.0}, "verdict": "accepted"}
            for phase in ("validation", "held_out"):
                session.add(
                    Verdict(job_id=job_id, sha256=sha256, phase=phase, word=word, reason="", body=hidden)
                )
        session.add(Step(job_id=job_id, name="describe", value={"value": {"ok": True, "name": PRIVATE}}))
    return job_id


def told(base: Database, *, one_user: bool = False, asking: str = "somebody") -> list[Any]:
    """What another job that asks about a softmax is told."""
    memory = SqlMemory(base, readable_owners(None, one_user=one_user), asking)
    question = Question(features_of(TASK, Description()), "cpu", "cpu-avx512")
    return [found.entry for found in memory.similar(question, 9)]


def _candidates(base: Database, job_id: str) -> list[Candidate]:
    with base.read() as session:
        return list(session.scalars(select(Candidate).where(Candidate.job_id == job_id)))


def kept(base: Database) -> list[MemoryEntry]:
    with base.read() as session:
        return list(session.scalars(select(MemoryEntry).order_by(MemoryEntry.id)))


def test_a_job_on_a_task_of_the_catalogue_teaches_every_other(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    assert remember_job(base, job_id, one_user=False) == 2
    pair, failure = told(base)
    assert (pair.kind, pair.task_name, pair.ratio) == ("faster", "softmax", pytest.approx(2.5))
    assert "# slow of" in pair.slow and "# fast of" in pair.fast
    assert failure.kind == "failure" and "# wrong of" in failure.slow
    bodies = json.dumps([row.body for row in kept(base)])
    assert PRIVATE not in bodies, "the name that a client gave it"
    assert "77.0" not in bodies, "figures of validation and held-out shapes"
    assert told(base, asking=job_id) == [], "a job's own candidates are no news to it"


def test_what_one_user_s_jobs_learn_stays_with_that_user(base: Database, tmp_path: Path) -> None:
    """Also where the operator says that jobs may learn from each other: of a user the others are strangers."""
    job_id = ended_job(base, tmp_path, source=OWN_TASK)
    with base.write() as session:
        session.get_one(Job, job_id).owner_id = "ada"
    assert remember_job(base, job_id, one_user=True) > 0
    assert {row.owner for row in kept(base)} == {"ada"}
    question = Question(features_of(TASK, Description()), "cpu", "cpu-avx512")
    seen = {
        user: SqlMemory(base, readable_owners(user, one_user=True), "somebody").similar(question, 9)
        for user in ("ada", "bob", None)
    }
    assert [user for user, found in seen.items() if found] == ["ada"]


def test_a_job_is_remembered_once(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    assert remember_job(base, job_id, one_user=False) == 2
    assert remember_job(base, job_id, one_user=False) == 0
    assert len(kept(base)) == 2


@pytest.mark.parametrize(
    "request_more",
    [
        {"source": OWN_TASK},
        {"start_from": f"# {PRIVATE}\nclass ModelNew: pass\n"},
        {"batch": True, "models": ["m"], "origins": ["llm"]},  # its answers are whatever a client hands in
        {"traffic": [{"dims": {"rows": 77, "cols": 1234}, "weight": 1.0}]},
        {"shapes": {"visible": [{"rows": 77, "cols": 1234}]}},
    ],
)
def test_what_somebody_added_stays_theirs(
    base: Database, tmp_path: Path, request_more: dict[str, Any]
) -> None:
    job_id = ended_job(base, tmp_path, **request_more)
    assert remember_job(base, job_id, one_user=False) == 0
    assert kept(base) == []


def test_a_candidate_from_outside_makes_a_job_somebodys_own(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    with base.uncommitted() as session:
        submit.add_external_candidate(session, job_id, CandidateRequest(candidate="class ModelNew: pass\n"))
    assert remember_job(base, job_id, one_user=False) == 0


def test_one_person_learns_from_their_own_modules_in_sentences(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path, source=OWN_TASK)
    assert remember_job(base, job_id, one_user=True) == 2
    entries = told(base, one_user=True)
    assert [entry.kind for entry in entries] == ["faster", "failure"]
    assert all(entry.sentences and not (entry.slow or entry.fast or entry.task_name) for entry in entries)
    assert PRIVATE not in json.dumps([row.body for row in kept(base)])
    assert told(base, one_user=False) == [], "the operator took the word back"
    assert {row.owner for row in kept(base)} == {ONE_USER}


def test_the_catalogue_is_shared_on_a_service_of_one_person_too(base: Database, tmp_path: Path) -> None:
    remember_job(base, ended_job(base, tmp_path), one_user=True)
    assert {row.owner for row in kept(base)} == {SHARED}


def test_a_key_is_never_kept(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    assert remember_job(base, job_id, one_user=False, secrets=[f"slow of {job_id}"]) == 1
    assert [row.kind for row in kept(base)] == ["failure"]


def test_of_a_task_the_newest_pair_and_failure_are_told(base: Database, tmp_path: Path) -> None:
    jobs = [ended_job(base, tmp_path) for _ in range(3)]
    for job_id in jobs:
        remember_job(base, job_id, one_user=False)
    assert len(kept(base)) == 6
    newest = max(jobs)  # within one millisecond ids are in no order
    pair, failure = told(base)
    assert newest in pair.fast and newest in failure.slow


def test_other_devices_are_not_told(base: Database, tmp_path: Path) -> None:
    remember_job(base, ended_job(base, tmp_path), one_user=False)
    memory = SqlMemory(base, (SHARED,), "somebody")
    assert memory.similar(Question(features_of(TASK, Description()), "cuda"), 9) == []


def test_sentences_of_an_ablation_go_to_memory(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    (fast,) = (one.sha256 for one in _candidates(base, job_id) if "# fast" in one.source)
    lesson = Lesson("change_paid", "other block sizes: 1.30x on a CPU", 1.3, "0" * 64, fast)
    with base.write() as session:
        session.add(
            Step(job_id=job_id, name=f"{LESSON_STEPS}{fast[:16]}/0", value={"value": lesson.to_json()})
        )
        session.add(Step(job_id=job_id, name="lessons", value={"value": [PRIVATE]}))
    remember_job(base, job_id, one_user=False)
    assert told(base)[0].sentences[-1] == "other block sizes: 1.30x on a CPU"


def test_a_winner_with_a_change_undone_is_no_failure_of_anybody(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    (wrong,) = (one.sha256 for one in _candidates(base, job_id) if "# wrong" in one.source)
    with base.write() as session:
        session.add(Step(job_id=job_id, name=f"{ABLATED_STEPS}{wrong}", value={"value": {"winner": "w"}}))
    remember_job(base, job_id, one_user=False)
    assert [entry.kind for entry in kept(base)] == ["faster"]


def test_memory_goes_with_its_job(base: Database, tmp_path: Path) -> None:
    job_id = ended_job(base, tmp_path)
    remember_job(base, job_id, one_user=False)
    with base.write() as session:
        session.delete(session.get_one(Job, job_id))
    assert kept(base) == []


def test_a_broken_memory_costs_a_job_nothing_else(base: Database, tmp_path: Path) -> None:
    remember_job(base, ended_job(base, tmp_path), one_user=False)
    with base.write() as session:
        session.execute(text("UPDATE memory SET features = '{}'"))
    assert told(base) == []
    with base.write() as session:
        session.execute(text("DROP TABLE memory"))
    assert told(base) == []
    assert remember_job(base, ended_job(base, tmp_path), one_user=False) == 0


@pytest.mark.parametrize("one_user", [False, True])
def test_the_worker_remembers_a_job_when_it_ends(base: Database, tmp_path: Path, one_user: bool) -> None:
    shared, private = ended_job(base, tmp_path), ended_job(base, tmp_path, source=OWN_TASK)
    settings = Settings(data_dir=tmp_path, one_user=one_user)
    runner = Runner(settings, base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None)
    for job_id in (shared, private):
        with base.write() as session:
            held = lease.claim(session, Job, job_id, "one", 60.0, 3)
        assert held is not None
        runner.finish(held, JobOutcome("succeeded", "accepted", "fine"))
    assert {row.job_id for row in kept(base)} == ({shared, private} if one_user else {shared})
