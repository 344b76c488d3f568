"""What several ranks must do together: checkpoints with the files of all, and an end after the same step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl import checkpoints
from rl.errors import ConfigError
from rl.ranks import Ranks
from tests.rl.training.world import contrastive_stage


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


@pytest.fixture(scope="module")
def trainers() -> Any:
    """It loads TRL, for which collecting the tests need not wait."""
    pytest.importorskip("trl")
    from rl.stages import trainers

    return trainers


def test_a_checkpoint_is_sealed_when_every_rank_has_written_its_part(trainers: Any, tmp_path: Path) -> None:
    class Whole(trainers._WholeCheckpoints, Slow):
        """As `Grpo` and `Sft` are made."""

    trainer = Whole(tmp_path)
    trainer._save_checkpoint(None, None)
    checkpoints.seal(tmp_path / "checkpoint-3", 3, {})
    trainer._others_come()  # without the wait this is when the other rank ends
    assert checkpoints.whole(tmp_path / "checkpoint-3") is not None


@pytest.mark.parametrize("own", [False, True])
def test_all_ranks_end_after_the_same_step(trainers: Any, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """A signal reaches ranks in different steps: one that goes on alone would wait for the others for hours."""
    from transformers import TrainerState

    monkeypatch.setattr("rl.stages.trainers.asked_to_stop", lambda: own)
    monkeypatch.setattr(Ranks, "all", lambda _, found: [*found, (not own, 2.5)])
    stage: Any = SimpleNamespace(steps=9)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    keeper = trainers.Keeper(trainers.Ledger(stage, None))
    keeper.on_step_end(None, TrainerState(global_step=1), control)
    assert control.should_save and control.should_training_stop
    # Of the rank that has needed most.
    assert keeper._known["peak_memory_gib"] >= 2.5


def rank(number: int, count: int) -> Ranks:
    """A rank of several, as it sees itself."""
    made = Ranks.__new__(Ranks)
    made._state = SimpleNamespace(process_index=number, num_processes=count)
    return made


@pytest.mark.parametrize(
    ("total", "count", "shares"),
    [(4, 1, [4]), (4, 4, [1, 1, 1, 1]), (6, 4, [2, 2, 1, 1]), (8, 3, [3, 3, 2]), (2, 4, [1, 1, 1, 1])],
)
def test_what_all_ranks_use_at_once_is_shared_out_whole(total: int, count: int, shares: list[int]) -> None:
    assert [rank(number, count).share_of(total) for number in range(count)] == shares


def test_no_rank_gets_a_part_of_a_group(trainers: Any) -> None:
    assert trainers.batches(16, None, 2, 4) == (8, 1)
    assert trainers.batches(16, 3, 2, 4) == (2, 4)
    for total, ranks in ((4, 2), (12, 2), (16, 3), (8, 4)):
        with pytest.raises(ConfigError, match=f"multiple of {ranks * 4}$"):
            trainers.batches(total, None, ranks, 4)
    # It is groups that must not be cut: other sequences may be shared out one by one.
    assert trainers.batches(12, None, 2) == (6, 1)


def test_a_stage_whose_groups_ranks_would_cut_is_refused_as_a_wrong_setting(
    trainers: Any, tmp_path: Path
) -> None:
    from rl.stages import contrastive

    stage: Any = contrastive_stage(tmp_path, "cut", None, tasks_a_step=1, group=4)
    state: Any = SimpleNamespace(tasks={})
    with pytest.raises(ConfigError, match="whole groups"):
        contrastive._trainer(stage, "", None, (), state, rank(0, 2))
