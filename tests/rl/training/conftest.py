"""A world and a model in it that writes programs, made once for all tests here."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
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
    """A world whose `sft/checkpoint` writes programs. Processes of one test run train it once."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sft"
    at = world(tmp_path_factory.mktemp("trained"))
    with open(shared.with_name("sft.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            ended = runs.train(sft_stage(at, "sft", steps=150, batch=1, save_every=1000))
            assert ended.error == "", ended.text
            shutil.copytree(at / "sft", shared)
    shutil.copytree(shared, at / "sft", dirs_exist_ok=True)
    return at


@pytest.fixture(scope="session")
def whole_run(trained: Path) -> Path:
    """The folder of GRPO that nothing has disturbed: what others are held against."""
    stage = contrastive_stage(trained, "whole", trained / "sft" / "checkpoint")
    ended = runs.train(stage)
    assert ended.error == "", ended.text
    return stage.output
