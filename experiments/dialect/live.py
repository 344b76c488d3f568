"""Exhibit B's world: what a policy writes goes through a service's queue into the sandbox, and the referee's verdict is the reward.

Tasks, prompts, supervised rows and the way arms are trained and tested are the replay's. A text is judged once, at all tasks of
its family and at ragged shapes beside them, as every program of a table was; the same text is never judged twice.
"""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.batch.run import UNJUDGED
from evaluator.fingerprint import type_of
from experiments.dialect.arms import World
from experiments.dialect.cells import Table
from experiments.dialect.tasks import RAGGED, Task, task_source
from rl.config import FleetPart
from rl.errors import FleetLost
from rl.judges import Judge, ServiceJudge, Unjudged
from rl.verdicts import elsewhere


@dataclass
class Tally:
    """What judging took.

    Attributes:
        asked: texts that were to be judged, repeats included.
        judged: distinct texts that a referee judged.
        unparsable: distinct texts that are no Python, which no referee saw.
        unjudged: texts without a verdict, by reason.
        waited_s: how long the trainer waited for verdicts.
        first_verdict_s: of that, until the first one: a family's baselines are compiled in this time.
        words: verdicts by word.
    """

    asked: int = 0
    judged: int = 0
    unparsable: int = 0
    unjudged: dict[str, int] = field(default_factory=dict)
    waited_s: float = 0.0
    first_verdict_s: float | None = None
    words: dict[str, int] = field(default_factory=dict)


class LiveWorld(World):
    """Implements what arms ask of a world with verdicts as they come.

    Args:
        table: where supervised rows come from, and which tasks there are.
        settings: of the fleet.
        urls: of services with a worker for the device. Families are dealt out to them, so that each compiles the baselines
            of its own.
        judge: instead of services.
    """

    looks_longer = False

    def __init__(
        self, table: Table, settings: FleetPart, urls: Sequence[str] = (), judge: Judge | None = None
    ) -> None:
        super().__init__(table)
        if not urls and judge is None:
            raise ValueError("nobody is there to judge: give `urls` or `judge`")
        self._settings = settings
        self._urls = {family: urls[place % len(urls)] for place, family in enumerate(table.families) if urls}
        self._judge = judge
        self._found: dict[tuple[str, str], dict[str, float | None]] = {}
        self._silent = 0
        self.tally = Tally()
        #: Where accepted candidates were timed: the first verdict's. What another type of machine says is no verdict here.
        self.environment: Mapping[str, Any] = {}

    def judge(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[float | None]:
        """What each text is worth at its task; asks the service for what is new.

        Raises:
            FleetLost: there was no verdict several times in a row.
        """
        began = time.monotonic()
        self.tally.asked += len(texts)
        new = [
            key
            for key in dict.fromkeys((task.family, text) for task, text in zip(tasks, texts, strict=True))
            if key not in self._found
        ]
        for key in [key for key in new if not _parses(key[1])]:
            self.tally.unparsable += 1
            self._found[key] = self._failed(key[0])
            new.remove(key)
        if new:
            before = self.tally.judged
            asyncio.run(self._ask_all(new, began))
            self._silent = 0 if self.tally.judged > before else self._silent + 1
            if self._silent >= self._settings.dead_steps:
                raise FleetLost(
                    f"no verdict {self._silent} times in a row: {next(iter(self.tally.unjudged), '')}"
                )
        self.tally.waited_s += time.monotonic() - began
        found = [self._found.get((task.family, text)) for task, text in zip(tasks, texts, strict=True)]
        return [
            None if scores is None else scores[task.name] for task, scores in zip(tasks, found, strict=True)
        ]

    async def _ask_all(self, new: Sequence[tuple[str, str]], began: float) -> None:
        turn = asyncio.Semaphore(self._settings.width)
        judges = {family: self._judge_of(family) for family in {family for family, _ in new}}
        try:
            await asyncio.gather(
                *(self._ask(judges[family], turn, family, text, began) for family, text in new)
            )
        finally:
            for judge in judges.values():
                if judge is not self._judge:
                    judge.close()

    def _judge_of(self, family: str) -> Judge:
        """A service judges every candidate of a family at the same shapes."""
        if self._judge is not None:
            return self._judge
        visible = [task.shape for task in (*self.train, *self.held_out) if task.family == family]
        shapes = {"visible": visible, "adversarial": list(RAGGED)}
        settings = FleetPart.model_validate({**self._settings.model_dump(), "shapes": shapes})
        return ServiceJudge(self._urls[family], settings)

    async def _ask(self, judge: Judge, turn: asyncio.Semaphore, family: str, text: str, began: float) -> None:
        why = ""
        for _ in range(self._settings.tries):
            async with turn:
                try:
                    verdict = await judge.judge(task_source(family), text)
                except Unjudged as error:
                    why = str(error)
                    if error.own_fault:
                        self._found[family, text] = self._failed(family)
                        return
                    if not error.again:
                        break
                    continue
            if verdict["verdict"] in UNJUDGED:
                why = str(verdict.get("reason"))[:200]
                continue
            if other := self._elsewhere(verdict):
                why = f"judged on {other}"
                break
            if self.tally.first_verdict_s is None:
                self.tally.first_verdict_s = time.monotonic() - began
            self.tally.judged += 1
            word = str(verdict["verdict"])
            self.tally.words[word] = self.tally.words.get(word, 0) + 1
            self._found[family, text] = self._scored(family, verdict)
            return
        self.tally.unjudged[why] = self.tally.unjudged.get(why, 0) + 1

    def _elsewhere(self, verdict: Mapping[str, Any]) -> str | None:
        """The machine of a verdict, if it is not the one that the first accepted candidate was timed on."""
        if verdict["verdict"] != "accepted":
            return elsewhere(verdict, type_of(self.environment) if self.environment else None)
        self.environment = self.environment or verdict["environment"]
        other = type_of(verdict["environment"])
        return other if other != type_of(self.environment) else None

    def _failed(self, family: str) -> dict[str, float | None]:
        return {task.name: 0.0 for task in (*self.train, *self.held_out) if task.family == family}

    def _scored(self, family: str, verdict: Mapping[str, Any]) -> dict[str, float | None]:
        """By task; a program that is wrong anywhere is worth nothing everywhere, and what was not timed has no score."""
        tasks = [task for task in (*self.train, *self.held_out) if task.family == family]
        if verdict["verdict"] != "accepted":
            return self._failed(family)
        timed = {
            (shape["dims"]["rows"], shape["dims"]["cols"]): float(shape["speedup"])
            for shape in verdict["shapes"]
            if shape["split"] == "visible" and shape["speedup"] is not None
        }
        return {task.name: timed.get((task.rows, task.cols)) for task in tasks}


def _parses(text: str) -> bool:
    """Whether a text is Python at all; only read, never run."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
