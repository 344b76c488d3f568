"""Whom a round goes on from, and at which shapes."""

from __future__ import annotations

import pytest

from agent.portfolio.clusters import visible_geomean, worst_cluster
from agent.strategy.beam import LONGEST_PARENT_CHARACTERS, MAX_REPAIRS, select
from evaluator.verdict import from_json
from tests.agent.strategy.judging import accepted, accepted_at, judged, rejected, row

ADD = "def add(a, b):\n    return a + b\n"
LOOP = "def loop(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
WAIT = "import time\nwhile True:\n    time.sleep(1)\n    print('still here')\n"


def names(parents: object) -> list[tuple[str, str]]:
    return [(one.judged.candidate.source, one.mode) for one in parents]  # type: ignore[attr-defined]


def test_the_fastest_come_first_and_copies_last() -> None:
    copy = ADD.replace("a + b", "a  +  b")
    all_ = [
        judged(LOOP, accepted(1.2)),
        judged(ADD, accepted(2.0)),
        judged(copy, accepted(1.9)),
        judged(WAIT, accepted(0.5)),
    ]
    assert names(select(all_, 2)) == [(ADD, "speed"), (LOOP, "speed")]
    assert names(select(all_, 4)) == [(ADD, "speed"), (LOOP, "speed"), (WAIT, "speed"), (copy, "speed")]


def test_a_place_is_kept_for_a_repair_until_two_are_right() -> None:
    broken = judged(WAIT, rejected())
    one, two = judged(ADD, accepted(1.0)), judged(LOOP, accepted(1.1))
    assert names(select([broken], 2)) == [(WAIT, "repair")]
    assert names(select([one, broken], 2)) == [(ADD, "speed"), (WAIT, "repair")]
    assert names(select([one, two, broken], 2)) == [(LOOP, "speed"), (ADD, "speed")]
    assert names(select([one, two, broken], 3)) == [(LOOP, "speed"), (ADD, "speed"), (WAIT, "repair")]


def test_a_failure_is_repaired_from_its_last_attempt_and_then_given_up() -> None:
    chain = [judged("v0", rejected())]
    for number in range(1, MAX_REPAIRS):
        chain.append(judged(f"v{number}", rejected(), chain[-1]))
    assert names(select(chain, 2)) == [(chain[-1].candidate.source, "repair")]
    chain += [judged("v8", rejected(), chain[-1])]
    assert select(chain, 2) == []


def test_cheats_and_modes_are_no_parents() -> None:
    mode = judged("import torch\nf = torch.compile(x)", accepted(1.5), origin="compiler")
    assert select([judged("x", rejected("cheating")), mode], 4) == []


def test_a_file_that_no_answer_can_hold_is_no_parent() -> None:
    long = "x = 1\n" * (LONGEST_PARENT_CHARACTERS // 6 + 1)
    all_ = [judged(long, accepted(9.0)), judged(long + "y = 2\n", rejected()), judged(ADD, accepted(1.1))]
    assert names(select(all_, 4)) == [(ADD, "speed")]


def test_the_worst_cluster_is_where_no_candidate_is_good() -> None:
    def verdict(*speeds: float) -> dict[str, object]:
        dims = [{"rows": r, "cols": c} for r in (1, 64) for c in (16, 1000, 4096)]
        return accepted_at([row(d, s) for d, s in zip(dims, speeds, strict=True)])

    first = verdict(2.0, 2.0, 0.5, 2.0, 2.0, 0.5)
    second = verdict(0.5, 0.5, 0.9, 0.5, 0.5, 0.9)
    cluster = worst_cluster([from_json(first), from_json(second), from_json(rejected())])
    assert cluster is not None
    assert cluster.words == "cols > 1000"
    assert [dims["cols"] for dims in cluster.shapes] == [4096, 4096]
    assert cluster.geomean == pytest.approx(1.0)  # the baseline is a member of the portfolio
    assert cluster.rest == pytest.approx(2.0)
    third = verdict(0.5, 0.5, 3.0, 0.5, 0.5, 3.0)
    better = worst_cluster([from_json(first), from_json(second), from_json(third)])
    assert better is None or better.words != "cols > 1000"


def test_no_cluster_where_all_is_alike_or_hidden() -> None:
    assert worst_cluster([from_json(accepted(1.5, 1.5, 1.5, 1.5))]) is None
    hidden = accepted_at([row({"rows": n}, 1.0 + n, "validation") for n in range(6)])
    assert worst_cluster([from_json(hidden)]) is None
    assert visible_geomean(from_json(hidden)) == 0.0


def test_with_a_cluster_in_view_who_is_fast_there_goes_first() -> None:
    broad = judged(ADD, accepted(1.5, 1.5, 1.5, 1.0, 1.0, 1.0))
    narrow = judged(LOOP, accepted(0.9, 0.9, 0.9, 1.5, 1.5, 1.5))
    cluster = worst_cluster([broad.verdict])
    assert cluster is not None
    assert cluster.words == "rows > 3"
    assert names(select([broad, narrow], 1)) == [(ADD, "speed")]
    assert names(select([broad, narrow], 1, cluster)) == [(LOOP, "speed")]
