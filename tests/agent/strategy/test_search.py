"""The search over HTTP: who is asked for what, what is shown, what is refused, and that a job replays."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.background import Background
from agent.candidates import Candidate
from agent.diagnosing import PROFILE_STEP
from agent.knowledge.reading import notes_for
from agent.proposers.llm import LLMProposer
from agent.proposing import ProposalContext
from agent.records import Records
from agent.replay import replay
from agent.spec import Budget, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from evaluator.verdict import from_json
from tests.agent.chat_server import Answer, ChatServer, chat_server
from tests.agent.strategy import search_job
from tests.agent.strategy.judging import accepted, accepted_at, rejected, row
from tests.agent.strategy.search_job import DESCRIPTION, TASK, by_source, file, number_of

DIAGNOSIS = '{"bottleneck": "memory_bandwidth", "evidence": "two passes", "change": "fuse both passes"}'


def text_of(request: dict[str, Any]) -> str:
    return str(request["messages"][-1]["content"])


def is_critic(request: dict[str, Any]) -> bool:
    return text_of(request).startswith("You are the critic")


class Model:
    """A scripted model: one fixed diagnosis, and file after file from a list."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = list(bodies)

    def __call__(self, request: dict[str, Any]) -> Answer:
        if is_critic(request):
            return Answer(DIAGNOSIS)
        if text_of(request).startswith("Plan this change"):
            return Answer("1. Read x once.")
        return Answer(f"```python\n{file(self.bodies.pop(0))}```")


def run(
    server: ChatServer,
    store: FolderStore,
    judge: Callable[[Candidate], dict[str, Any]],
    start_from: str | None = None,
    budget: Budget | None = None,
    samples: int = 2,
    **strategy: Any,
) -> list[Candidate]:
    background = Background(store, TASK.source, DESCRIPTION, "cpu")
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store, background=background)  # type: ignore[arg-type]
    choice = ModelChoice("m-1", base_url=server.base_url, timeout_s=5.0, samples=samples)
    found = []
    settings = {"seed": 1, "tune": False, **strategy}
    proposer = LLMProposer(
        [choice], budget or Budget(), strategy=Strategy(**settings), start_from=start_from, in_flight=1
    )
    for candidate in proposer.propose(context):
        store.add_candidate(candidate)
        store.add_verdict(candidate.sha256, "screen", from_json(judge(candidate)))
        found.append(candidate)
    return found


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "job")


def by_body(speeds: dict[str, float]) -> Callable[[Candidate], dict[str, Any]]:
    """Accepted at a speed for the bodies that are named, wrong else."""

    def judge(candidate: Candidate) -> dict[str, Any]:
        body = candidate.source.rpartition("return ")[2].strip()
        return accepted(speeds[body], speeds[body]) if body in speeds else rejected(reason=f"{body} is wrong")

    return judge


def test_a_round_asks_the_critic_then_plans_then_asks_for_its_one_change(store: FolderStore) -> None:
    speeds = {"x + x": 1.0, "x * 2": 1.5, "x.mul(2).contiguous()": 2.0}
    with chat_server(chosen=Model(*speeds)) as server:
        found = run(server, store, by_body(speeds), rounds=1, beam=1, plan=True)
    assert [one.source for one in found] == [file(body) for body in speeds]
    critic, plan, code = server.requests[2:]
    assert is_critic(critic)
    assert file("x * 2").strip() in text_of(critic), "the fastest is the one to go on from"
    assert "rows=1: 1.50x" in text_of(critic)
    assert "fuse both passes" in text_of(plan)
    text = text_of(code)
    assert "Bottleneck: memory bandwidth." in text
    assert "two passes\nChange: fuse both passes\n" in text
    assert "1. Read x once." in text
    assert TASK.source in text
    assert "TUNABLES" in text
    assert found[2].parent_sha256 == found[1].sha256
    assert "fuse both passes" in found[2].note


def test_an_exemplar_of_another_bucket_and_a_failure_with_its_reason_are_shown(store: FolderStore) -> None:
    for body, verdict in (
        ("x.add(x)", accepted(0.7, 0.7)),
        ("2.0 * x", accepted(1.3, 1.3)),
        ("torch.add(x, x)", accepted(3.0, 3.0)),
    ):
        one = Candidate(file(body), "human", body)
        store.add_candidate(one)
        store.add_verdict(one.sha256, "screen", from_json(verdict))
    with chat_server(chosen=Model("x", "x - x", "x.mul(2).contiguous()")) as server:
        run(server, store, by_body({"x.mul(2).contiguous()": 1.0}), rounds=1, beam=1)
    text = text_of(server.requests[-1])
    assert ("0.70x the best baseline (human):" in text) != ("1.30x the best baseline (human):" in text)
    assert "Another file that was measured:" in text
    assert file("torch.add(x, x)").strip() in text.partition("## The file to improve")[2]
    assert "This one was rejected (incorrect)" in text
    assert "is wrong" in text


