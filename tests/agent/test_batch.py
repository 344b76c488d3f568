"""Requests as files: their format, a job that pauses until the answers are there, and bad lines in the answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from agent.background import Background
from agent.candidates import Candidate
from agent.errors import AnswersAwaited, ProviderError
from agent.messages import Message
from agent.proposers.llm import LLMProposer
from agent.providers.batch import BatchFiles
from agent.providers.client import ModelClient
from agent.records import Records
from agent.replay import replay
from agent.spec import Budget, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from evaluator.verdict import from_json
from tests.agent.strategy.judging import accepted
from tests.agent.strategy.search_job import DESCRIPTION, TASK, by_source
from tests.agent.strategy.test_search import by_prompt, file
from tests.agent.test_llm_proposer import context, judged, reply, verdict

ASK = [Message("system", "be brief"), Message("user", "hello")]


def choice(folder: Path, **more: Any) -> ModelChoice:
    return ModelChoice("m-1", provider="batch", folder=str(folder), **{"timeout_s": 0.0, **more})


def requests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def answer_line(custom_id: str, text: str, status: int = 200) -> str:
    body = json.loads(reply("x").body("m-1"))
    body["choices"][0]["message"]["content"] = text
    response = {"status_code": status, "request_id": "r", "body": body}
    return json.dumps({"id": "b", "custom_id": custom_id, "response": response, "error": None}) + "\n"


def answer_all(folder: Path, text: str) -> None:
    with open(folder / "answers.jsonl", "a") as file:
        for number, request in enumerate(requests(folder)):
            file.write(answer_line(request["custom_id"], text.replace("NUMBER", str(number))))


def test_a_request_is_a_line_of_the_batch_format_and_is_written_once(tmp_path: Path) -> None:
    provider = BatchFiles(choice(tmp_path, temperature=0.5))
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            provider.complete(ASK, max_tokens=99, key="job-1")
        assert caught.value.kind == "waiting"
        assert str(tmp_path / "answers.jsonl") in str(caught.value)
    assert requests(tmp_path) == [
        {
            "custom_id": "job-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m-1",
                "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
                "max_completion_tokens": 99,
                "temperature": 0.5,
            },
        }
    ]


def test_half_a_line_of_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text('{"custom_id": "job-1-a"}\n{"custom_id": "jo')
    with pytest.raises(ProviderError):
        BatchFiles(choice(tmp_path)).complete(ASK, key="job-2-b")
    assert [line["custom_id"] for line in requests(tmp_path)] == ["job-1-a", "job-2-b"]


def test_a_request_whose_prompt_has_changed_replaces_the_older_one(tmp_path: Path) -> None:
    for key in ("job-1-a", "job-2-b", "job-1-c"):
        with pytest.raises(ProviderError):
            BatchFiles(choice(tmp_path)).complete(ASK, key=key)
    assert [line["custom_id"] for line in requests(tmp_path)] == ["job-2-b", "job-1-c"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"custom_id": "job-1", "response": null, "error": {"message": "expired"}}\n', "request"),
        (answer_line("job-1", "x", status=500), "request"),
        ('{"custom_id": "job-1", "response": {"status_code": 200, "body": {"choices": []}}}\n', "protocol"),
        ('{"custom_id": "job-1", "response": {"status_code": 200, "body": 7}}\n', "request"),
        ('{"custom_id": "job-1", "resp', "waiting"),
        ('["job-1"]\n', "waiting"),
        ("\x00\xff job-1\n", "waiting"),
    ],
)
def test_bad_lines_are_told_or_waited_out(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "answers.jsonl").write_bytes(line.encode("latin-1"))
    with pytest.raises(ProviderError) as caught:
        BatchFiles(choice(tmp_path)).complete(ASK, key="job-1")
    assert caught.value.kind == kind


def test_an_answer_too_long_to_read_is_paid_for_and_not_asked_for_again(tmp_path: Path) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")

    def ask() -> None:
        client = ModelClient(store, [choice(folder)], Budget())
        try:
            client.answer("llm/1/1/1", 0, ASK)
        finally:
            client.close()

    with pytest.raises(ProviderError, match="answers go to"):
        ask()
    (name,) = [line["custom_id"] for line in requests(folder)]
    (folder / "answers.jsonl").write_text(answer_line(name, "x" * 9_000_000) + answer_line("another", "y"))
    for _ in range(2):
        with pytest.raises(ProviderError, match="longer than") as caught:
            ask()
        assert caught.value.kind == "too_long"
        assert requests(folder) == []
        assert Records(store).spent().tokens > 8192, "all that it may have cost"


@pytest.mark.parametrize("count", ["1" + "0" * 400, "-1", "1e3", "true", '"9"'])
def test_numbers_of_tokens_that_make_no_sense_are_estimated(tmp_path: Path, count: str) -> None:
    line = answer_line("job-1", "y" * 40).replace('"completion_tokens": 50', f'"completion_tokens": {count}')
    assert count in line
    (tmp_path / "answers.jsonl").write_text(line)
    reply = BatchFiles(choice(tmp_path)).complete(ASK, key="job-1")
    assert reply.estimated
    assert reply.completion_tokens == 10


def test_a_job_pauses_and_goes_on_when_the_answers_appear(tmp_path: Path) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")

    def go_on() -> list[str]:
        proposer = LLMProposer([choice(folder, samples=12)], Budget(), in_flight=4)
        found = judged(proposer.propose(context(store)), store, *[verdict("incorrect")] * 12)
        return [candidate.label for candidate in found]

    with pytest.raises(AnswersAwaited):
        go_on()
    assert len(requests(folder)) == 12, "one file for all of them"
    assert Records(store).spent().tokens == 0
    answer_all(folder, reply("x * NUMBER").text or "")
    with pytest.raises(AnswersAwaited):
        go_on()  # the second round waits
    assert len(requests(folder)) == 12, "what was answered is not handed in again"
    assert Records(store).spent().tokens == 12 * 150
    with open(folder / "answers.jsonl", "a") as file:
        for number, request in enumerate(requests(folder)):
            file.write(answer_line(request["custom_id"], reply(f"x + {number}").text or ""))
    labels = go_on()
    assert len(labels) == 24
    assert len(set(labels)) == 24
    assert Records(store).spent().tokens == 24 * 150
    assert requests(folder) == []


def test_a_search_by_batch_asks_for_a_round_at_once_and_never_twice(tmp_path: Path) -> None:
    folder, store = tmp_path / "batch", FolderStore(tmp_path / "job")
    background = Background(store, TASK.source, DESCRIPTION, "cpu")
    where = dataclasses.replace(context(store), task=TASK, description=DESCRIPTION, background=background)
    store.finish_step("describe", DESCRIPTION.as_json())
    for number in range(2):
        earlier = Candidate(file(f"x.sin() * {number}.5 - {number}"), "human", f"library {number}")
        store.add_candidate(earlier)
        store.add_verdict(earlier.sha256, "screen", from_json(accepted(2.0 + number)))
    strategy = Strategy(rounds=2, beam=2, branches=2, patience=9, seed=1, tune=False)
    asked: list[str] = []
    files: list[int] = []
    while True:
        try:
            proposer = LLMProposer([choice(folder)], Budget(), strategy=strategy)
            for candidate in proposer.propose(where):
                store.add_candidate(candidate)
                store.add_verdict(candidate.sha256, "screen", from_json(by_source(candidate)))
            break
        except AnswersAwaited:
            new = requests(folder)
            files.append(len(new))
            with open(folder / "answers.jsonl", "a") as answers:
                for one in new:
                    asked.append(one["custom_id"])
                    answers.write(answer_line(one["custom_id"], str(by_prompt(one["body"]).text)))
    assert len(asked) == len(set(asked))
    assert files.count(2) >= 4, "both parents' requests are in one file"
    assert Records(store).spent().tokens == 150 * len(asked)
    spec = JobSpec("job", "twice", TASK, models=(choice(folder),), strategy=strategy)
    assert replay(spec, store).same
