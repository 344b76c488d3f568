"""Compares two checkpoints at equal evaluator budget: `python -m rl.evaluate A B --held-out TASK --out FOLDER`.

For each task and seed, a policy writes answers until the referee has judged `judged` different candidates or the policy has written
`most_samples` answers. Repeated candidates and answers without a candidate cost no evaluation, but they count in the mean. The mean
covers the first `samples` answers, with failures as 0; the best is taken over the judged candidates. A file that both policies write
is judged once and counts for both.

The 95 % intervals resample seeds and tasks (`rl.intervals`). A ratio is a gain when its whole interval lies above 1 and a loss when
it lies below; otherwise the result is inconclusive. Answers and verdicts are saved in the output folder as they arrive, so a killed
comparison can resume.

Prompts show no exemplars by default; with `--exemplars FILE`, both policies see the same ones, drawn from a file of rows as
`contrastive` draws them.

Exit status: 0 done; 2 invalid request; 75 stopped (evaluators gone, disk full), and the same command resumes.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.prompts.markers import holds_markers
from agent.strategy.novelty import fingerprint
from evaluator.devices import BACKENDS
from evaluator.errors import EvaluatorError
from evaluator.sources import TaskSource
from rl import tasks as tasks_module
from rl.checkpoints import write_json
from rl.comparison import Cell, compared
from rl.config import AnyStage, FleetPart, RewardPart, SftStage, load
from rl.errors import ConfigError, DataError, FleetLost, RLError
from rl.exemplars import Draw
from rl.fleet import Fleet
from rl.intervals import Interval
from rl.journal import Journal
from rl.judges import Judge, judge_of, machine_of
from rl.policies import Checkpoint, Policy
from rl.prompts import contrastive_prompt, read_answer
from rl.rows import text_of_task
from rl.shown import Draws, digest_of, drawing_of, draws_of
from rl.step_report import Report, Sample
from rl.verdicts import VerdictJournal, elsewhere, harness_of

SCHEMA = "kernelwright.comparison/1"
_KIND = "kernelwright.answers/1"
_REWARD = RewardPart(shaping="clipped")
_WRONG, _STOPPED = 2, 75
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Fields of the key of stored answers; a field that an older journal lacks reads as "".
_KEY = ("policy", "identity", "task", "seed", "round", "shown")


@dataclass(frozen=True)
class Budget:
    """What each policy may spend on each task and seed.

    Attributes:
        judged: number of different candidates that the referee judges.
        samples: minimum number of answers; the mean covers these.
        most_samples: maximum number of answers, which stops a policy that keeps repeating itself.
        seeds: number of repetitions of the whole procedure.
    """

    judged: int = 8
    samples: int = 8
    most_samples: int = 64
    seeds: int = 3

    def __post_init__(self) -> None:
        if min(self.judged, self.samples, self.seeds) < 1 or self.most_samples < max(
            self.samples, self.judged
        ):
            raise ConfigError("a budget needs at least one of each, and `most_samples` not below the others")


class Comparison:
    """Answers and verdicts of a comparison; a context manager.

    Args:
        folder: where answers and verdicts are stored.
        judge: the referee.
        fleet: the settings that `judge` was built from.
        budget: the budget of each policy.
        draws: exemplars that prompts show; none by default.

    Raises:
        JournalError: another running comparison uses the folder.
    """

    def __init__(
        self,
        folder: Path,
        judge: Judge,
        fleet: FleetPart,
        budget: Budget,
        draws: Draws | None = None,
    ) -> None:
        self._judge, self._settings, self._budget = judge, fleet, budget
        self._draws = draws or {}
        self._answers = Journal(folder / f"answers-{fleet.device}.journal", _KIND)
        self._known = {
            tuple(one.get(name, "") for name in _KEY): one["answers"] for one in self._answers.records
        }
        try:
            path = folder / f"{_about(fleet)}.journal"
            self._verdicts = VerdictJournal(path, harness=harness_of(fleet.url))
        except BaseException:
            self._answers.close()
            raise
        self.machine = ""

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._verdicts.close()

    @property
    def shown(self) -> int:
        """The maximum number of exemplars in a prompt."""
        return max((len(draw.shown) for draw in self._draws.values()), default=0)

    async def cell(self, policy: Policy, task: TaskSource, seed: int) -> Cell:
        """Evaluate a policy on a task with one seed.

        Raises:
            FleetLost: none of the first `samples` answers could be judged.
        """
        budget = self._budget
        # A candidate that was measured on another type of machine than the folder's has no score, and `_check_machine` refuses it.
        fleet = Fleet(
            self._judge,
            {task.name: task},
            self._verdicts,
            group=1,
            settings=self._settings,
            reward=_REWARD,
            machine=self.machine or None,
        )
        answers: list[Sample] = []
        judged: dict[str, Sample] = {}
        number = 0
        while len(answers) < budget.samples or (
            len(judged) < budget.judged and len(answers) < budget.most_samples
        ):
            wanted = budget.samples if not answers else min(budget.judged, budget.most_samples - len(answers))
            texts = await asyncio.to_thread(self._written, policy, task, seed, number, wanted)
            number += 1
            read = [read_answer(text, finished=ended) for text, ended in texts]
            report = await fleet.judged(read, [task.name] * len(read))
            self._check_machine(report)
            for one in report.samples:
                # Candidates beyond the budget were judged only for the mean.
                known = one.answer.source is not None and one.score.value is not None
                form = fingerprint(one.answer.source or "") if known else ""
                if form and form not in judged and len(judged) < budget.judged:
                    judged[form] = one
                answers.append(one)
        first = [_speedup(one) for one in answers[: budget.samples] if one.score.value is not None]
        if not first:
            why = answers[0].score.why
            raise FleetLost(f"nothing that {policy.name} wrote for {task.name} was judged: {why}")
        best = max(judged.values(), key=_speedup, default=None)
        return Cell(
            policy=policy.name,
            task=task.name,
            seed=seed,
            mean=statistics.fmean(first),
            best=_speedup(best) if best else 0.0,
            judged=len(judged),
            written=len(answers),
            missing=sum(one.score.value is None for one in answers),
            accepted=sum(_speedup(one) > 0 for one in judged.values()),
            shown=(best.answer.source or "") if best else "",
        )

    def _written(
        self, policy: Policy, task: TaskSource, seed: int, number: int, count: int
    ) -> list[tuple[str, bool]]:
        draw = self._draws.get((seed, task.sha256), Draw((), 0))
        key = (policy.name, policy.identity, task.sha256, seed, number, digest_of(draw))
        if key not in self._known:
            text = text_of_task(task.source, "", "", self._settings.device)
            prompt = contrastive_prompt(text, draw)
            # The seed omits the policy's name: both policies share random numbers, which reduces the noise of their difference.
            made = policy.sample(prompt, count, tasks_module.seed_of(seed, task.sha256, number))
            self._answers.append([{**dict(zip(_KEY, key, strict=True)), "answers": made}])
            self._known[key] = made
        return [(str(text), bool(ended)) for text, ended in self._known[key]]

    def _check_machine(self, report: Report) -> None:
        """Refuse verdicts of a second type of machine, also rejections: a kernel may be too slow or not fit there."""
        for verdict in (one.verdict for one in report.samples if one.verdict is not None):
            machine = elsewhere(verdict, "")
            self.machine = self.machine or machine
            if machine not in ("", self.machine):
                raise ConfigError(
                    f"verdicts of {machine} and of {self.machine} in one folder: compare on one type of machine, or take another folder"
                )


def _speedup(one: Sample) -> float:
    """A judged answer's speedup, 0 for a failure. Training pays hacks the floor; here they must not show up as a gain."""
    return 0.0 if one.caught else one.score.speedup or 0.0