def test_a_failure_is_repaired_in_repair_mode_with_places_and_without_a_critic(store: FolderStore) -> None:
    places = {"share": "some", "rows": "all", "columns": "tail", "tail_columns": 8, "column_count": 1000}
    finding = {"rule": "wrong_result", "evidence": "wrong result", "places": places}

    def judge(candidate: Candidate) -> dict[str, Any]:
        return rejected(findings=[finding], detail="line 7 ``` x")

    with chat_server(chosen=Model("x", "x - x", "x / 2")) as server:
        run(server, store, judge, samples=1, rounds=1)
    assert not any(map(is_critic, server.requests))
    follow_up, repair = text_of(server.requests[1]), text_of(server.requests[2])
    for text in (follow_up, repair):
        assert "only the last 8 of 1000 columns" in text
        assert "incomplete tile" in text
    assert "Repair it, and only that" in repair
    assert file("x - x").strip() in repair
    assert re.search(r"<data (\w+): [^>]*>\nline 7 ``` x\n</data \1>", repair), (
        "a fence in a message closes nothing"
    )


def test_what_was_tried_is_refused_once_and_then_given_up(store: FolderStore) -> None:
    copy = "x  *  2  # mine"
    speeds = {"x + x": 1.0, "x * 2": 1.5, "x.mul(2).contiguous()": 2.0}
    with chat_server(chosen=Model("x + x", "x * 2", copy, "x.mul(2).contiguous()")) as server:
        found = run(server, store, by_body(speeds), rounds=1, beam=1)
    assert len(found) == 3
    assert "has been tried already" in text_of(server.requests[-1])
    assert "fuse both passes" in str(server.requests[-1]["messages"])

    other = FolderStore(store.folder.parent / "other")
    with chat_server(chosen=Model("x + x", "x * 2", copy, copy, "never")) as server:
        assert len(run(server, other, by_body(speeds), rounds=1, beam=1)) == 2
    assert any("nothing new" in event["data"].get("text", "") for event in other.events())


def test_branches_are_told_of_each_other_and_rounds_end_without_gain(store: FolderStore) -> None:
    bodies = [
        "x + x",
        "x * 2",
        *(f"x.mul(2).clone().{name}()" for name in ("sin", "cos", "tan", "exp", "abs", "neg")),
    ]
    with chat_server(chosen=Model(*bodies)) as server:
        found = run(
            server, store, by_body(dict.fromkeys(bodies, 1.0)), rounds=9, beam=1, branches=2, patience=2
        )
    assert len(found) == 2 + 2 * 2
    critics = [text_of(request) for request in server.requests if is_critic(request)]
    assert ["Somebody else is working on these" in text for text in critics] == [False, True, False, True]
    assert any("the search ends after round 2" in event["data"].get("text", "") for event in store.events())


def test_later_rounds_ask_for_the_worst_shapes_and_show_no_hidden_ones(store: FolderStore) -> None:
    rows = [row({"rows": n}, 2.0 if n < 100 else 0.9) for n in (1, 2, 3, 100, 200, 300)]
    hidden = [row({"rows": 777}, 9.0, "validation"), row({"rows": 888}, 9.0, "held_out")]
    verdict = accepted_at(rows + hidden)
    with chat_server(chosen=Model("x + x", "x * 2", "2 * x.clone()", "x.mul(2).abs()")) as server:
        run(server, store, lambda _: verdict, rounds=2, beam=1, patience=9)
    first, second = [
        text_of(request) for request in server.requests if "The change to make" in text_of(request)
    ]
    assert "shapes to win" not in first.lower()
    assert re.search(r": shapes to win>\nrows > 3\nrows=100\nrows=200\nrows=300\n</data", second)
    assert "1.00x there and 2.00x elsewhere" in second
    for request in server.requests:
        # Without the digests of data blocks, which may hold any digits.
        shown = re.sub(r"data [0-9a-f]{24}", "data", json.dumps(request))
        assert "777" not in shown
        assert "888" not in shown


