"""What sampling costs: a model that spares memory in training still reads each token once when it samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rl.training import runs
from tests.rl.training.world import contrastive_stage, selfsup_stage


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
    # Nor does who loads the finished model sample slowly.
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
