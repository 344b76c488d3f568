"""Which timings are asked for next, and what becomes of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from agent.dispatch.domain import dims_key
from agent.judging import Further
from agent.portfolio import Entry
from agent.portfolio.entries import with_further
from agent.portfolio.planner import Ask, next_timings
from evaluator.verdict import from_json
from tests.agent.portfolio.measured import entry

FURTHER = [{"n": 2**bit + 1} for bit in range(28)]
FIRST = [{"n": 3 * 2**bit} for bit in (4, 9, 14, 19)]


def field(count: int) -> list[Entry]:
    """Two specialists, and the more others the slower they are."""
    found = [
        entry("small", 1.2, shapes=FIRST, speedups=[1.8, 1.4, 0.9, 0.8], order=0),
        entry("large", 1.3, shapes=FIRST, speedups=[0.8, 0.9, 1.5, 1.9], order=1),
    ]
    return found + [entry(f"other {n}", 1.0 - 0.05 * n, shapes=FIRST, order=n) for n in range(2, count)]


def answered(one: Entry, ask: Ask, word: str = "accepted") -> list[Entry]:
    """The entry after a round in which it is 1.1x everywhere."""
    rows: list[dict[str, Any]] = [
        {"dims": dims, "timed": True, "speedup": 1.1, "ci95": [1.09, 1.11], "baseline_us": 10.0}
        for dims in ask.shapes
    ]
    further = Further([*map(dict, ask.shapes)], from_json({"verdict": word, "shapes": rows}))
    found = with_further(replace(one, asked=frozenset()), [further])
    return [replace(new, asked=new.asked | one.asked) for new in found]


def test_every_round_has_more_shapes_and_fewer_candidates() -> None:
    entries = field(8)
    rounds: list[tuple[list[str], set[int]]] = []
    while asks := next_timings(entries, FURTHER, 10_000):
        rounds.append(([ask.entry.candidate.label for ask in asks], {len(ask.shapes) for ask in asks}))
        by_order = {ask.entry.order: answered(ask.entry, ask)[0] for ask in asks}
        entries = [by_order.get(one.order, one) for one in entries]
    assert [(len(labels), shapes) for labels, shapes in rounds] == [(8, {4}), (4, {8}), (2, {16})]
    assert all({"small", "large"} <= set(labels) for labels, _ in rounds), (
        "what the cover needs is always timed"
    )
    asked = sorted(len(one.asked) for one in entries)
    assert asked == [4] * 4 + [12] * 2 + [28] * 2


def test_timings_are_a_limit_over_all_rounds_and_shared_out_evenly() -> None:
    entries, spent = field(8), 0
    while asks := next_timings(entries, FURTHER, 21):
        assert len({tuple(map(dims_key, ask.shapes)) for ask in asks}) == 1
        spent += sum(len(ask.shapes) for ask in asks)
        by_order = {ask.entry.order: answered(ask.entry, ask)[0] for ask in asks}
        entries = [by_order.get(one.order, one) for one in entries]
    assert spent == 2 * 8, "of the last five none is left for each of eight"
    assert next_timings(entries, FURTHER, 0) == []


def test_nothing_is_asked_where_there_is_nothing_to_choose() -> None:
    clear = entry("clear", 2.0, shapes=FIRST)
    behind = entry("behind", 1.5, shapes=FIRST, order=1)
    assert next_timings([clear, behind], FURTHER, 100) == []
    assert next_timings([], FURTHER, 100) == []
    assert next_timings(field(3), [], 100) == []
    # One candidate alone that does not win everywhere: where is the reference better?
    alone = entry("alone", 1.2, shapes=FIRST, speedups=[1.5, 1.4, 1.0, 0.9])
    (ask,) = next_timings([alone], FURTHER, 100)
    assert ask == Ask(alone, tuple(FURTHER[:4]))


def test_what_is_wrong_at_a_further_shape_is_out_and_what_could_not_be_judged_is_not_asked_again() -> None:
    one = field(2)[0]
    ask = Ask(one, tuple(FURTHER[:4]))
    assert answered(one, ask, "incorrect") == []
    (lost,) = with_further(one, [Further([*map(dict, ask.shapes)], from_json({"verdict": "not_judged"}))])
    assert lost.speedups() == one.speedups()
    assert lost.asked == {dims_key(dims) for dims in FURTHER[:4]}
    assert all(
        set(map(dims_key, more.shapes)).isdisjoint(lost.asked) for more in next_timings([lost], FURTHER, 100)
    )


def test_halving_finds_the_specialists_with_half_of_the_timings() -> None:
    """24 candidates, each of which is best somewhere or nowhere; the cover from halving is as good as from all timings."""
    generator = random.Random(11)
    shapes = [{"n": round(2 ** generator.uniform(4, 22))} for _ in range(32)]
    centers = [generator.uniform(4, 22) for _ in range(24)]

    def speed(number: int, dims: dict[str, int]) -> float:
        away = abs(math.log2(dims["n"]) - centers[number])
        return (1.9 if number < 4 else 1.3) * math.exp(-0.05 * away + generator.gauss(0, 0.01))

    truth = [[speed(number, dims) for dims in shapes] for number in range(24)]

    def known(number: int, count: int) -> Entry:
        made = entry(f"c{number}", 1.0, shapes=shapes[:count], speedups=truth[number][:count], order=number)
        return replace(made, asked=frozenset(dims_key(dims) for dims in shapes[4:count]))

    counts = dict.fromkeys(range(24), 4)
    while asks := next_timings([known(n, counts[n]) for n in counts], shapes[4:], 10_000):
        for ask in asks:
            counts[ask.entry.order] += len(ask.shapes)
    best = [max(row[line] for row in truth) for line in range(32)]
    kept = [number for number, count in counts.items() if count == 32]
    reached = [max(truth[number][line] for number in kept) for line in range(32)]
    lost = sum(math.log(b / r) for b, r in zip(best, reached, strict=True)) / 32
    assert sum(counts.values()) == 24 * 32 / 2
    assert math.exp(-lost) > 0.98