def by_prompt(request: dict[str, Any]) -> Answer:
    """A model that answers by the prompt alone, so that the order in which requests come decides nothing."""
    if is_critic(request):
        return Answer(DIAGNOSIS)
    number = number_of(json.dumps(request["messages"]))
    names = ("sin", "cos", "exp", "abs", "neg", "tanh")
    calls = ".".join(f"{names[number // 6**place % 6]}()" for place in range(4))
    return Answer(f"```python\n{file(f'x.{calls} * {number}')}```")


def messages_of(server: ChatServer) -> list[str]:
    return sorted(json.dumps(request["messages"]) for request in server.requests)


def test_a_resumed_search_asks_nothing_again_and_the_same_job_gives_the_same_prompts(tmp_path: Path) -> None:
    stores = [FolderStore(tmp_path / name) for name in ("one", "two")]
    prompts = []
    options: dict[str, Any] = {"rounds": 2, "beam": 3, "branches": 2, "patience": 9}
    for one in stores:
        one.finish_step("describe", DESCRIPTION.as_json())
        for number in range(8):  # enough buckets for draws to differ
            earlier = Candidate(file(f"x * 2 + {number} - {number}"), "human", f"library {number}")
            one.add_candidate(earlier)
            one.add_verdict(earlier.sha256, "screen", from_json(accepted(0.3 * 1.2**number)))
        with chat_server(chosen=by_prompt) as server:
            first = run(server, one, by_source, **options)
        prompts.append(messages_of(server))
    assert len(first) >= 10
    assert prompts[0] == prompts[1], "the seed decides the draws"
    late = Candidate(file("x * 99"), "external", "late")
    stores[0].add_candidate(late)
    stores[0].add_verdict(late.sha256, "screen", from_json(accepted(99.0, 99.0)))
    with chat_server(Answer(status=400, message="nobody should ask")) as server:
        again = run(server, stores[0], by_source, **options)
    assert server.requests == []
    assert again == first

    choice = ModelChoice("m-1", base_url="http://127.0.0.1:1/v1", samples=2)
    strategy = Strategy(seed=1, tune=False, **options)
    replayed = replay(JobSpec("job", "twice", TASK, models=(choice,), strategy=strategy), stores[0])
    assert replayed.same
    assert len(replayed.prompts) == len(prompts[0])
    for path in (stores[0].folder / "verdicts").iterdir():
        path.write_text(path.read_text().replace('"speedup": 1.', '"speedup": 2.'))
    assert not replay(JobSpec("job", "twice", TASK, models=(choice,), strategy=strategy), stores[0]).same


def slowly(request: dict[str, Any]) -> Answer:
    answer = (
        Answer("1. Read x once.") if text_of(request).startswith("Plan this change") else by_prompt(request)
    )
    return replace(answer, delay_s=0.1)


