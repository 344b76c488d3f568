"""Folders of runs: whole checkpoints and parts of them, other settings, other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl.checkpoints import claim, clear_after, newest, owned, replaced, seal, whole, write_json
from rl.config import SelfsupStage, parse
from rl.errors import CheckpointError


def stage(output: Path, **more: object):  # type: ignore[no-untyped-def]
    return parse({"stage": "contrastive", "name": "x", "output": str(output), "steps": 3, **more}, "x")


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.bin").write_bytes(b"w" * 100)
    seal(path, step, {"snapshot": step})
    return path


def test_the_newest_whole_checkpoint_counts_and_parts_do_not(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (2, 10):
        checkpoint(tmp_path, step)
    half = tmp_path / "checkpoint-12"
    half.mkdir()
    (half / "model.bin").write_bytes(b"w")
    found = newest(tmp_path)
    assert found is not None
    assert (found.step, found.record) == (10, {"snapshot": 10})
    clear_after(tmp_path, whole(tmp_path / "checkpoint-2"))
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint-2"]


@pytest.mark.parametrize("damage", ["shorter", "missing", "seal"])
def test_a_damaged_checkpoint_is_none(tmp_path: Path, damage: str) -> None:
    path = checkpoint(tmp_path, 4)
    if damage == "shorter":
        (path / "model.bin").write_bytes(b"w" * 99)
    elif damage == "missing":
        (path / "model.bin").unlink()
    else:
        (path / "run.json").write_text('{"step": 4, "files": [', "utf-8")
    assert whole(path) is None
    assert newest(tmp_path) is None


def test_a_run_goes_on_with_its_own_settings_alone(tmp_path: Path) -> None:
    claim(stage(tmp_path), resume=False)
    checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"holds a run already; go on with it by --resume auto"):
        claim(stage(tmp_path), resume=False)
    claim(stage(tmp_path, steps=9, save_every=1, fleet={"width": 3}), resume=True)
    with pytest.raises(CheckpointError, match=r"other settings \(group, seed\)"):
        claim(stage(tmp_path, seed=1, group=4), resume=True)


def test_a_run_that_began_before_a_setting_was_there_goes_on(tmp_path: Path) -> None:
    claim(stage(tmp_path), resume=False)
    checkpoint(tmp_path, 1)
    known = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del known["reward"]["best_of"], known["reward"]["scaled"], known["judge"]
    (tmp_path / "config.json").write_text(json.dumps(known), "utf-8")
    claim(stage(tmp_path), resume=True)
    (tmp_path / "config.json").write_text(json.dumps(known), "utf-8")
    with pytest.raises(CheckpointError, match=r"other settings \(reward\)"):
        claim(stage(tmp_path, reward={"best_of": 2}), resume=True)
    (tmp_path / "config.json").write_text(json.dumps({**known, "gone": 1}), "utf-8")
    with pytest.raises(CheckpointError, match=r"other settings \(gone"):
        claim(stage(tmp_path), resume=True)


def test_a_run_whose_settings_are_gone_is_nobodys(tmp_path: Path) -> None:
    claim(stage(tmp_path), resume=False)
    checkpoint(tmp_path, 1)
    (tmp_path / "config.json").unlink()
    for resume in (True, False):
        with pytest.raises(CheckpointError, match="holds parts of a run without its settings"):
            claim(stage(tmp_path, seed=2), resume=resume)


def test_rounds_keep_their_lengths(tmp_path: Path) -> None:
    def rounds(steps: int) -> SelfsupStage:
        found = parse(
            {"stage": "selfsup", "name": "x", "output": str(tmp_path), "rounds": 2, "steps": steps}, "x"
        )
        assert isinstance(found, SelfsupStage)
        return found

    claim(rounds(4), resume=False)
    (tmp_path / "round-1").mkdir()
    claim(rounds(4), resume=True)
    with pytest.raises(CheckpointError, match=r"other settings \(steps\)"):
        claim(rounds(8), resume=True)


def test_a_folder_where_nothing_was_learned_is_free(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()  # a fresh model of other settings
    claim(stage(tmp_path), resume=False)
    (tmp_path / "metrics.jsonl").touch()
    claim(stage(tmp_path, seed=1), resume=False)
    assert not (tmp_path / "base").exists()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n', "utf-8")
    with pytest.raises(CheckpointError, match="holds a run already"):
        claim(stage(tmp_path, seed=1), resume=False)


def test_a_folder_has_one_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rl.checkpoints import owned\n"
        f"with owned(Path({str(tmp_path)!r})): pass\n"
    )
    with owned(tmp_path):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "another process is training in" in ended.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    with replaced(target) as part:
        (part / "model.bin").write_bytes(b"first")

    def fill() -> None:
        with replaced(target) as part:
            (part / "model.bin").write_bytes(b"sec")
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        fill()
    assert (target / "model.bin").read_bytes() == b"first"
    assert whole(target) is not None
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]


def test_a_number_that_json_has_not_is_no_half_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert (tmp_path / "a.json").read_text("utf-8").strip().startswith('{\n "a": 1')


@pytest.mark.parametrize("fleet", [{"device": "cpu"}, {"shapes": {"visible": [{"rows": 8}]}}])
def test_what_verdicts_are_about_stays_as_it_was(tmp_path: Path, fleet: dict[str, object]) -> None:
    """Kept verdicts say nothing of other shapes, and prompts name the device."""
    claim(stage(tmp_path), resume=False)
    checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointError, match=rf"other settings \(fleet.{next(iter(fleet))}\)"):
        claim(stage(tmp_path, fleet=fleet), resume=True)