async def compare(
    comparison: Comparison, before: Policy, after: Policy, tasks: Sequence[TaskSource], budget: Budget
) -> dict[str, Any]:
    """Run the whole comparison; return its result in JSON form."""
    cells: dict[str, list[Cell]] = {"before": [], "after": []}
    for seed in range(budget.seeds):
        for task in tasks:
            for side, policy in (("before", before), ("after", after)):
                cells[side].append(await comparison.cell(policy, task, seed))
    return {
        "schema": SCHEMA,
        "policies": {"before": before.name, "after": after.name},
        "machine": comparison.machine,
        "budget": asdict(budget),
        "exemplars": comparison.shown,
        "cells": [
            {"side": side, **{name: value for name, value in asdict(cell).items() if name != "shown"}}
            for side, listed in cells.items()
            for cell in listed
        ],
        **compared(cells["before"], cells["after"]),
    }


def fleet_of(
    stages: Sequence[AnyStage], device: str | None = None, url: str | None = None, width: int | None = None
) -> FleetPart:
    """Fleet settings of the last judging stage, with the arguments taking precedence; an empty `url` means none.

    Drops the stage's `machine` and `verdicts`, which belong to its training run: a comparison uses the machine that judges it and
    keeps its own verdicts. It drops `first_look`, too: checkpoints are compared at all shapes.

    Raises:
        ConfigError: `device` is unknown.
    """
    if device not in (None, *BACKENDS):
        raise ConfigError(f"--device {device}: must be {' or '.join(BACKENDS)}")
    judging = [stage.fleet for stage in stages if not isinstance(stage, SftStage)]
    said = judging[-1].model_dump(exclude={"machine", "verdicts", "first_look"}) if judging else {}
    if device is not None:
        said["device"] = device
    if url is not None:
        said["url"] = url or None
    if width is not None:
        said |= {"width": width, "local_referees": width}
    return FleetPart.model_validate(said)


