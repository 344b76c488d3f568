"""Jobs that ask by batch: they wait in a state of their own, go on when answers come by HTTP or as a file, and pay once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from agent.errors import AnswersAwaited
from agent.proposers.llm import LLMProposer
from agent.records import Records
from services.commands.remote import pieces_of
from services.db.models import Job
from services.db.session import Database
from services.errors import NotReady, Refused
from services.jobs import batches, endings, lease, read, submit
from services.jobs.lease import Lease
from services.jobs.requests import OptimizeRequest
from services.jobs.rows import job_spec
from services.jobs.store import SqlJobStore
from services.settings import Settings
from tests.agent.test_batch import answer_line
from tests.agent.test_llm_proposer import DESCRIPTION, context, judged, reply, verdict
from tests.services.databases import new_sqlite
from tests.services.service import CORRECT, FEW_SHAPES, TINY_TASK, Service, wait_until
from tests.services.test_cli import kernelwright


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    found = new_sqlite(tmp_path)
    yield found
    found.close()


def new_job(base: Database, tmp_path: Path, folder: Path | None = None, **more: Any) -> str:
    body = {
        "source": TINY_TASK,
        "device": "cpu",
        "models": [{"model": "m", "samples": 1}],
        "origins": ["llm"],
        "batch": True,
        **more,
    }
    with base.uncommitted() as session:
        request = OptimizeRequest.model_validate(body)
        return submit.make_job(session, request, Settings(data_dir=tmp_path), batch_folder=folder).id


def work(base: Database, job_id: str, folder: Path) -> list[str]:
    """What a worker does with a claimed job's models, until it must wait; labels of the candidates."""
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
        assert held is not None
        spec = batches.with_folder(job_spec(session.get_one(Job, job_id)), folder)
        batches.lay_out(session, spec)
    store = SqlJobStore(base, job_id, held, lambda: False)
    store.finish_step("describe", DESCRIPTION.as_json())
    proposer = LLMProposer(spec.models, spec.budget, strategy=spec.strategy)
    try:
        words = [verdict("incorrect")] * 2
        found = judged(proposer.propose(context(store)), store, *words)  # type: ignore[arg-type]
        return [candidate.label for candidate in found]
    except AnswersAwaited as awaited:
        with base.write() as session:
            batches.pause(session, lease.locked_row(session, held), spec, str(awaited))
        return []


def state(base: Database, job_id: str) -> str:
    with base.read() as session:
        return read.get_job(session, job_id).state


def open_ids(base: Database, job_id: str) -> list[str]:
    with base.read() as session:
        return [json.loads(one)["custom_id"] for one in batches.open_requests(session, job_id).splitlines()]


def hand_in(base: Database, job_id: str, text: str) -> int:
    with base.uncommitted() as session:
        return batches.add_answers(session, job_id, text)


