"""Exhibit A's replay: all arms on a table of measured cells, several seeds, with intervals and the claims of docs/rl-claims.md.

Each arm of each seed is written as it ends; the same folder goes on with those that are missing. Settings that differ are refused
there. On another type of machine sums are rounded otherwise, and an arm's weights are not quite those that they would have been here.

    python -m benchmarks.rl_replay cells.json --folder /tmp/replay --out replay.json
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as Printed

from experiments.dialect.arms import (
    ARMS,
    SHAPINGS,
    Outcome,
    ReplaySettings,
    World,
    compared_with,
    mean_score,
    run_arm,
)
from experiments.dialect.cells import Table, TableUnusable, read_table
from experiments.dialect.findings import claims, figures
from experiments.dialect.learning import GrpoSettings, Learner, SftSettings
from experiments.dialect.own_learner import OwnLearner

LEARNERS = ("own", "trl")
#: The unit of work of a seed that needs all of its arms.
COMPARED = "compared"


def learner_named(name: str, folder: Path) -> Learner:
    """The trainer to use; TRL is loaded only where it is asked for."""
    if name == "trl":
        from experiments.dialect.trl_learner import TrlLearner

        return TrlLearner(folder)
    return OwnLearner()


def run_unit(
    cells: Path,
    families: str,
    settings: ReplaySettings,
    unit: tuple[int, str],
    learner: str,
    folder: Path,
    key: str,
) -> None:
    """A seed's arm, or what its arms are compared with once they are there, in a process of its own; writes one file."""
    torch.set_num_threads(1)
    seed, name = unit
    world = World(part_of(cells, families))
    trained = learner_named(learner, folder / f"trl-{seed}-{name}")
    if name == COMPARED:
        arms = [one for arm in ARMS for one in read_unit(folder, (seed, arm), key)]
        outcomes = compared_with(world, trained, settings, seed, arms)
    else:
        outcomes = [run_arm(world, name, trained, settings, seed, {})[0]]
    path = folder / f"seed-{seed}-{name}.json"
    beside = path.with_suffix(".tmp")
    data = {"key": key, "outcomes": [outcome.as_json() for outcome in outcomes]}
    beside.write_text(json.dumps(data), encoding="utf-8")
    beside.replace(path)
    for one in outcomes:
        print(
            f"seed {seed}, {one.arm}: mean {mean_score(one):.3f}, outside {one.outside:.2f}", file=sys.stderr
        )


def part_of(cells: Path, families: str) -> Table:
    """A table, or the part of it that is about some families (with commas)."""
    table = read_table(cells)
    return table.of_families(tuple(families.split(","))) if families else table


def read_unit(folder: Path, unit: tuple[int, str], key: str) -> list[Outcome]:
    """What an arm of a seed gave.

    Raises:
        TableUnusable: it is of another table, or of other settings.
    """
    path = folder / f"seed-{unit[0]}-{unit[1]}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["key"] != key:
        raise TableUnusable(f"{path} is of another table or other settings; name another folder")
    return [Outcome(**outcome) for outcome in data["outcomes"]]


