"""Shared code of the stages that judge: the fleet with its databases, and the reports of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.devices import is_accelerator
from evaluator.sources import TaskSource
from rl.config import ContrastiveStage, FleetPart, RewardPart, SelfsupStage
from rl.errors import ConfigError, FleetLost, JournalError
from rl.fleet import Fleet
from rl.hacks import HackDatabase, caught
from rl.judges import Judge, machine_of
from rl.llm_judge import LlmJudge
from rl.metrics import of_reports
from rl.ranks import TIMEOUT_S, Ranks
from rl.step_report import Report
from rl.verdicts import VerdictJournal, harness_of

JudgeOf = Callable[[FleetPart], Judge]


@dataclass
class Bench:
    """A rank's fleet and the run's database of hacks, which rank 0 writes and the others follow."""

    fleet: Fleet
    hacks: HackDatabase
    ranks: Ranks
    _lost: str = ""

    async def rewards(
        self, prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[str], **more: Any
    ) -> list[float | None]:
        """See `rl.fleet.Fleet.rewards`; returns None rewards if the fleet is lost.

        `check` then raises the error on all ranks: a rank that stopped alone would leave the others waiting.
        """
        try:
            return await self.fleet.rewards(prompts, completions, task, **more)
        except FleetLost as error:
            self._lost = str(error)
            return [None] * len(completions)

    def check(self) -> None:
        """Raise on all ranks if any rank lost its fleet; all ranks call it once they have their rewards.

        Raises:
            FleetLost: any rank lost its evaluators.
        """
        lost = next((one for one in self.ranks.all([self._lost]) if one), "")
        if lost:
            raise FleetLost(lost)

    def reports(self) -> list[Report]:
        """The reports of all ranks' last steps; all ranks call it."""
        return self.ranks.all([self.fleet.report])

    def learn(self, reports: list[Report]) -> None:
        """Add the hacks caught in a step to the database at the step's end.

        Rewards within a step therefore do not depend on the order of judging.
        """
        if self.ranks.first:
            for report in reports:
                for one in report.samples:
                    if one.answer.source is not None and one.verdict is not None and caught(one.verdict):
                        self.hacks.learn(one.answer.source, one.verdict)
        self.ranks.wait()
        if not self.ranks.first:
            self.hacks.follow()

    def figures(self, reports: list[Report]) -> dict[str, Any]:
        """Metrics of a step, including the longest wait of any rank."""
        return {**of_reports(reports), "waited_s": max(report.waited_s for report in reports)}


@contextmanager
def bench(
    stage: SelfsupStage | ContrastiveStage,
    tasks: Mapping[str, TaskSource],
    ranks: Ranks,
    judge_of: JudgeOf,
    *,
    group: int,
    position: int,
    machine: str | None = None,
    record: Callable[[str], float | None] = lambda _: None,
) -> Iterator[Bench]:
    """Open a fleet and its databases for the duration of the block.

    Args:
        stage: its config.
        tasks: tasks by name.
        ranks: the processes of the run.
        judge_of: creates the judge.
        group: completions per prompt.
        position: position of the database of hacks at the checkpoint; 0 starts afresh.
        machine: type of machine recorded in a checkpoint; by default the config's.
        record: see `rl.fleet.Fleet`.

    Raises:
        JournalError: a database is damaged, or the disk is full.
        ConfigError: local referees would time on the GPU that a rank trains on.
    """
    if ranks.count > 1 and is_accelerator(stage.fleet.device) and stage.fleet.url is None:
        # A single rank alternates between generating and judging; with several, others may use the GPU during a timing.
        raise ConfigError(
            f"{ranks.count} ranks and referees of the same machine would share a GPU while one of them is timed: "
            "start a service on GPUs of its own, and name it in `fleet.url`"
        )
    fleet_settings = _shared(stage, len(tasks), ranks)
    machine = machine or machine_of(stage.fleet)
    with ExitStack() as stack:
        if ranks.first:
            hacks = stack.enter_context(HackDatabase(stage.output / "hacks.journal", stage.hacks))
            _begin(hacks, stage, position)
        ranks.wait()
        if not ranks.first:
            hacks = stack.enter_context(
                HackDatabase(stage.output / "hacks.journal", stage.hacks, write=False)
            )
        verdicts = stack.enter_context(
            VerdictJournal(
                verdicts_path(stage.output, stage.fleet, ranks),
                machine,
                harness_of(stage.fleet.url),
                json.dumps(stage.fleet.first_look, sort_keys=True) if stage.fleet.first_look else "",
            )
        )
        judge = judge_of(fleet_settings)
        stack.callback(judge.close)
        reward, reviewer = RewardPart(), None
        if isinstance(stage, ContrastiveStage):
            reward = stage.reward
            if stage.judge is not None:
                reviewer = LlmJudge(stage.judge)
                stack.callback(reviewer.close)
        fleet = Fleet(
            judge,
            tasks,
            verdicts,
            group=group,
            settings=fleet_settings,
            reward=reward,
            machine=machine,
            record=record,
            hacks=hacks,
            reviewer=reviewer,
        )
        yield Bench(fleet, hacks, ranks)


def _shared(stage: SelfsupStage | ContrastiveStage, tasks: int, ranks: Ranks) -> FleetPart:
    """The fleet's settings for this rank, with its share of the width.

    A round of `selfsup` judges all tasks at once, so its time limit is a step's limit per task.
    """
    settings = stage.fleet.model_copy(update={"width": ranks.share_of(stage.fleet.width)})
    if isinstance(stage, ContrastiveStage):
        return settings
    limit_s = stage.fleet.step_s * tasks
    if ranks.count > 1:  # the other ranks wait meanwhile, up to TIMEOUT_S
        limit_s = max(stage.fleet.step_s, min(limit_s, TIMEOUT_S / 2))
    return settings.model_copy(update={"step_s": limit_s})


def verdicts_path(output: Path, settings: FleetPart, ranks: Ranks) -> Path:
    """The path of this rank's journal of verdicts."""
    path = settings.verdicts or output / "verdicts.journal"
    return path if ranks.first else path.with_name(f"{path.stem}-{ranks.number}{path.suffix}")


def _begin(hacks: HackDatabase, stage: SelfsupStage | ContrastiveStage, position: int) -> None:
    if position > hacks.position:
        raise JournalError(
            f"{stage.output / 'hacks.journal'} ends before the checkpoint that is to be resumed; restore it from a copy"
        )
    hacks.rewind(position)
    if position or stage.hacks.begin_with is None:
        return
    with HackDatabase(stage.hacks.begin_with, write=False) as known:
        hacks.take(known)
