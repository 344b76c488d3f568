"""The draw of contrastive exemplars."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from agent.candidates import Judged
from agent.records import recorded
from agent.stores.folder import FolderStore
from agent.strategy.exemplars import (
    BUCKET,
    LONGEST_SHOWN_CHARACTERS,
    TAU,
    buckets,
    draw,
    softmax,
)
from tests.agent.strategy.judging import accepted, judged, rejected


def some() -> list[Judged]:
    return [
        judged("slow", accepted(0.8)),
        judged("even", accepted(1.0)),
        judged("even too", accepted(1.02)),
        judged("fast", accepted(1.6)),
        judged("wrong", rejected(reason="the last tile")),
    ]


def test_two_exemplars_come_from_different_buckets_the_slower_first() -> None:
    for seed in range(50):
        found = draw(some(), random.Random(seed))
        slow, fast = found.successes
        assert math.floor(math.log(slow.speedup) / BUCKET) < math.floor(math.log(fast.speedup) / BUCKET)
        assert found.failure is not None
        assert found.failure.verdict.reason == "the last tile"


def test_buckets_are_drawn_by_softmax_over_their_means() -> None:
    generator, known = random.Random(1), some()
    speeds = [draw(known, generator, count=1).successes[0].speedup for _ in range(4000)]
    shares = [
        sum(low < speed < high for speed in speeds) / 4000 for low, high in ((0, 0.9), (0.9, 1.3), (1.3, 9))
    ]
    expected = softmax([0.8, 1.01, 1.6], TAU)
    assert len(buckets([one.speedup for one in known if one.accepted])) == 3
    assert shares == pytest.approx(expected, abs=0.03)
    assert expected[2] > expected[1] > expected[0]


def test_the_parent_and_compiler_failures_are_left_out() -> None:
    one = some()
    found = draw(
        [*one, judged("mode", rejected(), origin="compiler")], random.Random(0), {one[4].candidate.sha256}
    )
    assert found.failure is None
    alone = draw(one[:1], random.Random(0), {one[0].candidate.sha256})
    assert alone.successes == ()


def test_a_draw_is_stored_with_what_was_known_and_repeats(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    generator, known = recorded(store, "search/1", ["a", "b"])
    first = [generator.random() for _ in range(5)]
    again, still = recorded(FolderStore(tmp_path), "search/1", ["a", "b", "c"])
    assert [again.random() for _ in range(5)] == first
    assert known == still == ["a", "b"]
    other, _ = recorded(store, "search/2", ["a", "b"])
    assert other.random() != first[0]


def test_a_given_seed_draws_the_same_in_another_job(tmp_path: Path) -> None:
    one, _ = recorded(FolderStore(tmp_path / "1"), "search/1", [], 7)
    other, _ = recorded(FolderStore(tmp_path / "2"), "search/1", [], 7)
    third, _ = recorded(FolderStore(tmp_path / "3"), "search/1", [], 8)
    assert one.random() == other.random() != third.random()


def test_long_files_are_not_shown() -> None:
    long = "#" * (LONGEST_SHOWN_CHARACTERS + 1)
    all_ = [judged("slow", accepted(0.8)), judged(long, accepted(3.0)), judged(long + "#", rejected())]
    found = draw(all_, random.Random(0))
    assert [one.candidate.source for one in found.successes] == ["slow"]
    assert found.failure is None
