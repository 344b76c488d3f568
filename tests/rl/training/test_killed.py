"""A run that is killed by SIGKILL in the middle of a stage, and goes on: the same steps, draws, weights and databases as without.

The quick tests of it are in `test_stops.py`.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rl.rows import read_rows
from tests.rl.training import runs
from tests.rl.training.world import contrastive_stage, selfsup_stage, sft_stage, world


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