def test_a_job_waits_and_goes_on_with_what_clients_hand_in(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    assert work(base, job_id, tmp_path / "here") == []
    assert state(base, job_id) == "waiting"
    (first,) = open_ids(base, job_id)
    assert hand_in(base, job_id, answer_line(first, reply("x").text or "")) == 1
    assert state(base, job_id) == "queued"
    with base.read() as session, pytest.raises(NotReady):
        batches.open_requests(session, job_id)
    # another worker, whose folder is empty, goes on
    assert work(base, job_id, tmp_path / "there") == []
    (second,) = open_ids(base, job_id)
    assert second != first, "what was answered is not asked again"
    hand_in(base, job_id, answer_line(second, reply("x + x").text or ""))
    assert work(base, job_id, tmp_path / "there") == ["m #1", "m #1 repaired"]
    store = SqlJobStore(base, job_id, Lease(Job, job_id, "one", 3), lambda: False)
    assert Records(store).spent().tokens == 300


def test_answers_may_come_in_pieces(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    work(base, job_id, tmp_path / "here")
    (first,) = open_ids(base, job_id)
    separator = answer_line("another", "x").replace('"x"', '"a\u2028b"')
    assert "\u2028" in separator
    with base.uncommitted() as session:
        assert batches.add_answers(session, job_id, separator, more=True) == 1
    assert state(base, job_id) == "waiting", "it goes on with the last piece"
    assert hand_in(base, job_id, answer_line(first, reply("x").text or "")) == 1
    assert state(base, job_id) == "queued"
    work(base, job_id, tmp_path / "elsewhere")
    assert open_ids(base, job_id) != [first], "the second round waits"


def test_a_file_of_answers_is_cut_between_lines() -> None:
    lines = [answer_line(f"r-{number}", "x" * 90_000) for number in range(9)]
    long = answer_line("long", "y" * 400_000)
    pieces = pieces_of("".join([*lines, "\n", long, lines[0]]))
    assert "".join(pieces) == "".join([*lines, long, lines[0]])
    assert len(pieces) == 5
    assert all(len(piece) < 300_000 for piece in pieces if piece != long)


def test_answers_in_the_folder_are_noticed_by_the_dispatcher(base: Database, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    job_id = new_job(base, tmp_path, folder)
    work(base, job_id, tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    with base.read() as session:
        assert batches.answered_on_disk(session) == []
    (first,) = open_ids(base, job_id)
    (folder / "answers.jsonl").write_text(answer_line(first, reply("x").text or ""))
    with base.read() as session:
        assert batches.answered_on_disk(session) == [job_id]


@pytest.mark.parametrize(
    "text", ["no json", '["custom_id"]', '{"custom_id": 3}', '{"custom_id": "a"}\n{"cus']
)
def test_what_is_no_answer_is_refused_and_the_job_waits_on(base: Database, tmp_path: Path, text: str) -> None:
    job_id = new_job(base, tmp_path)
    work(base, job_id, tmp_path / "here")
    with pytest.raises(Refused, match="answers: line"):
        hand_in(base, job_id, text)
    assert state(base, job_id) == "waiting"


def test_a_waiting_job_can_be_cancelled_and_takes_no_answers_then(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    with pytest.raises(NotReady):
        hand_in(base, job_id, '{"custom_id": "a"}')
    work(base, job_id, tmp_path / "here")
    with base.uncommitted() as session:
        endings.cancel_job(session, job_id)
    assert state(base, job_id) == "cancelled"
    with pytest.raises(NotReady):
        hand_in(base, job_id, '{"custom_id": "a"}')


def test_a_job_that_was_cancelled_while_it_asked_does_not_wait(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    with base.uncommitted() as session:
        endings.cancel_job(session, job_id)
    with base.write() as session:
        row = lease.locked_row(session, held)
        batches.pause(session, row, batches.with_folder(job_spec(row), tmp_path), "no answers yet")
    assert state(base, job_id) == "cancelled"


def test_waiting_any_number_of_times_is_no_fault(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    for _ in range(5):  # more than a row may stall
        work(base, job_id, tmp_path / "here")
        hand_in(base, job_id, '{"custom_id": "of nobody"}')
    with base.read() as session:
        assert session.scalar(select(Job.stalled_attempts).where(Job.id == job_id)) == 0


def test_a_client_names_no_folder_and_a_batch_needs_a_model(base: Database, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="batch: needs a model"):
        new_job(base, tmp_path, models=None, origins=None)
    job_id = new_job(base, tmp_path)
    with base.read() as session:
        spec = job_spec(session.get_one(Job, job_id))
    assert [one.folder for one in spec.models] == [None]
    assert spec.strategy.rounds == 0, "each round takes two more files"
    with pytest.raises(ValueError, match="folder"):
        new_job(base, tmp_path, models=[{"model": "m", "folder": "/etc"}])


@pytest.mark.slow
def test_a_batch_over_http(service: Service) -> None:
    body = {
        "source": TINY_TASK,
        "models": [{"model": "m", "samples": 1}],
        "origins": ["llm"],
        "batch": True,
        "shapes": FEW_SHAPES,
    }
    job_id = service.submit(**body, strategy={"ablate": False})

    def waits() -> bool:
        return service.job(job_id)["state"] == "waiting"

    for number in (1, 2):
        wait_until(waits, 120, service.log_tail)
        (line,) = service.get(f"/jobs/{job_id}/batch").text.splitlines()
        request = json.loads(line)
        assert request["url"] == "/v1/chat/completions"
        assert f"/ui/jobs/{job_id}" not in line
        assert "Download requests" in service.get(f"/ui/jobs/{job_id}").text
        code = CORRECT if number == 1 else CORRECT.replace("+ 1.0", "+ 2.0 - 1.0")
        answer = answer_line(request["custom_id"], f"```python\n{code}```")
        assert service.post(f"/jobs/{job_id}/batch", {"answers": answer}).status_code == 202
    job = service.wait_for(job_id)
    assert job["counts"]["candidates"] >= 2, job["reason"]
    assert service.get(f"/jobs/{job_id}/batch").status_code == 409
    names = [event["name"] for event in service.events(job_id)]
    assert names.count("job.waiting") == 2


@pytest.mark.slow
def test_a_batch_on_the_command_line(tmp_path: Path) -> None:
    """Three processes: the first writes a request, each of the others goes on with an answer."""
    task, folder = tmp_path / "tiny.py", tmp_path / "batch"
    task.write_text(TINY_TASK)

    def command(*arguments: str) -> tuple[int, dict[str, Any]]:
        ran = kernelwright(tmp_path, *arguments, "--json", timeout=200)
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)["job"]

    code, job = command("optimize", str(task), "--origin", "llm", "--model", "m", "--batch", str(folder))
    for body in ("+ 2.0", "+ 3.0"):  # wrong ones are judged fast
        assert (code, job["state"]) == (3, "waiting"), job
        assert f"kernelwright resume {job['id']}" in job["reason"]
        requests = (folder / "requests.jsonl").read_text().splitlines()
        assert len(requests) == 2, "two first attempts"
        answers = [
            answer_line(
                json.loads(line)["custom_id"], f"```python\n{CORRECT.replace('+ 1.0', body)}# {number}\n```"
            )
            for number, line in enumerate(requests)
        ]
        (tmp_path / "answers.jsonl").write_text("".join(answers))
        code, job = command("resume", job["id"], "--answers", str(tmp_path / "answers.jsonl"))
    assert (code, job["state"]) == (1, "failed"), job
    assert job["counts"]["rejected"] == 4
    assert job["spend"]["tokens"] == 600
    assert job["attempt"] == 3
