"""A world and a model in it that writes programs, made once for all tests here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.rl.training import runs
from tests.rl.training.world import contrastive_stage, sft_stage, world


@pytest.fixture(autouse=True)
def _trl() -> None:
    # Looked for and not loaded: the fork server loads it once, and the process of the tests never.
    if importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed (kernelwright[rl])")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world whose `sft/checkpoint` writes programs."""
    at = world(tmp_path_factory.mktemp("trained"))
    ended = runs.train(sft_stage(at, "sft", steps=85, batch=6, save_every=1000))
    assert ended.error == "", ended.text
    return at


@pytest.fixture(scope="session")
def whole_run(trained: Path) -> Path:
    """The folder of GRPO that nothing has disturbed: what others are held against."""
    stage = contrastive_stage(trained, "whole", trained / "sft" / "checkpoint")
    ended = runs.train(stage)
    assert ended.error == "", ended.text
    return stage.output
