"""Exhibit B, the live run: one policy trained by TRL on rewards that come through a service's queue from the sandbox.

Rewards, exemplars and tests are the referee's verdicts of this run. Of the table only the supervised rows are taken, which the replay
took, too, and the names of tasks. A service with a worker for the device must answer at each `--url`; families are dealt out to them.

    KERNELWRIGHT_DEVICE=cuda kernelwright serve --port 8111 &
    python -m benchmarks.rl_live cells.json --url http://127.0.0.1:8111 --place cuda --out live.json --replay replay.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from rl.config import FleetPart
from rl.demo.arms import Outcome, ReplaySettings, mean_score, run_arm
from rl.demo.cells import read_table
from rl.demo.findings import grid
from rl.demo.intervals import ratio_of_means
from rl.demo.learning import GrpoSettings, Learner, Practice, SftSettings, StepRecord
from rl.demo.live import LiveWorld
from rl.demo.model import Policy
from rl.demo.trl_learner import TrlLearner

ARMS = ("sft", "contrastive")


class Watched:
    """A learner whose parts are timed."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.elapsed_s = {"imitate": 0.0, "reinforce": 0.0}

    def _timed(self, part: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return work()
        finally:
            self.elapsed_s[part] += time.monotonic() - began

    def imitate(
        self, policy: Policy, rows: Callable[[int], list[tuple[str, str]]], settings: SftSettings
    ) -> list[float]:
        """See :class:`rl.demo.learning.Learner`."""
        losses: list[float] = self._timed("imitate", lambda: self._learner.imitate(policy, rows, settings))
        return losses

    def reinforce(
        self, policy: Policy, practice: Practice, settings: GrpoSettings, seed: int
    ) -> list[StepRecord]:
        """See :class:`rl.demo.learning.Learner`."""
        found: list[StepRecord] = self._timed(
            "reinforce", lambda: self._learner.reinforce(policy, practice, settings, seed)
        )
        return found


def main(
    cells: Annotated[Path, typer.Argument(help="A table of benchmarks.rl_cells.")],
    url: Annotated[str, typer.Option(help="Services (commas), each with a worker for the table's device.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
    families: Annotated[str, typer.Option(help="Of the table's, with commas; all by default.")] = "",
    place: Annotated[str, typer.Option(help="Where the policy is, for torch.")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    steps: Annotated[int, typer.Option(help="Of reinforcement.")] = 100,
    sft_steps: Annotated[int, typer.Option(help="Of supervised training.")] = 400,
    tasks_per_step: Annotated[int, typer.Option()] = 16,
    width: Annotated[int, typer.Option(help="Evaluations under way at once.")] = 4,
    replay: Annotated[Path | None, typer.Option(help="JSON of benchmarks.rl_replay to compare with.")] = None,
    folder: Annotated[Path, typer.Option(help="TRL's folder.")] = Path("/tmp/rl-live"),
) -> None:
    """Train and test one policy live."""
    console = Console(width=150)
    table = read_table(cells)
    if families:
        table = table.of_families(tuple(families.split(",")))
    settings = ReplaySettings(
        sft=SftSettings(steps=sft_steps), grpo=GrpoSettings(steps=steps), tasks_per_step=tasks_per_step
    )
    fleet = FleetPart.model_validate(
        {"device": table.device, "width": width, "deadline_s": 600, "patience_s": 900}
    )
    torch.set_num_threads(1)
    world = LiveWorld(table, fleet, url.split(","))
    began = time.monotonic()
    supervised: dict[str, Any] = {}
    outcomes: list[Outcome] = []
    parts: dict[str, dict[str, Any]] = {}
    for name in ARMS:
        watched = Watched(TrlLearner(folder))
        before_s = world.tally.waited_s
        outcome, _ = run_arm(world, name, watched, settings, seed, supervised, place)
        outcomes.append(outcome)
        parts[name] = {**watched.elapsed_s, "waited_s": world.tally.waited_s - before_s}
        console.print(
            f"{name}: mean {mean_score(outcome):.3f}, outside {outcome.outside:.2f}, {world.tally}",
            markup=False,
        )
    elapsed_s = time.monotonic() - began
    ratio = ratio_of_means(_means(outcomes, "contrastive"), _means(outcomes, "sft"))
    tally, reinforced = world.tally, parts["contrastive"]
    after_first_s = tally.waited_s - (tally.first_verdict_s or 0.0)
    found = {
        "ratio": asdict(ratio),
        "elapsed_s": elapsed_s,
        "distinct_a_second": tally.judged / max(after_first_s, 1e-9),
        "with_repeats_a_second": tally.asked / max(after_first_s, 1e-9),
        "idle_share": min(1.0, reinforced["waited_s"] / max(reinforced["reinforce"], 1e-9)),
    }
    console.print(f"contrastive over sft, this seed's tasks: {ratio}")
    console.print(found)
    if replay is not None:
        claim = next(one for one in json.loads(replay.read_text())["claims"] if one["name"] == "P1")
        found["replay"] = {key: claim[key] for key in ("value", "low", "high")}
        found["inside"] = claim["low"] <= ratio.value <= claim["high"]
        console.print(f"the replay's interval: {found['replay']}; inside: {found['inside']}")
    data = {
        "program": "benchmarks.rl_live",
        "settings": {**asdict(settings), "seed": seed, "place": place, "width": width},
        "environment": dict(table.environment),
        "table": {"device": table.device, "size": table.size, "families": list(table.families)},
        "found": found,
        "tally": asdict(tally),
        "parts": parts,
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }
    out.write_text(json.dumps(data) + "\n", encoding="utf-8")
    console.print(f"wrote {out}")


def _means(outcomes: list[Outcome], arm: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return grid(outcomes, arm, lambda scores: float(np.mean(scores)) if scores else 0.0)


if __name__ == "__main__":
    typer.run(main)
