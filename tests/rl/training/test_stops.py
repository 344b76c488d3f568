"""What stops training, or does not: a kill, evaluators that are gone, verdicts that never come, a full disk, a node that is taken away.

What sampling costs and what a finished model answers is tested here too: only one process of a test run then loads TRL.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from evaluator.sources import sha256_of
from rl.hacks import HackDatabase
from rl.metrics import read_steps
from rl.prompts import read_answer
from rl.rows import prompt_of, read_rows
from rl.tasks import of_step
from tests.rl.training import runs
from tests.rl.training.world import (
    MACHINE,
    OTHER,
    TASK,
    contrastive_stage,
    selfsup_stage,
    sft_stage,
    world,
)

DIGEST = sha256_of(TASK)


def test_contrastive_training_goes_on_in_the_middle_of_a_step(trained: Path, whole_run: Path) -> None:
    killed = contrastive_stage(trained, "killed", trained / "sft" / "checkpoint")
    # The second step's first judging is under way.
    assert runs.train(killed, at={runs.first_call_of(2, whole_run): "kill"}).signal == signal.SIGKILL
    assert [line[0] for line in runs.figures(killed.output)] == [1]
    assert runs.train(killed, resume=True, kill_at_step=4).signal == signal.SIGKILL
    last = runs.train(killed, resume=True)
    assert last.error == ""
    assert runs.asked(killed.output) == runs.asked(whole_run)
    assert runs.figures(killed.output) == runs.figures(whole_run)
    assert runs.samples(killed.output) == runs.samples(whole_run)
    assert runs.database(killed.output, DIGEST, MACHINE) == runs.database(whole_run, DIGEST, MACHINE)
    assert runs.same_weights(killed.output, whole_run)


def test_prompts_show_what_steps_before_have_found(whole_run: Path) -> None:
    """Of their own task, and two steps later: the loader asks a step ahead."""
    shown = {step: "## Measured before" in line["prompts"][0] for step, line in runs.asked(whole_run).items()}
    task = {step: of_step(0, step, 1, ["small", "other"])[0] for step in shown}
    assert shown == {step: task[step] in [task[before] for before in range(1, step - 1)] for step in shown}
    assert shown[4]
    snapshots = runs.database(whole_run, DIGEST, MACHINE)
    assert len(snapshots) == 1 + 1 + 5  # the empty one, the beginning, a step each
    assert not snapshots[1]
    assert snapshots[3]  # each of two tasks was asked for once


@pytest.mark.slow
def test_evaluators_that_die_in_mid_step_stop_training_which_goes_on_as_if_nothing_had_been(
    trained: Path, whole_run: Path
) -> None:
    # Checkpoints are far apart: the step before the one that nobody paid is saved all the same.
    stage = contrastive_stage(trained, "dead", trained / "sft" / "checkpoint", save_every=1000)
    # From the second step's first candidate on nobody answers.
    ended = runs.train(stage, at={runs.first_call_of(2, whole_run): "gone"})
    assert ended.error == "FleetLost"
    assert "no service answers at http://planted" in ended.text
    assert "Nothing is lost: bring the evaluators back and resume from the last checkpoint" in ended.text
    assert [line[0] for line in runs.figures(stage.output)] == [1]
    assert sorted(one.name for one in stage.output.glob("checkpoint-*")) == ["checkpoint-1"]
    # Again dead, in the first step of a run that goes on: there is nothing new to save, and nothing is spoiled.
    assert runs.train(stage, resume=True, at={1: "gone"}).error == "FleetLost"
    assert runs.train(stage, resume=True).error == ""
    assert runs.figures(stage.output) == runs.figures(whole_run)
    assert runs.asked(stage.output) == runs.asked(whole_run)
    assert runs.same_weights(stage.output, whole_run)


@pytest.mark.parametrize("call", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_round_that_is_not_judged_to_its_end_goes_on_as_if_nothing_had_been(
    trained: Path, call: int
) -> None:
    model = trained / "sft" / "checkpoint"
    whole = selfsup_stage(trained, f"round-whole-{call}", model, rounds=1, steps=3, samples=12)
    assert runs.train(whole).error == ""
    stage = selfsup_stage(trained, f"round-dead-{call}", model, rounds=1, steps=3, samples=12)
    ended = runs.train(stage, at={call: "gone"})
    assert ended.error == "FleetLost"
    assert "no service answers at http://planted" in ended.text
    last = runs.train(stage, resume=True)
    assert last.error == ""
    assert read_rows(stage.output / "successes.jsonl") == read_rows(whole.output / "successes.jsonl")
    assert runs.figures(stage.output) == runs.figures(whole.output)
    assert runs.samples(stage.output) == runs.samples(whole.output)
    assert runs.same_weights(stage.output, whole.output)


def test_a_step_without_rewards_leaves_weights_and_optimizer_as_they_are(
    trained: Path, whole_run: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    stage = contrastive_stage(trained, "still", trained / "sft" / "checkpoint", steps=2)
    # The first step gives the optimizer momentum; of the second nothing can be judged.
    assert runs.train(stage, at={runs.first_call_of(2, whole_run): "unjudged"}).error == ""
    rewards = {step: line["rewards"] for step, line in runs.asked(stage.output).items()}
    assert any(rewards[1])
    # What is no program at all is paid nothing without being judged; equal rewards are no advantage either.
    assert {one for one in rewards[2] if one is not None} <= {0.0} and None in rewards[2]
    first, second = (stage.output / f"checkpoint-{step}" for step in (1, 2))
    before, after = (load_file(one / "model.safetensors") for one in (first, second))
    assert all(before[name].equal(after[name]) for name in before)
    states = [torch.load(one / "optimizer.pt", weights_only=True)["state"] for one in (first, second)]
    assert states[0]
    for number, kept in states[0].items():
        assert all(torch.equal(value, states[1][number][name]) for name, value in kept.items())


def test_a_verdict_that_never_comes_is_no_reward_and_training_goes_on(trained: Path, whole_run: Path) -> None:
    step, call = runs.one_of_several(whole_run)
    stage = contrastive_stage(trained, "silent", trained / "sft" / "checkpoint", steps=step)
    # Shorter than a config may have it.
    fleet = stage.fleet.model_copy(update={"patience_s": 0.3})
    ended = runs.train(stage.model_copy(update={"fleet": fleet}), at={call: "silent"})
    assert ended.error == ""
    line = read_steps(stage.output / "metrics.jsonl")[step - 1]
    assert line["missing"] >= 1
    assert line["completions"] == 4
    silent = [one for one in runs.samples(stage.output) if one["reward"] is None]
    assert {one["step"] for one in silent} == {step}
    assert len(silent) == line["missing"]
    assert "no verdict within 0.3 s" in silent[0]["why"]


def test_a_full_disk_at_a_checkpoint_loses_nothing(tmp_path: Path) -> None:
    at = world(tmp_path)
    stage = sft_stage(at, "full", batch=1)
    assert runs.train(stage, kill_at_step=3).signal == signal.SIGKILL
    # Checkpoints of this model take about half a megabyte each file.
    ended = runs.train(stage, resume=True, disk_full=100_000)
    assert ended.error == "CheckpointError"
    assert "the one of step 2 is whole" in ended.text
    assert "MiB are free there" in ended.text
    assert "make room and go on with --resume auto" in ended.text
    assert sorted(one.name for one in stage.output.glob("checkpoint-*")) == ["checkpoint-2"]
    assert runs.train(stage, resume=True).error == ""
    assert [line[0] for line in runs.figures(stage.output)] == [1, 2, 3, 4, 5]


def test_a_node_that_is_taken_away_ends_after_the_step_with_a_checkpoint(
    trained: Path, whole_run: Path
) -> None:
    stage = contrastive_stage(trained, "taken", trained / "sft" / "checkpoint", save_every=1000)
    ended = runs.train(stage, at={runs.first_call_of(2, whole_run): "term"})
    assert ended.error == "Stopped"
    assert "has saved step 2" in ended.text
    assert runs.train(stage, resume=True).error == ""
    assert runs.figures(stage.output) == runs.figures(whole_run)


def test_a_hack_is_learned_and_never_an_exemplar(trained: Path, whole_run: Path) -> None:
    stage = contrastive_stage(trained, "hack", trained / "sft" / "checkpoint", steps=3)
    assert runs.train(stage, at={runs.first_call_of(1, whole_run): "cheat"}).error == ""
    runs.same_curves(stage.output)
    lines = read_steps(stage.output / "metrics.jsonl")
    assert lines[0]["hacks"] >= 1
    caught = next(one for one in runs.samples(stage.output) if one["word"] == "cheating")
    assert caught["caught"] == "the referee: stale_output"
    with HackDatabase(stage.output / "hacks.journal", write=False) as hacks:
        assert hacks.opinion(caught["source"]).word == "caught"
    for text in (TASK, OTHER):
        for members in runs.database(stage.output, sha256_of(text), MACHINE):
            assert caught["source"] not in [one.source for one in members]


@pytest.mark.parametrize("train", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_what_training_makes_is_the_agents_policy(trained: Path, train: str) -> None:
    folder = trained / "sft" / "checkpoint"
    if train == "lora":
        stage = contrastive_stage(trained, "lora", folder, steps=1)
        part = stage.model.model_copy(update={"train": "lora", "lora_rank": 2})
        stage = stage.model_copy(update={"model": part})
        assert runs.train(stage).error == ""
        folder = stage.output / "checkpoint"
        assert "model.embed_tokens.weight" in runs.weights(stage.output)  # whole, without adapters
    text, finish = runs.answer(folder, prompt_of(read_rows(trained / "pairs.jsonl")[0]))
    assert finish == "stop"
    answer = read_answer(text)
    assert answer.in_form
    assert answer.source is not None
    assert "class ModelNew" in answer.source


@pytest.mark.slow
@pytest.mark.parametrize("train", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_a_sampled_token_is_read_once_though_training_spares_memory(
    trained: Path, tmp_path: Path, train: str
) -> None:
    stage = contrastive_stage(trained, f"sparing-{train}", trained / "sft" / "checkpoint", steps=1)
    spared = {"gradient_checkpointing": True, "train": train}
    stage = stage.model_copy(update={"model": stage.model.model_copy(update=spared)})
    ended = runs.train(stage, reads=tmp_path / "reads")
    assert ended.error == "", ended.text
    prompt, *others = map(int, (tmp_path / "reads").read_text("utf-8").split())
    assert prompt > 1
    assert len(others) > 3
    assert set(others) == {1}
    # The finished model samples with its cache, too.
    for name in ("config.json", "generation_config.json"):
        assert json.loads((stage.output / "checkpoint" / name).read_text("utf-8"))["use_cache"] is True


def test_selfsup_samples_with_the_cache_whatever_a_checkpoint_says(trained: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    for file in (trained / "sft" / "checkpoint").iterdir():
        (slow / file.name).write_bytes(file.read_bytes())
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((slow / name).read_text("utf-8"))
        (slow / name).write_text(json.dumps({**settings, "use_cache": False}), "utf-8")
    ended = runs.train(selfsup_stage(trained, "slow", slow, rounds=1, steps=1), reads=tmp_path / "reads")
    assert ended.error == "", ended.text
    found = list(map(int, (tmp_path / "reads").read_text("utf-8").split()))
    assert found.count(1) > len(found) // 2