def main(
    before: Annotated[str, typer.Argument(help="A checkpoint: its folder, or its name on a hub.")],
    after: Annotated[str, typer.Argument(help="Another one.")],
    out: Annotated[
        Path,
        typer.Option(file_okay=False, help="A folder for what is found, `comparison.json` among it."),
    ],
    held_out: Annotated[list[str] | None, typer.Option(help="A task, or a task file, to compare on.")] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A training config: its held-out tasks, and what judges, at which shapes; what is given besides wins."
        ),
    ] = None,
    judged: Annotated[int, typer.Option(min=1, help="Candidates judged for each policy, task and seed.")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="Answers that the mean is over.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="How often.")] = 3,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the config's, else cuda.")] = None,
    judge_at: Annotated[
        str | None,
        typer.Option(
            help="A service that judges; the config's. Without one, or if empty, this machine's referees."
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, max=64, help="Evaluations at a time; the config's, else 1.")
    ] = None,
    exemplars: Annotated[
        Path | None,
        typer.Option(help="Rows of these tasks that prompts show, alike to both; without it they show none."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 4096,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of sampling.")] = 1.0,
    work_dir: Annotated[Path | None, typer.Option(help="Caches of the referees.")] = None,
) -> None:
    """Compare two checkpoints at equal evaluator budget."""
    try:
        stages = [stage for path in config or [] for stage in load(path)]
        fleet = fleet_of(stages, device, judge_at, width)
        named = [*(held_out or []), *(name for stage in stages for name in stage.held_out)]
        if not named:
            raise ConfigError("no task to compare on is named: give --held-out or --config")
        budget = Budget(judged, samples, max(8 * judged, samples), seeds)
        tasks = list(tasks_module.named(dict.fromkeys(named)).values())
        for task in tasks:
            if holds_markers(task.source):
                raise ConfigError(f"the task {task.name!r} holds text that means something in prompts")
        draws: Draws = {}
        if exemplars is not None:
            draws = draws_of(exemplars, tasks, machine_of(fleet), drawing_of(stages), seeds)
        policies = [
            Checkpoint(path, max_tokens=max_tokens, temperature=temperature) for path in (before, after)
        ]
        judge = judge_of(fleet, work_dir)
        try:
            with Comparison(out, judge, fleet, budget, draws) as comparison:
                found = asyncio.run(compare(comparison, policies[0], policies[1], tasks, budget))
        finally:
            judge.close()
        write_json(out / "comparison.json", found)
    except (ConfigError, DataError) as error:
        raise _ended(_WRONG, str(error)) from None
    except OSError as error:
        if error.errno not in _FULL:
            raise _ended(_WRONG, str(error)) from None
        raise _ended(_STOPPED, str(error)) from None
    except (RLError, EvaluatorError) as error:
        raise _ended(_STOPPED, str(error)) from None
    _show(Console(), found)


def _ended(status: int, why: str) -> typer.Exit:
    more = "; when that is mended, the same command goes on" if status == _STOPPED else ""
    # No markup: paths and task names may contain brackets.
    Console(stderr=True).print(f"{why}{more}", style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(status)


def _about(fleet: FleetPart) -> str:
    """Base name of the verdict file: verdicts depend on the device and the shapes."""
    if fleet.shapes is None:
        return f"verdicts-{fleet.device}"
    shapes = fleet.model_dump_json(include={"shapes"})
    return f"verdicts-{fleet.device}-{hashlib.sha256(shapes.encode()).hexdigest()[:8]}"


def _show(console: Console, found: Mapping[str, Any]) -> None:
    table = Table("", "before", "after", "after / before", "", box=None)
    for measure, words in (
        ("mean", "mean of all samples"),
        ("best", f"best of {found['budget']['judged']} judged"),
    ):
        ratio = found["after_over_before"][measure]
        shown = Interval(**ratio["ratio"]) if ratio["ratio"] else "-"
        sides = [str(Interval(**found[side][measure])) for side in ("before", "after")]
        table.add_row(words, *sides, str(shown), ratio["word"])
    for name in ("judged", "written", "missing"):
        table.add_row(name, *(str(found[side][name]) for side in ("before", "after")), "", "")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