def main(
    cells: Annotated[Path, typer.Argument(help="A table of benchmarks.rl_cells.")],
    folder: Annotated[Path, typer.Option(help="A file per seed and arm.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Of reinforcement.")] = 100,
    sft_steps: Annotated[int, typer.Option(help="Of supervised training.")] = 400,
    tasks_per_step: Annotated[int, typer.Option()] = 16,
    families: Annotated[str, typer.Option(help="Of the table's, with commas; all by default.")] = "",
    shaping: Annotated[str, typer.Option(help=", ".join(SHAPINGS))] = "raw",
    dropout: Annotated[float, typer.Option(help="Share of prompts without exemplars.")] = 0.25,
    learning_rate: Annotated[float, typer.Option(help="Of reinforcement.")] = GrpoSettings.learning_rate,
    entropy: Annotated[float, typer.Option(help="What a nat of it is paid.")] = GrpoSettings.entropy,
    entropy_target: Annotated[
        float, typer.Option(help="Nats a token up to which entropy is paid.")
    ] = GrpoSettings.entropy_target,
    scaled: Annotated[
        bool,
        typer.Option(help="Advantages in standard deviations of their group, or in units of the reward."),
    ] = True,
    best_of: Annotated[
        int, typer.Option(min=1, max=GrpoSettings.samples, help="Candidates of which the best will count.")
    ] = 1,
    copies: Annotated[bool, typer.Option(help="Whether a program that its prompt showed is paid.")] = True,
    episodes: Annotated[
        int, typer.Option(min=0, help="Steps with the same tasks, whose exemplars are of the same episode.")
    ] = 0,
    sized: Annotated[bool, typer.Option(help="Whether prompts name the size of their task.")] = True,
    learner: Annotated[str, typer.Option(help=", ".join(LEARNERS))] = "own",
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Replay all arms."""
    if shaping not in SHAPINGS or learner not in LEARNERS:
        raise typer.BadParameter(f"shaping: {', '.join(SHAPINGS)}; learner: {', '.join(LEARNERS)}")
    if learner == "trl" and (episodes or not copies):
        raise typer.BadParameter(
            "TRL's loader asks a step ahead: --episodes and --no-copies are for the own learner"
        )
    console = Console(width=150)
    table = part_of(cells, families)
    settings = ReplaySettings(
        sft=SftSettings(steps=sft_steps),
        grpo=GrpoSettings(
            steps=steps,
            learning_rate=learning_rate,
            entropy=entropy,
            entropy_target=entropy_target,
            scaled=scaled,
            best_of=best_of,
        ),
        tasks_per_step=tasks_per_step,
        dropout=dropout,
        shaping=shaping,
        copies=copies,
        episodes=episodes,
        sized=sized,
    )
    folder.mkdir(parents=True, exist_ok=True)
    asked = [asdict(settings), learner, table.families, hashlib.sha256(cells.read_bytes()).hexdigest()]
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    arms = [(seed, arm) for arm in ARMS for seed in range(seeds)]
    compared = [(seed, COMPARED) for seed in range(seeds)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for units in (arms, compared):
            missing = [unit for unit in units if not _is_there(folder, unit, key)]
            for running in [
                pool.submit(run_unit, cells, families, settings, unit, learner, folder, key)
                for unit in missing
            ]:
                running.result()
    outcomes = [one for unit in sorted(arms + compared) for one in read_unit(folder, unit, key)]
    report(console, outcomes)
    data: dict[str, Any] = {
        "program": "benchmarks.rl_replay",
        "settings": {**asdict(settings), "learner": learner, "seeds": seeds},
        "environment": dict(table.environment),
        "table": {"device": table.device, "size": table.size, "families": list(table.families)},
        "arms": figures(outcomes),
        "claims": [asdict(claim) for claim in claims(outcomes)],
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }
    out.write_text(json.dumps(data, indent=None) + "\n", encoding="utf-8")
    console.print(f"wrote {out}")


def _is_there(folder: Path, unit: tuple[int, str], key: str) -> bool:
    if not (folder / f"seed-{unit[0]}-{unit[1]}.json").exists():
        return False
    read_unit(folder, unit, key)
    return True


def report(console: Console, outcomes: list[Outcome]) -> None:
    """Prints arms and claims."""
    printed = Printed(
        "arm",
        "mean",
        "best",
        "geomean best",
        "median",
        "> 1.05",
        "of optimum",
        "8 different",
        "accepted",
        "outside",
        "judged",
    )
    every = figures(outcomes)
    for name in [*ARMS, "sft_longer", "random_valid", "optimum"]:
        if name in every:
            arm = every[name]
            printed.add_row(
                name,
                *(
                    f"{arm[column]['value']:.2f} [{arm[column]['low']:.2f}, {arm[column]['high']:.2f}]"
                    for column in ("mean", "best")
                ),
                f"{arm['geomean_best']:.2f}",
                f"{arm['median']:.2f}",
                f"{arm['above_1_05']:.0%}",
                f"{arm['of_optimum']['value']:.2f}",
                f"{arm['best_of_different']['value']:.2f}" if arm["best_of_different"] else "",
                f"{arm['accepted']:.0%}",
                f"{arm['outside']:.0%}",
                f"{arm['judged']:.0f}",
            )
    console.print(printed)
    for claim in claims(outcomes):
        found = (
            "no ratio" if claim.value is None else f"{claim.value:.3f} [{claim.low:.3f}, {claim.high:.3f}]"
        )
        console.print(
            f"{claim.name} {claim.measure}: {found}, {'holds' if claim.holds else 'does not hold'}",
            markup=False,
        )


if __name__ == "__main__":
    typer.run(main)
