"""A server that echoes the key in every place it can: no file, no row, no event and no memory of a job holds it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from agent.background import Background
from agent.candidates import Candidate
from agent.proposers.llm import LLMProposer
from agent.proposing import ProposalContext
from agent.records import Records, account
from agent.replay import replay
from agent.spec import Budget, JobSpec, ModelChoice, Strategy
from agent.store import JobStore
from agent.stores.folder import FolderStore
from evaluator.verdict import from_json
from services.db.models import Base, Job
from services.db.session import Database
from services.jobs import batches, lease, submit
from services.jobs.requests import OptimizeRequest
from services.jobs.store import SqlJobStore
from services.memory.remembering import remember_job
from services.settings import Settings
from tests.agent.chat_server import Answer, ChatServer, chat_server
from tests.agent.test_batch import answer_line
from tests.agent.test_llm_proposer import DESCRIPTION, TASK
from tests.services.databases import new_sqlite
from tests.services.service import TINY_TASK

KEY = "sk-planted/0123456789+abcdef"
FORMS = (KEY, base64.b64encode(KEY.encode()).decode().rstrip("="), "sk-planted%2F0123456789%2Babcdef")
STRATEGY = Strategy(rounds=2, beam=2, patience=9, seed=1, tune=False, plan=True)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_LLM_API_KEY", KEY)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    found = new_sqlite(tmp_path)
    yield found
    found.close()


class Echo:
    """Answers with the key in sources, prose, diagnoses, plans, the model's name and errors, in each of its forms."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: dict[str, Any]) -> Answer:
        self.count += 1
        form = FORMS[self.count % len(FORMS)]
        text = str(request["messages"][-1]["content"])
        if text.startswith("You are the critic"):
            said = json.dumps({"bottleneck": "memory", "evidence": f"key {form}", "change": f"use {form}"})
        elif text.startswith("Plan this change"):
            said = f"1. Send {form}."
        elif self.count % 5 == 4:
            return Answer(status=400, message=f"wrong key {form} at https://user:{KEY}@host/")
        else:
            calls = ".".join(f"{name}()" for name in ("sin", "cos", "abs")[: 1 + self.count % 3])
            said = (
                f"Your key is {form}.\n```python\nimport torch\n\nKEY = '{form}'\n\n\nclass ModelNew(torch.nn.Module):\n"
                f"    def forward(self, x):\n        return x.{calls} * {self.count}\n```"
            )
        answer = json.loads(Answer(said).body("m"))
        answer["model"] = f"m {form}"
        return Answer(raw=json.dumps(answer).encode())


def ask(store: JobStore, server: ChatServer, detail: str = "") -> list[Candidate]:
    """A whole round of requests: attempts, repairs, critics, plans, searches."""
    background = Background(store, TASK.source, DESCRIPTION, "cpu")
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store, background=background)  # type: ignore[arg-type]
    models = [ModelChoice("m", base_url=server.base_url, samples=4, timeout_s=5.0)]
    found = []
    for candidate in LLMProposer(models, Budget(), strategy=STRATEGY, in_flight=2).propose(context):
        store.add_candidate(candidate)
        word = "accepted" if len(found) % 2 else "incorrect"
        row = {
            "split": "visible",
            "dims": {"rows": 4},
            "timed": True,
            "speedup": 1.5 + len(found),
            "baseline_us": 3.0,
            "candidate_us": 2.0,
            "best_baseline": "eager",
        }
        verdict = {"verdict": word, "reason": "", "detail": detail, "findings": [], "shapes": [row]}
        store.add_verdict(
            candidate.sha256,
            "screen",
            from_json(verdict | {"summary": {"geomean_speedup": 1.5 + len(found)}}),
        )
        found.append(candidate)
    return found


def holding(folder: Path) -> list[str]:
    """Files that hold the key in any form, a database's own files included."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(form.encode() in path.read_bytes() for form in FORMS)
    ]


def rows(base: Database) -> Iterator[tuple[str, str]]:
    with base.read() as session:
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)):
                yield table.name, json.dumps([str(value) for value in row])


def test_no_file_of_a_job_s_folder_holds_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = FolderStore(tmp_path / "job")
    store.finish_step("describe", DESCRIPTION.as_json())
    with chat_server(chosen=Echo()) as server:
        assert len(ask(store, server)) >= 4
        assert any("critic" in str(request) for request in server.requests)
        assert all(KEY in one for one in server.authorizations), "the server did get the key"
    assert holding(tmp_path) == []
    assert not any(form in json.dumps(account(store)) for form in FORMS)
    assert not any(form in caplog.text for form in FORMS)
    spec = JobSpec("job", "twice", TASK, models=(ModelChoice("m", samples=4),), strategy=STRATEGY)
    assert replay(spec, store).same


def test_no_row_of_the_database_holds_the_key(base: Database, tmp_path: Path) -> None:
    request = OptimizeRequest.model_validate({"source": TINY_TASK, "models": ["m"], "origins": ["llm"]})
    with base.uncommitted() as session:
        settings = Settings(data_dir=tmp_path, llm_base_url="http://127.0.0.1:1/v1")
        job_id = submit.make_job(session, request, settings).id
    with base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    store = SqlJobStore(base, job_id, held, lambda: False)
    store.finish_step("describe", DESCRIPTION.as_json())
    with chat_server(chosen=Echo()) as server:
        assert len(ask(store, server)) >= 4
    assert remember_job(base, job_id, one_user=True) > 0
    tables = [name for name, text in rows(base) if any(form in text for form in FORMS)]
    assert tables == []
    seen = {name for name, _ in rows(base)}
    assert {"steps", "candidates", "events", "memory"} <= seen
    assert holding(tmp_path) == []


def test_a_prompt_that_would_hold_the_key_is_masked_where_it_is_sent_and_stored(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "job")
    with chat_server(chosen=Echo()) as server:
        ask(store, server, detail=f"RuntimeError: {KEY}")
        sent = json.dumps(server.requests)
    assert "RuntimeError: ***" in sent
    assert not any(form in sent for form in FORMS)
    prompts = json.dumps([Records(store).prompt(one) for one in Records(store).requests()])
    assert "RuntimeError: ***" in prompts
    assert not any(form in prompts for form in FORMS)


def test_answers_of_a_batch_that_hold_the_key_are_masked(base: Database, tmp_path: Path) -> None:
    body = {"source": TINY_TASK, "models": ["m"], "origins": ["llm"], "batch": True}
    with base.uncommitted() as session:
        job_id = submit.make_job(
            session, OptimizeRequest.model_validate(body), Settings(data_dir=tmp_path)
        ).id
    with base.write() as session:
        row = session.get_one(Job, job_id)
        row.state = "waiting"
    with base.uncommitted() as session:
        batches.add_answers(session, job_id, answer_line("a", f"key {KEY}"))
    assert [name for name, text in rows(base) if KEY in text] == []


def test_the_check_would_see_a_key(base: Database, tmp_path: Path) -> None:
    see: list[Callable[[], bool]] = [
        lambda: holding(tmp_path) != [],
        lambda: any(KEY in text for _, text in rows(base)),
    ]
    assert not any(one() for one in see)
    (tmp_path / "a file").write_text(f"x{KEY}x")
    with base.uncommitted() as session:
        request = OptimizeRequest.model_validate({"source": TINY_TASK, "name": KEY, "origins": ["compiler"]})
        submit.make_job(session, request, Settings(data_dir=tmp_path))
    assert all(one() for one in see)