@pytest.mark.slow
def test_a_search_killed_at_random_instants_pays_once_and_asks_the_same(tmp_path: Path) -> None:
    seed = int(os.environ.get("KERNELWRIGHT_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"KERNELWRIGHT_TEST_SEED={seed}")
    chance = random.Random(seed)
    whole, killed = FolderStore(tmp_path / "whole"), FolderStore(tmp_path / "killed")
    with chat_server(chosen=slowly) as server:
        search_job.main(whole.folder, server.base_url)
        asked = len(server.requests)
    kills = 0
    with chat_server(chosen=slowly) as server:
        command = [
            sys.executable,
            "-m",
            "tests.agent.strategy.search_job",
            str(killed.folder),
            server.base_url,
        ]
        while killed.step("done") is None:
            before = len(server.requests)
            with subprocess.Popen(command) as process:
                while (
                    process.poll() is None and len(server.requests) == before and killed.step("done") is None
                ):
                    time.sleep(0.02)
                try:
                    process.wait(chance.uniform(0.05, 1.0) if kills < 8 else 60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
        paid = len(server.requests)
    assert kills >= 3, "it was hardly disturbed"
    assert killed.candidates() == whole.candidates()
    one, other = Records(whole), Records(killed)
    assert [one.prompt(name)["messages"] for name in one.requests()] == [  # type: ignore[index]
        other.prompt(name)["messages"]
        for name in other.requests()  # type: ignore[index]
    ]
    lost = sum(len(other.lost(name)) for name in other.requests())
    assert asked <= paid <= asked + lost, "what was answered and stored is never asked again"
    assert all(other.outcome(name) is not None for name in other.requests())
    killed.finish_step("describe", DESCRIPTION.as_json())
    spec = JobSpec(
        "job",
        "twice",
        TASK,
        models=tuple(search_job.models("http://127.0.0.1:1/v1")),
        strategy=search_job.STRATEGY,
    )
    assert replay(spec, killed).same


def test_the_search_ends_with_the_budget(store: FolderStore) -> None:
    budget = Budget(tokens=9000)
    with chat_server(chosen=by_prompt) as server:
        run(server, store, by_source, budget=budget, rounds=9, beam=4, branches=4, patience=9)
        assert any(map(is_critic, server.requests)), "it came to the search"
    assert Records(store).spent().tokens <= 9000
    assert any("budget for models is spent" in event["data"].get("text", "") for event in store.events())
    assert {int(name.split("/")[2]) for name in store.steps("search/llm/")} < set(range(1, 10))


def test_parents_of_a_round_are_asked_about_at_once(store: FolderStore) -> None:
    arrived_s: list[float] = []

    def model(request: dict[str, Any]) -> Answer:
        if not is_critic(request):
            return by_prompt(request)
        arrived_s.append(time.monotonic())
        return Answer(DIAGNOSIS, delay_s=2.0)

    for body in ("x.sin().exp() * 3", "x.cos().abs().neg() - 1"):
        one = Candidate(file(body), "human", body)
        store.add_candidate(one)
        store.add_verdict(one.sha256, "screen", from_json(accepted(1.0 + len(body) / 10)))
    with chat_server(chosen=model) as server:
        run(server, store, lambda _: rejected("not_judged"), rounds=1, beam=2)
    assert len(arrived_s) == 2
    assert arrived_s[1] - arrived_s[0] < 1.5, "the second did not wait for the answer to the first"


def test_the_model_that_brings_more_for_its_price_gets_the_rounds(store: FolderStore) -> None:
    with chat_server(chosen=by_prompt) as server:
        models = [
            ModelChoice(name, base_url=server.base_url, usd_per_million_output_tokens=usd)
            for name, usd in (("dear", 1000.0), ("cheap", 1.0))
        ]
        strategy = Strategy(rounds=3, beam=2, patience=9, seed=1, tune=False)
        context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store)  # type: ignore[arg-type]
        for candidate in LLMProposer(models, Budget(), strategy=strategy).propose(context):
            store.add_candidate(candidate)
            store.add_verdict(candidate.sha256, "screen", from_json(accepted(1.5, 1.5)))
    asked = [request["model"] for request in server.requests if is_critic(request)]
    assert asked
    assert set(asked) == {"cheap"}
    assert "dear" in {request["model"] for request in server.requests}


@pytest.mark.parametrize("label", ["", "memory", "launch"])
def test_a_prompt_holds_notes_on_each_bottleneck_once(store: FolderStore, label: str) -> None:
    """The reference's as the profile has it in first attempts, a file's as the critic names it in rounds."""
    store.finish_step("background.architecture", "cpu-avx2")
    if label:
        store.finish_step(PROFILE_STEP, {"label": label, "sentences": [f"The bottleneck is {label}."]})
    with chat_server(chosen=by_prompt) as server:
        run(server, store, lambda _: accepted(1.5, 1.5), rounds=1, beam=1)
    first, last = text_of(server.requests[0]), text_of(server.requests[-1])
    titles = {name: notes_for(name, "cpu-avx2", limit=2)[0].title for name in ("memory", "launch")}
    for name, title in titles.items():
        assert first.count(f"### {title}\n") == (name == label)
        assert last.count(f"### {title}\n") == (name == "memory")
    assert (f"The bottleneck is {label}." in first) == bool(label)


def test_a_kernel_alone_is_shown_to_be_ported_and_a_candidate_is_not(store: FolderStore) -> None:
    kernel = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    with chat_server(chosen=Model("x + x", "x * 2")) as server:
        run(server, store, by_body({}), start_from=kernel)
    assert kernel in str(server.requests[0]["messages"][1]["content"])
    assert "written in cuda" in str(server.requests[0]["messages"][1]["content"])
    other = FolderStore(store.folder.parent / "other")
    with chat_server(chosen=Model("x + x", "x * 2")) as server:
        run(server, other, by_body({}), start_from=file("x * 7"))
    assert "x * 7" not in json.dumps(server.requests)


def test_a_strategy_travels_with_its_job() -> None:
    spec = JobSpec("job", "name", TASK, strategy=Strategy(rounds=3, beam=4, seed=5))
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert JobSpec("job", "name", TASK).strategy.rounds > 0
    with pytest.raises(ValueError, match="beam is 5"):
        Strategy(beam=5)
