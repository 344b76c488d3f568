"""The live run's world: one verdict serves all tasks of a family, repeats cost nothing, and faults of ours are no failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from evaluator.sources import TaskSource
from rl.config import FleetPart
from rl.demo import seen
from rl.demo.arms import ReplaySettings, WorldPractice
from rl.demo.dialect.tasks import Task
from rl.demo.live import LiveWorld
from rl.errors import FleetLost
from rl.judges import Unjudged
from tests.rl.demo.planted import invented_speedup, planted_table

TABLE = planted_table(("row_sum", "softmax"))


class Referee:
    """Answers as the invented table has it, with verdicts in the referee's form."""

    def __init__(self, machine: str = "one") -> None:
        self.environment = {"device": "cuda", "device_name": machine}
        self.asked: list[tuple[str, str]] = []
        self.under_way = self.most = 0

    async def judge(self, task: TaskSource, source: str) -> Mapping[str, Any]:
        self.asked.append((task.name, source))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        program = TABLE.grammar.by_source.get(source)
        family = task.name.removeprefix("rl_")
        if program is None or program.family != family:
            return {"verdict": "compile_error", "reason": "no such thing", "shapes": []}
        every = [one for part in TABLE.tasks() for one in part if one.family == family]
        speedups = [(one.shape, invented_speedup(program, one)) for one in every]
        if not all(speedup for _, speedup in speedups):
            return {"verdict": "incorrect", "reason": "wrong", "shapes": []}
        shapes = [{"dims": dims, "split": "visible", "speedup": speedup} for dims, speedup in speedups]
        ragged = {"dims": {"rows": 5, "cols": 67}, "split": "adversarial", "speedup": None}
        found = {"verdict": "accepted", "reason": "", "shapes": [*shapes, ragged]}
        return {**found, "environment": self.environment}

    def close(self) -> None: ...


class Broken(Referee):
    """Never judges; says why in one of two ways."""

    def __init__(self, failure: Unjudged | None) -> None:
        super().__init__()
        self._failure = failure

    async def judge(self, task: TaskSource, source: str) -> Mapping[str, Any]:
        self.asked.append((task.name, source))
        if self._failure is not None:
            raise self._failure
        return {"verdict": "not_judged", "reason": "too noisy"}


def tasks_of(family: str) -> list[Task]:
    return [task for part in TABLE.tasks() for task in part if task.family == family]


def test_every_program_is_worth_what_the_table_says_and_is_judged_once() -> None:
    referee = Referee()
    world = LiveWorld(TABLE, FleetPart(width=3, deadline_s=5), judge=referee)
    tasks = tasks_of("row_sum")
    pairs = [(task, one.source) for task in tasks for one in TABLE.grammar.of_family("row_sum")]
    found = world.judge([task for task, _ in pairs], [source for _, source in pairs])
    assert found == [world.score(task, source) for task, source in pairs]
    assert len(referee.asked) == len(TABLE.grammar.of_family("row_sum")) == world.tally.judged
    assert referee.most == 3
    again = world.judge([task for task, _ in pairs], [source for _, source in pairs])
    assert (again, len(referee.asked)) == (found, world.tally.judged)
    assert world.tally.asked == 2 * len(pairs)


def test_what_is_no_python_is_a_failure_that_no_referee_sees() -> None:
    referee = Referee()
    world = LiveWorld(TABLE, FleetPart(deadline_s=5), judge=referee)
    task = tasks_of("softmax")[0]
    assert world.judge([task] * 3, ["def (", "\0", "x = 1"]) == [0.0, 0.0, 0.0]
    assert [source for _, source in referee.asked] == ["x = 1"]
    assert (world.tally.unparsable, world.tally.words) == (2, {"compile_error": 1})


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(None, 2), (Unjudged("gone", again=True, gone=True), 2), (Unjudged("late", again=False), 1)],
)
def test_what_was_not_judged_is_no_failure(failure: Unjudged | None, asked: int) -> None:
    referee = Broken(failure)
    world = LiveWorld(TABLE, FleetPart(tries=2, deadline_s=5), judge=referee)
    practice = WorldPractice(world, seen.none, ReplaySettings(), 0)
    source = TABLE.grammar.of_family("softmax")[0].source
    assert practice.reward(tasks_of("softmax")[:1], [source]) == [None]
    assert (len(referee.asked), practice.judged, sum(world.tally.unjudged.values())) == (asked, set(), 1)


def test_what_cannot_be_submitted_is_the_candidates_own_failure() -> None:
    world = LiveWorld(
        TABLE, FleetPart(deadline_s=5), judge=Broken(Unjudged("too large", again=False, own_fault=True))
    )
    assert world.judge(tasks_of("softmax")[:1], ["x = 1"]) == [0.0]
    assert world.tally.unjudged == {}


def test_a_task_that_an_accepted_program_was_not_timed_at_has_no_score() -> None:
    class Hasty(Referee):
        async def judge(self, task: TaskSource, source: str) -> Mapping[str, Any]:
            found = await super().judge(task, source)
            return {**found, "shapes": found["shapes"][1:]}

    world = LiveWorld(TABLE, FleetPart(deadline_s=5), judge=Hasty())
    tasks = tasks_of("row_sum")
    program = next(one for one in TABLE.grammar.of_family("row_sum") if invented_speedup(one, tasks[0]))
    found = world.judge(tasks, [program.source] * len(tasks))
    assert found == [None, *(invented_speedup(program, task) for task in tasks[1:])]


def test_what_another_type_of_machine_says_is_no_verdict() -> None:
    referee = Referee()
    world = LiveWorld(TABLE, FleetPart(tries=1, deadline_s=5), judge=referee)
    task = tasks_of("row_sum")[0]
    right = [one.source for one in TABLE.grammar.of_family("row_sum") if invented_speedup(one, task)]
    program, other = right[:2]
    assert world.judge([task], [program]) != [None]
    referee.environment = {"device": "cuda", "device_name": "another"}
    assert world.judge([task], [other]) == [None]
    assert list(world.tally.unjudged) == ["judged on another"]


def test_a_run_ends_where_nobody_answers_any_more() -> None:
    world = LiveWorld(
        TABLE,
        FleetPart(tries=1, dead_steps=2, deadline_s=5),
        judge=Broken(Unjudged("no service answers", again=True, gone=True)),
    )
    task = tasks_of("softmax")[:1]
    assert world.judge(task, ["x = 1"]) == [None]
    with pytest.raises(FleetLost, match="no service answers"):
        world.judge(task, ["x = 2"])
