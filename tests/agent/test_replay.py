"""A finished job again from its record: the same prompts and candidates, no request, and a planted change that is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent import prompts
from agent.proposers.llm import LLMProposer
from agent.replay import Replay, replay
from agent.spec import Budget, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from tests.agent.chat_server import Answer, chat_server
from tests.agent.test_llm_proposer import DESCRIPTION, TASK, context, judged, reply, row, verdict


def spec(*models: ModelChoice) -> JobSpec:
    return JobSpec("job", "twice", TASK, models=models, origins=("llm",), strategy=Strategy())


def run(store: FolderStore, requests_fail: bool = False) -> JobSpec:
    """A job of two models, six attempts, four in flight, repairs and a prose answer among them."""
    numbers = iter(range(1000))

    def chosen(_: object) -> Answer:
        number = next(numbers)
        if requests_fail and number % 4 == 1:
            return Answer(status=400, message="bad luck")
        return Answer("no code") if number % 5 == 3 else reply(f"x * {number}")

    store.finish_step("describe", DESCRIPTION.as_json())
    with chat_server(chosen=chosen) as server:
        models = tuple(ModelChoice(name, base_url=server.base_url, samples=3) for name in ("a", "b"))
        words = [
            verdict("incorrect"),
            verdict("accepted", shapes=[row("visible", 4, 1.5)], summary={"geomean_speedup": 1.5}),
        ]
        proposer = LLMProposer(models, Budget(), in_flight=4)
        judged(proposer.propose(context(store)), store, *(words * 3))
        assert len(server.requests) > 6
    return spec(*models)


@pytest.mark.parametrize("requests_fail", [False, True])
def test_a_job_replays_without_its_models_byte_for_byte(tmp_path: Path, requests_fail: bool) -> None:
    store = FolderStore(tmp_path)
    job = run(store, requests_fail)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = replay(job, store)
    assert found.same
    assert not found.templates_changed
    assert len(found.prompts) > 6
    assert found.candidates == found.recorded_candidates > 3
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_verdict_that_was_changed_afterwards_is_seen(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    job = run(store)
    for path in (tmp_path / "verdicts").iterdir():  # those of second rounds led to no prompt
        path.write_text(path.read_text().replace("it was incorrect", "it was something else"))
    found = replay(job, store)
    assert not found.same
    assert 0 < sum(not prompt.same for prompt in found.prompts) < len(found.prompts)


def replayed_with_another_template(
    job: JobSpec, store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Replay:
    shutil.copytree(prompts._FOLDER, folder)
    again = folder / "again.md.j2"
    again.write_text(again.read_text().replace("exactly one", "only one"))
    monkeypatch.setattr(prompts, "_FOLDER", folder)
    for kept in (prompts.prompts_sha256, prompts._environment):
        kept.cache_clear()
    try:
        return replay(job, store)
    finally:
        monkeypatch.undo()
        for kept in (prompts.prompts_sha256, prompts._environment):
            kept.cache_clear()


def test_templates_that_changed_are_told_by_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threads decide who gets which answer; on a busy machine it happens that nobody is asked again by this template.
    for number in range(5):
        store = FolderStore(tmp_path / f"job{number}")
        job = run(store)
        found = replayed_with_another_template(job, store, tmp_path / f"prompts{number}", monkeypatch)
        if not found.same:
            break
    assert found.templates_changed
    assert not found.same
    changed = [prompt.request for prompt in found.prompts if not prompt.same]
    assert changed
    assert all(name.endswith("/2") for name in changed), "what did not use the template is the same"
    assert not replay(job, store).templates_changed


def test_another_task_than_the_recorded_one_is_seen(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    job = run(store)
    described = tmp_path / "steps" / "describe.json"
    described.write_text(described.read_text().replace('"min": 1', '"min": 2'))
    assert not any(prompt.same for prompt in replay(job, store).prompts)
