"""A run that is killed by SIGKILL in the middle of a stage, and goes on: the same steps, draws, weights and databases as without."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from evaluator.sources import sha256_of
from rl.rows import read_rows
from rl.tasks import of_step
from tests.rl.training import runs
from tests.rl.training.world import MACHINE, TASK, contrastive_stage, selfsup_stage, sft_stage, world

DIGEST = sha256_of(TASK)


@pytest.mark.slow
def test_supervised_training_goes_on_at_its_step(tmp_path: Path) -> None:
    at = world(tmp_path)
    stage = sft_stage(at, "killed")
    assert runs.train(stage, kill_at_step=3).signal == signal.SIGKILL
    assert [line[0] for line in runs.figures(stage.output)] == [1, 2]
    refused = runs.train(stage)
    assert refused.error == "CheckpointError"
    assert "holds a run already; go on with it by --resume auto" in refused.text
    assert runs.train(stage, resume=True).error == ""
    whole = sft_stage(at, "whole")
    assert runs.train(whole).error == ""
    assert [line[0] for line in runs.figures(stage.output)] == [1, 2, 3, 4, 5]
    assert runs.figures(stage.output) == runs.figures(whole.output)
    assert runs.same_weights(stage.output, whole.output)


@pytest.mark.slow
def test_rounds_go_on_in_their_training_and_in_their_judging(trained: Path) -> None:
    model = trained / "sft" / "checkpoint"
    whole = selfsup_stage(trained, "whole-rounds", model)
    undisturbed = runs.train(whole)
    assert undisturbed.error == ""
    killed = selfsup_stage(trained, "killed-rounds", model)
    first = runs.train(killed, at={2: "kill"})  # the first of the round is judged, the second is under way
    assert first.signal == signal.SIGKILL
    assert runs.train(killed, resume=True, kill_at_step=3).signal == signal.SIGKILL
    last = runs.train(killed, resume=True)
    assert last.error == ""
    assert read_rows(killed.output / "successes.jsonl") == read_rows(whole.output / "successes.jsonl")
    assert runs.figures(killed.output) == runs.figures(whole.output)
    assert runs.samples(killed.output) == runs.samples(whole.output)
    assert runs.same_weights(killed.output, whole.output)
    # What was judged before is not judged again.
    assert len(last.asked) < len(undisturbed.asked)


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
def test_a_machine_that_the_first_verdict_tells_is_known_alike_after_a_kill(trained: Path) -> None:
    model = trained / "sft" / "checkpoint"
    stages = []
    for name in ("told", "told-killed"):
        stage = contrastive_stage(trained, name, model, steps=4)
        # As with a service: nobody knows the type of machine before the first verdict.
        fleet = stage.fleet.model_copy(update={"machine": None, "url": "http://127.0.0.1:9"})
        stages.append(stage.model_copy(update={"fleet": fleet}))
    assert runs.train(stages[0]).error == ""
    assert runs.train(stages[1], kill_at_step=2).signal == signal.SIGKILL
    assert runs.train(stages[1], resume=True).error == ""
    assert runs.asked(stages[1].output) == runs.asked(stages[0].output)
    assert "## Measured before" in runs.asked(stages[0].output)[4]["prompts"][0]
