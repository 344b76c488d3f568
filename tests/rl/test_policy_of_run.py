"""A run's `checkpoint/` as the agent's policy: asked by the agent's own proposer, with the prompt of a real task."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from agent.job import run_job
from agent.messages import Message
from agent.prompts.sizes import listed, shape_words, space_text
from agent.proposers.registry import proposers_for
from agent.proposing import ProposalContext
from agent.records import Records
from agent.spec import Budget, JobSpec, ModelChoice
from agent.stores.folder import FolderStore
from evaluator.description import Description
from evaluator.sources import TaskSource
from evaluator.verdict import from_json
from kernelbench_tasks import catalog
from rl.prompts import read_answer
from rl.rows import Row, ShownRow, answer_of, messages_of, prompt_of
from tests.agent.strategy.judging import accepted
from tests.rl.training.world import FRESH, PROGRAM, sft_stage

TASK = TaskSource("row_sum", catalog.load("row_sum").source)
DESCRIPTION = Description(
    dims={
        "rows": {"min": 1, "max": 16384, "multiple_of": 1, "default": 512},
        "cols": {"min": 8, "max": 8192, "multiple_of": 1, "default": 1024},
    },
    shapes={"visible": [{"rows": 512, "cols": 1024}, {"rows": 28, "cols": 19}], "adversarial": []},
)
ROW = Row(
    id="1",
    task=TASK.name,
    source=TASK.source,
    device="cpu",
    candidate=PROGRAM.format("x.sum(dim=1)"),
    dims=space_text(DESCRIPTION.dims),
    shapes=listed(map(shape_words, DESCRIPTION.shapes["visible"])),
)


@pytest.fixture(autouse=True)
def _transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (kernelwright[rl])")


def fresh(run: Path, **settings: Any) -> Path:
    """A run's folder with a model that nobody has trained as its `checkpoint/`."""
    from rl.checkpoints import FINAL
    from rl.models import make_fresh

    stage = sft_stage(
        run, "sft", model={"fresh": {**FRESH, **settings}, "vocabulary": 4096, "precision": "fp32"}
    )
    # Twice, so that each line becomes a token.
    base = make_fresh(stage, [prompt_of(ROW) + answer_of(ROW)] * 2)
    shutil.copytree(base, stage.output / FINAL)
    return stage.output / FINAL


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh(tmp_path_factory.mktemp("untrained"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that knows one row: asked as it was trained it answers with that row's program."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fresh(tmp_path_factory.mktemp("trained"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    given = tokenizer(prompt_of(ROW), return_tensors="pt")["input_ids"]
    answer = tokenizer(answer_of(ROW) + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    tokens = torch.cat([given, answer], dim=1)
    labels = tokens.clone()
    labels[:, : given.shape[1]] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(400):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=labels).loss
        if loss.item() < 0.02:
            break
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def job(checkpoint: Path, **settings: Any) -> JobSpec:
    choice = ModelChoice(
        str(checkpoint), **{"provider": "policy", "origin": "policy", "max_tokens": 200, **settings}
    )
    return JobSpec("job", "row_sum", TASK, origins=("policy",), models=(choice,), budget=Budget())


def proposed(spec: JobSpec, store: FolderStore) -> list[Candidate]:
    """What the job's proposers propose; nothing is judged, as if the machinery had failed at each."""
    # The proposers of a policy ask nothing of the referee.
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store)  # type: ignore[arg-type]
    return [candidate for proposer in proposers_for(spec) for candidate in proposer.propose(context)]


def sent(store: FolderStore, request: str = "policy/1/1/1") -> list[Message]:
    """What the model was sent for a request."""
    recorded = Records(store, "policy/").prompt(request)
    assert recorded is not None
    return [Message(**message) for message in recorded["messages"]]


def counts(store: FolderStore) -> dict[str, int]:
    """What replies were good for."""
    found: dict[str, int] = {}
    for event in store.events():
        found.update(event["data"].get("counts") or {})
    return found


def failures(store: FolderStore) -> list[str]:
    return [one["data"]["reason"] for one in store.events() if one["name"] == "proposer.failed"]


def test_the_agents_first_prompt_to_a_policy_is_the_one_that_it_was_trained_on(
    untrained: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    proposed(job(untrained, max_tokens=4), store)
    assert sent(store) == messages_of(ROW)


def test_what_training_has_not_shown_is_not_told_either(untrained: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)

    class Known:
        def of_profile(self, limit: int) -> str:
            return "## Where the time goes\n\nIn memory."

        def of_memory(self) -> str:
            return "## Lessons\n\nFuse."

    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store, background=Known())  # type: ignore[arg-type]
    for proposer in proposers_for(job(untrained, max_tokens=4)):
        assert list(proposer.propose(context)) == []
    assert sent(store) == messages_of(ROW)


def test_another_model_is_not_asked_for_an_answer_in_parts(untrained: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    spec = job(untrained, origin="llm", max_tokens=4)
    choice = spec.models[0]
    proposed(JobSpec("job", "row_sum", TASK, origins=("llm",), models=(choice,)), store)
    recorded = Records(store, "llm/").prompt("llm/1/1/1")
    assert recorded is not None
    text = recorded["messages"][-1]["content"]
    assert TASK.source in text
    assert "### Design" not in text


def test_a_trained_checkpoint_answers_the_agent_with_a_candidate(trained: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    found = proposed(job(trained), store)
    assert [(one.origin, one.source) for one in found] == [("policy", ROW.candidate)]
    assert found[0].label == f"{trained} #1"
    assert counts(store) == {"candidate": 1}
    reply = Records(store, "policy/").outcome("policy/1/1/1")
    assert reply is not None
    assert read_answer(reply.text).in_form  # type: ignore[union-attr]


@pytest.mark.parametrize("tokens", [1, 60])
@pytest.mark.parametrize(("temperature", "asked"), [(None, 1), (1.0, 2)])
def test_a_checkpoint_that_writes_no_program_gives_none_and_says_why(
    untrained: Path, tmp_path: Path, tokens: int, temperature: float | None, asked: int
) -> None:
    store = FolderStore(tmp_path)
    assert proposed(job(untrained, max_tokens=tokens, temperature=temperature), store) == []
    found = counts(store)
    assert set(found) <= {"empty", "truncated", "no_code", "no_class", "syntax"}
    assert sum(found.values()) == asked, "once more the same, where another answer may come of it"
    assert failures(store) == []


def test_what_the_agent_asks_next_is_a_prompt_of_training_too(trained: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    context = ProposalContext(TASK, DESCRIPTION, "cpu", None, store)  # type: ignore[arg-type]
    for proposer in proposers_for(job(trained)):
        for candidate in proposer.propose(context):
            store.add_candidate(candidate)
            store.add_verdict(candidate.sha256, "screen", from_json(accepted(1.4)))
    shown = ShownRow(source=ROW.candidate, speedup=1.4)
    assert sent(store, "policy/1/1/2") == messages_of(ROW.model_copy(update={"shown": (shown,)}))


class Describing:
    """Describes the task and judges nothing: no program comes as far."""

    def describe(self, *_: Any, **__: Any) -> Description:
        return DESCRIPTION

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing was proposed, and the referee was asked to {name}")


@pytest.mark.parametrize("reads", [16, 64])
def test_a_prompt_longer_than_the_checkpoint_reads_ends_the_proposer_with_a_sentence(
    tmp_path: Path, reads: int
) -> None:
    store = FolderStore(tmp_path / "store")
    spec = job(fresh(tmp_path, max_position_embeddings=reads))
    outcome = run_job(spec, store, Describing(), tmp_path / "out")  # type: ignore[arg-type]
    assert outcome.state == "failed"
    assert store.candidates() == []
    first, last = failures(store)
    assert "more than the checkpoint can read" in first
    assert last.startswith("ProposalFailed: no model answered; ")
    assert all("\n" not in one and "Traceback" not in one for one in (first, last, outcome.reason))


def test_an_answer_gets_the_room_that_the_prompt_leaves(tmp_path: Path) -> None:
    """A prompt that just fits leaves little: the answer is cut off."""
    from transformers import AutoTokenizer

    folder = fresh(tmp_path)
    given = len(AutoTokenizer.from_pretrained(folder)(prompt_of(ROW))["input_ids"])
    shutil.rmtree(tmp_path / "sft")
    folder = fresh(tmp_path, max_position_embeddings=given + 3)
    store = FolderStore(tmp_path / "store")
    assert proposed(job(folder), store) == []
    reply = Records(store, "policy/").outcome("policy/1/1/1")
    assert reply is not None
    assert reply.completion_tokens <= 3  # type: ignore[union-attr]
    assert counts(store) == {"truncated": 1}
