"""Exhibit A's replay: all arms on a table of measured cells, several seeds, with intervals and the claims of docs/rl-claims.md.

Each seed is written as it ends; the same folder goes on with those that are missing. Settings that differ are refused there.

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

from rl.demo.arms import ARMS, SHAPINGS, Outcome, ReplaySettings, replay_seed
from rl.demo.cells import Table, TableUnusable, read_table
from rl.demo.findings import claims, figures
from rl.demo.learning import GrpoSettings, Learner, SftSettings
from rl.demo.own_learner import OwnLearner

LEARNERS = ("own", "trl")


def learner_named(name: str, folder: Path) -> Learner:
    """The trainer to use; TRL is loaded only where it is asked for."""
    if name == "trl":
        from rl.demo.trl_learner import TrlLearner

        return TrlLearner(folder)
    return OwnLearner()


def run_seed(table: Table, settings: ReplaySettings, seed: int, learner: str, folder: Path, key: str) -> None:
    """A seed in a process of its own; writes ``seed-N.json``."""
    torch.set_num_threads(1)
    outcomes = replay_seed(
        table,
        learner_named(learner, folder / f"trl-{seed}"),
        settings,
        seed,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    path = folder / f"seed-{seed}.json"
    beside = path.with_suffix(".tmp")
    data = {"key": key, "outcomes": [outcome.as_json() for outcome in outcomes]}
    beside.write_text(json.dumps(data), encoding="utf-8")
    beside.replace(path)


def read_seed(path: Path, key: str) -> list[Outcome]:
    """What a seed gave.

    Raises:
        TableUnusable: it is of another table, or of other settings.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["key"] != key:
        raise TableUnusable(f"{path} is of another table or other settings; name another folder")
    return [Outcome(**outcome) for outcome in data["outcomes"]]


def main(
    cells: Annotated[Path, typer.Argument(help="A table of benchmarks.rl_cells.")],
    folder: Annotated[Path, typer.Option(help="A file per seed.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Of reinforcement.")] = 100,
    sft_steps: Annotated[int, typer.Option(help="Of supervised training.")] = 400,
    tasks_per_step: Annotated[int, typer.Option()] = 16,
    families: Annotated[str, typer.Option(help="Of the table's, with commas; all by default.")] = "",
    shaping: Annotated[str, typer.Option(help=", ".join(SHAPINGS))] = "raw",
    dropout: Annotated[float, typer.Option(help="Share of prompts without exemplars.")] = 0.25,
    entropy_target: Annotated[
        float, typer.Option(help="Nats a token up to which entropy is paid.")
    ] = GrpoSettings.entropy_target,
    learner: Annotated[str, typer.Option(help=", ".join(LEARNERS))] = "own",
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Replay all arms."""
    if shaping not in SHAPINGS or learner not in LEARNERS:
        raise typer.BadParameter(f"shaping: {', '.join(SHAPINGS)}; learner: {', '.join(LEARNERS)}")
    console = Console(width=150)
    table = read_table(cells)
    if families:
        table = table.of_families(tuple(families.split(",")))
    settings = ReplaySettings(
        sft=SftSettings(steps=sft_steps),
        grpo=GrpoSettings(steps=steps, entropy_target=entropy_target),
        tasks_per_step=tasks_per_step,
        dropout=dropout,
        shaping=shaping,
    )
    folder.mkdir(parents=True, exist_ok=True)
    asked = [asdict(settings), learner, table.families, hashlib.sha256(cells.read_bytes()).hexdigest()]
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    missing = []
    for seed in range(seeds):
        path = folder / f"seed-{seed}.json"
        if path.exists():
            read_seed(path, key)
        else:
            missing.append(seed)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for running in [
            pool.submit(run_seed, table, settings, seed, learner, folder, key) for seed in missing
        ]:
            running.result()
    outcomes = [outcome for seed in range(seeds) for outcome in read_seed(folder / f"seed-{seed}.json", key)]
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
