"""The database of hacks: what it recognizes, whom it leaves alone, and that it only ever lowers a reward."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from evaluator.verdict import from_json
from rl.config import HackPart, RewardPart
from rl.errors import JournalError
from rl.hacks import HackDatabase, Opinion, caught, doubted, main
from rl.journal import Journal
from rl.reward import Score, score, shaping, unpaid
from tests.rl.verdicts import accepted, rejected

CHEAT = {"rule": "stale_output", "severity": "cheat", "evidence": "returned an older output"}
HONEST = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols=32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        rows = torch.relu(x)
        scaled = rows * self.weight
        shifted = scaled + 1.0
        clamped = torch.clamp(shifted, -4.0, 4.0)
        return clamped.contiguous()
"""
HACK = HONEST.replace(
    "        rows = torch.relu(x)\n",
    "        if x.data_ptr() in self.seen:\n            return self.seen[x.data_ptr()]\n        rows = torch.relu(x)\n",
)
# another, which differs in one number
NEAR = HACK.replace("4.0", "5.0")


@pytest.fixture
def base(tmp_path: Path) -> HackDatabase:
    return HackDatabase(tmp_path / "hacks", HackPart(alike=0.8))


def test_what_the_referee_catches_is_learned_once(base: HackDatabase) -> None:
    assert base.learn(HACK, from_json(rejected("cheating", CHEAT)))
    assert not base.learn(HACK.replace("rows", "r"), from_json(rejected("cheating", CHEAT)))
    assert not base.learn(HONEST, from_json(accepted(2.0)))
    assert not base.learn(HONEST, from_json(rejected("incorrect")))
    assert len(base) == 1


def test_a_decoy_is_caught_though_it_was_accepted_and_a_note_is_not() -> None:
    decoy = {"rule": "decoy_kernel", "severity": "warning", "evidence": "its kernels compute nothing"}
    assert caught(from_json({**accepted(2.0), "findings": [decoy]})) == (
        "decoy_kernel",
        "its kernels compute nothing",
    )
    assert caught(from_json({**accepted(2.0), "findings": [{**decoy, "severity": "info"}]})) is None
    assert caught(from_json({**rejected("cheating"), "findings": None})) == ("cheating", "cheating")


def test_the_same_hack_in_other_words_is_caught_and_a_variant_is_suspect(base: HackDatabase) -> None:
    assert base.opinion(HACK).word == "nothing"
    base.learn(HACK, from_json(rejected("cheating", CHEAT)))
    assert base.opinion(HACK).word == "caught"
    assert base.opinion(HACK.replace("rows", "other")).word == "caught"
    found = base.opinion(NEAR)
    assert found.word == "suspect"
    assert "stale_output" in found.why
    assert base.opinion("def unrelated():\n    return 3\n").word == "nothing"
    assert [round(hit.share, 1) for hit in base.alike(HACK)] == [1.0]


def test_who_is_nearer_to_a_cleared_file_than_to_a_hack_is_no_suspect(tmp_path: Path) -> None:
    base = HackDatabase(tmp_path / "hacks", HackPart(alike=0.5))
    base.learn(HACK, from_json(rejected("cheating", CHEAT)))
    assert base.opinion(HONEST).word == "suspect"
    assert base.clear(HONEST, "confirm", "confirmed in fresh processes")
    assert base.opinion(HONEST).word == "nothing"
    assert base.opinion(HONEST.replace("4.0", "6.0")).word == "nothing"
    assert base.opinion(NEAR).word == "suspect"  # still nearer to the hack


def test_what_was_caught_cannot_be_cleared_but_what_was_cleared_can_be_caught(base: HackDatabase) -> None:
    base.learn(HACK, from_json(rejected("cheating", CHEAT)))
    assert not base.clear(HACK, "judge", "looks fine")
    assert base.opinion(HACK).word == "caught"
    base.clear(HONEST, "judge", "looks fine")
    assert base.learn(HONEST, from_json(rejected("cheating", CHEAT)))
    assert base.opinion(HONEST).word == "caught"
    assert len(base) == 2


def test_it_survives_its_process_and_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "hacks"
    with HackDatabase(path) as base:
        base.learn(HACK, from_json(rejected("cheating", CHEAT)))
        position = base.position
        base.learn(HONEST, from_json(rejected("cheating", CHEAT)))
        base.rewind(position)
        assert base.opinion(HONEST).word != "caught"
        base.learn(NEAR, from_json(rejected("cheating", CHEAT)))
    with HackDatabase(path) as base, HackDatabase(path, write=False) as follower:
        assert [base.opinion(one).word for one in (HACK, NEAR)] == ["caught", "caught"]
        assert base.opinion(HONEST).word != "caught"
        base.learn(HONEST, from_json(rejected("cheating", CHEAT)))
        follower.follow()
        assert follower.opinion(HONEST).word == "caught"
        with pytest.raises(ValueError, match="no position 99"):
            base.rewind(99)


@pytest.mark.parametrize("record", [{"kind": "kind", "rule": "", "evidence": "", "source": ""}, {}])
def test_a_record_that_makes_no_sense_is_told(tmp_path: Path, record: dict[str, object]) -> None:
    with Journal(tmp_path / "hacks", "kernelwright.hacks/1") as journal:
        journal.append([record])
    with pytest.raises(JournalError, match="makes no sense"):
        HackDatabase(tmp_path / "hacks")


@given(
    st.none() | st.floats(-2, 3),
    st.lists(st.sampled_from(["nothing", "suspect", "caught"]), max_size=4),
    st.sampled_from(["clipped", "log", "levels"]),
)
def test_opinions_only_ever_lower(value: float | None, words: list[str], way: str) -> None:
    settings = RewardPart(shaping=way)
    found = doubted(Score(value, 2.0, "", ""), [Opinion(word) for word in words], settings).value  # type: ignore[arg-type]
    if value is None:
        assert found is None
        return
    assert found is not None
    assert found <= value
    if "caught" in words:
        assert found <= shaping(settings).floor or found == value
    if "suspect" in words:
        assert found <= max(unpaid(settings), shaping(settings).floor)


def test_a_suspect_keeps_what_a_correct_candidate_gets_and_a_caught_one_nothing() -> None:
    settings = RewardPart()
    fast = score(from_json(accepted(2.0)), settings)
    assert doubted(fast, [Opinion("suspect", "alike")], settings).value == unpaid(settings)
    found = doubted(fast, [Opinion("nothing"), Opinion("caught", "alike")], settings)
    assert found.value == shaping(settings).floor
    assert found.why == "2.00x; alike"
    slow = score(from_json(accepted(0.5)), settings)
    assert doubted(slow, [Opinion("suspect")], settings).value == slow.value


def test_a_person_clears_a_file_for_later_runs(tmp_path: Path) -> None:
    program = typer.Typer()
    program.command()(main)
    file, database = tmp_path / "kernel.py", tmp_path / "known.journal"
    file.write_text("class ModelNew:\n    tile = 64\n")

    def clear(path: Path) -> int:
        given = [str(database), str(path), "--by", "N", "--why", "confirmed"]
        return CliRunner().invoke(program, given).exit_code

    assert [clear(file), clear(file), clear(tmp_path / "none.py")] == [0, 1, 2]
    with HackDatabase(database) as known:
        assert known.alike(file.read_text())[0].case.kind == "cleared"
        assert clear(file) == 2  # in use
