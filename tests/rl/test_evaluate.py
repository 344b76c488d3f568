"""Two policies at equal evaluator budget: what is spent, what is counted, and what may be said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.providers.base import Message
from evaluator.sources import TaskSource
from rl.comparison import Cell, compared
from rl.errors import ConfigError, FleetLost
from rl.evaluate import Budget, Comparison, compare
from rl.judges import Unjudged
from tests.rl.verdicts import accepted, rejected

TASKS = [TaskSource("one", "class Model: ..."), TaskSource("two", "class Model: pass")]


def file(speed: float, number: int) -> str:
    return f"class ModelNew:\n    speed = {speed}\n    number = {number}\n"


class Writer:
    """Writes files whose speed is cut into them; `speeds` in turn, forever."""

    def __init__(self, name: str, *speeds: float, different: int = 10**6) -> None:
        self.name, self.speeds, self.different = name, speeds, different
        self.identity = ""
        self.asked: list[tuple[int, int]] = []

    def sample(self, messages: Sequence[Message], count: int, seed: int) -> list[tuple[str, bool]]:
        assert "class Model" in messages[-1].content
        begin = sum(number for number, _ in self.asked)
        self.asked.append((count, seed))
        found = []
        for place in range(begin, begin + count):
            speed = self.speeds[place % len(self.speeds)]
            text = "no code" if speed < 0 else f"```python\n{file(speed, place % self.different)}```"
            found.append((text, True))
        return found


class Judging:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def judge(self, task: TaskSource, source: str) -> Mapping[str, Any]:
        self.asked.append(source)
        speed = float(source.split("speed = ")[1].split()[0])
        if speed == 99.0:
            raise Unjudged("no service answers", again=True, gone=True)
        return accepted(speed) if speed else rejected("incorrect")

    def close(self) -> None:
        pass


def cell(folder: Path, policy: Writer, budget: Budget, judge: Judging | None = None) -> Cell:
    with Comparison(folder, judge or Judging(), "cpu", budget) as comparison:
        return asyncio.run(comparison.cell(policy, TASKS[0], 0))


def test_failures_count_as_nothing_and_answers_without_a_file_cost_nothing(tmp_path: Path) -> None:
    judge = Judging()
    found = cell(tmp_path, Writer("a", 2.0, 0.0, -1.0, 1.0), Budget(4, 4, 32, 1), judge)
    assert found.mean == 0.75
    assert found.best == 2.0
    assert (found.judged, found.written, found.accepted) == (4, 8, 3)


def test_a_policy_that_repeats_itself_gets_as_many_evaluations_and_no_more_than_the_limit(
    tmp_path: Path,
) -> None:
    judge = Judging()
    found = cell(tmp_path, Writer("a", 2.0, different=2), Budget(4, 4, 12, 1), judge)
    assert (found.judged, found.written) == (2, 12)
    assert len(judge.asked) == 2


def test_what_is_beyond_the_budget_is_not_the_best(tmp_path: Path) -> None:
    found = cell(tmp_path, Writer("a", 1.0, 1.0, 2.9), Budget(2, 3, 3, 1))
    assert found.best == 1.0
    assert found.mean == pytest.approx(4.9 / 3)


def test_a_suspicious_speed_is_measured_again(tmp_path: Path) -> None:
    judge = Judging()
    assert cell(tmp_path, Writer("a", 7.0), Budget(1, 1, 1, 1), judge).best == 7.0
    assert len(judge.asked) == 2


def test_what_nobody_judged_is_in_no_figure(tmp_path: Path) -> None:
    found = cell(tmp_path, Writer("a", 99.0, 2.0), Budget(2, 4, 4, 1))
    assert (found.mean, found.missing, found.judged) == (2.0, 2, 2)
    with pytest.raises(FleetLost, match="no service answers"):
        cell(tmp_path / "other", Writer("b", 99.0), Budget(1, 2, 2, 1))


def test_a_comparison_that_was_killed_asks_nobody_twice(tmp_path: Path) -> None:
    budget = Budget(2, 2, 4, 2)
    before, after = Writer("a", 1.0), Writer("b", 2.0)
    with Comparison(tmp_path, Judging(), "cpu", budget) as comparison:
        first = asyncio.run(compare(comparison, before, after, TASKS, budget))
    judge, silent = Judging(), Writer("a", 5.0)
    with Comparison(tmp_path, judge, "cpu", budget) as comparison:
        again = asyncio.run(compare(comparison, silent, Writer("b", 5.0), TASKS, budget))
    assert again == {**first, "machine": first["machine"]}
    assert not silent.asked
    assert not judge.asked
    # both policies draw with the same random numbers
    assert [seed for _, seed in before.asked] == [seed for _, seed in after.asked]
    assert len({seed for _, seed in before.asked}) == 4


def cells(policy: str, *rows: tuple[float, ...]) -> list[Cell]:
    return [
        Cell(policy, f"task {place}", seed, value, value, 8, 8, 0, 8, f"best of {policy}")
        for seed, row in enumerate(rows)
        for place, value in enumerate(row)
    ]


def test_what_was_judged_on_another_device_is_judged_anew(tmp_path: Path) -> None:
    budget, judge = Budget(2, 2, 2, 1), Judging()
    cell(tmp_path, Writer("a", 2.0), budget, judge)
    on_a_gpu = Writer("a", 3.0)
    with Comparison(tmp_path, judge, "cuda", budget) as comparison:
        assert asyncio.run(comparison.cell(on_a_gpu, TASKS[0], 0)).mean == 3.0
    again = Writer("a", 5.0)
    assert (cell(tmp_path, again, budget, judge).mean, again.asked, len(judge.asked)) == (2.0, [], 4)


def test_a_gain_is_one_only_where_the_whole_interval_is() -> None:
    before = cells("a", (1.0, 1.1, 0.9), (1.05, 1.0, 0.95))
    for factor, word in ((1.5, "gain"), (0.6, "loss")):
        after = [
            Cell(**{**vars(one), "mean": one.mean * factor, "best": one.best * factor}) for one in before
        ]
        found = compared(before, after)["after_over_before"]["mean"]
        assert found["word"] == word
        assert found["ratio"]["value"] == pytest.approx(factor)
    mixed = compared(before, cells("b", (2.0, 0.5, 1.0), (0.6, 1.9, 1.0)))
    assert mixed["after_over_before"]["best"]["word"] == "unknown"
    nothing = compared(cells("a", (0.0, 0.0)), cells("b", (1.0, 1.0)))
    assert nothing["after_over_before"]["mean"] == {"ratio": None, "word": "no success before"}


def test_cells_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="not every task"):
        compared(cells("a", (1.0, 1.0))[:1] + cells("a", (1.0, 1.0), (1.0, 1.0))[3:], cells("a", (1.0,)))
    with pytest.raises(ConfigError, match="most_samples"):
        Budget(8, 8, 4, 1)


def test_a_decoy_is_a_failure_as_it_is_in_training(tmp_path: Path) -> None:
    class Finding(Judging):
        async def judge(self, task: TaskSource, source: str) -> Mapping[str, Any]:
            finding = {"rule": "decoy_kernel", "severity": "warning", "evidence": "nothing computed"}
            return {**await super().judge(task, source), "findings": [finding]}

    found = cell(tmp_path, Writer("a", 2.0), Budget(1, 1, 1, 1), Finding())
    assert (found.mean, found.best, found.accepted, found.missing) == (0.0, 0.0, 0, 0)


def test_answers_of_other_checkpoints_or_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    """A checkpoint that was trained on stands at the same path."""
    budget = Budget(1, 1, 1, 1)
    with Comparison(tmp_path, Judging(), "cpu", budget) as comparison:
        asyncio.run(comparison.cell(Writer("a", 1.0), TASKS[0], 0))
    trained = Writer("a", 2.0)
    trained.identity = "trained on"
    with Comparison(tmp_path, Judging(), "cpu", budget) as comparison:
        assert asyncio.run(comparison.cell(trained, TASKS[0], 0)).mean == 2.0
    assert len(trained.asked) == 1
