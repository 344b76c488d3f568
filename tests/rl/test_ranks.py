"""What several ranks must do together: checkpoints with the files of all, and an end after the same step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

from rl import checkpoints
from rl.ranks import Ranks
from rl.stages.trainers import Keeper, Ledger, _WholeCheckpoints


class Slow:
    """A rank whose checkpoint is complete only when all ranks have come: another one is still at its random state."""

    def __init__(self, folder: Path) -> None:
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=3, is_world_process_zero=True)
        self.accelerator = SimpleNamespace(wait_for_everyone=self._others_come)
        self._folder = folder / "checkpoint-3"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._folder.mkdir()
        (self._folder / "rng_state_0.pth").write_bytes(b"first")
        (self._folder / "rng_state_1.pth").write_bytes(b"sec")

    def _others_come(self) -> None:
        (self._folder / "rng_state_1.pth").write_bytes(b"second")


class Whole(_WholeCheckpoints, Slow):
    """As `Grpo` and `Sft` are made."""


def test_a_checkpoint_is_sealed_when_every_rank_has_written_its_part(tmp_path: Path) -> None:
    trainer = Whole(tmp_path)
    trainer._save_checkpoint(None, None)
    checkpoints.seal(tmp_path / "checkpoint-3", 3, {})
    trainer._others_come()  # without the wait this is when the other rank ends
    assert checkpoints.whole(tmp_path / "checkpoint-3") is not None


@pytest.mark.parametrize("own", [False, True])
def test_all_ranks_end_after_the_same_step(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """A signal reaches ranks in different steps: one that goes on alone would wait for the others for hours."""
    monkeypatch.setattr("rl.stages.trainers.asked_to_stop", lambda: own)
    monkeypatch.setattr(Ranks, "all", lambda _, found: [*found, (not own, 2.5)])
    stage: Any = SimpleNamespace(steps=9)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    keeper = Keeper(Ledger(stage, None))
    keeper.on_step_end(None, SimpleNamespace(global_step=1), control)
    assert control.should_save and control.should_training_stop
    # Of the rank that has needed most.
    assert keeper._known["peak_memory_gib"] >= 2.5
