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

from experiments.dialect.arms import Outcome, ReplaySettings, run_arm
from experiments.dialect.cells import read_table
from experiments.dialect.learning import GrpoSettings, Learner, Practice, SftSettings, StepRecord
from experiments.dialect.live import LiveWorld, Tally
from experiments.dialect.model import Policy
from experiments.dialect.trl_learner import TrlLearner
from rl.config import FleetPart
from rl.intervals import ratio_of_means

ARMS = ("sft", "contrastive")


class Watched:
    """A learner whose parts are timed, with what of them was waiting for verdicts.

    Args:
        learner: which.
        waited_s: how long verdicts have been waited for so far.
    """

    def __init__(self, learner: Learner, waited_s: Callable[[], float]) -> None:
        self._learner = learner
        self._waited_s = waited_s
        self.parts = {"imitate_s": 0.0, "reinforce_s": 0.0, "waited_s": 0.0}

    def _timed(self, part: str, work: Callable[[], Any]) -> Any:
        began, waited_s = time.monotonic(), self._waited_s()
        try:
            return work()
        finally:
            self.parts[f"{part}_s"] += time.monotonic() - began
            self.parts["waited_s"] += self._waited_s() - waited_s

    def imitate(
        self, policy: Policy, rows: Callable[[int], list[tuple[str, str]]], settings: SftSettings
    ) -> list[float]:
        """See :class:`experiments.dialect.learning.Learner`."""
        losses: list[float] = self._timed("imitate", lambda: self._learner.imitate(policy, rows, settings))
        return losses

    def reinforce(
        self, policy: Policy, practice: Practice, settings: GrpoSettings, seed: int
    ) -> list[StepRecord]:
        """See :class:`experiments.dialect.learning.Learner`."""
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
    )
    fleet = FleetPart.model_validate(
        {"device": table.device, "width": width, "deadline_s": 600, "patience_s": 900}
    )
    torch.set_num_threads(1)
    world = LiveWorld(table, fleet, url.split(","))
    began = time.monotonic()
    supervised: dict[str, Any] = {}
    outcomes: list[Outcome] = []
    parts: dict[str, dict[str, float]] = {}
    compared = {"families": list(table.families), **asdict(settings)}

    def save(found: dict[str, Any]) -> None:
        """After each arm: what was judged is not lost with a run that is stopped."""
        data = {
            "program": "benchmarks.rl_live",
            "settings": {
                **compared,
                "seed": seed,
                "place": place,
                "width": width,
                "services": url.count(",") + 1,
            },
            "environment": dict(world.environment),
            "found": found,
            "tally": asdict(world.tally),
            "parts": parts,
            "outcomes": [outcome.as_json() for outcome in outcomes],
        }
        out.write_text(json.dumps(data) + "\n", encoding="utf-8")

    for name in ARMS:
        watched = Watched(TrlLearner(folder), lambda: world.tally.waited_s)
        outcome, _ = run_arm(world, name, watched, settings, seed, supervised, place)
        outcomes.append(outcome)
        parts[name] = watched.parts
        save({})
        console.print(f"{name}: outside {outcome.outside:.2f}, {world.tally}", markup=False)
    found = figures_of(outcomes, world.tally, parts["contrastive"], time.monotonic() - began)
    if replay is not None:
        found |= beside_replay(json.loads(replay.read_text(encoding="utf-8")), compared, found["ratio"])
    save(found)
    console.print(found)
    console.print(f"wrote {out}")


def figures_of(
    outcomes: list[Outcome], tally: Tally, reinforced: dict[str, float], elapsed_s: float
) -> dict[str, Any]:
    """The ratio of both arms' means over held-out tasks that both have candidates at, and rates after the first verdict."""
    by_arm = {outcome.arm: outcome.scores for outcome in outcomes}
    tasks = [name for name, scores in by_arm["sft"].items() if scores and by_arm["contrastive"][name]]
    after, before = (
        np.array([[float(np.mean(by_arm[arm][task])) for task in tasks]]) for arm in ("contrastive", "sft")
    )
    judging_s = tally.waited_s - (tally.first_verdict_s or 0.0)
    answered = tally.asked - sum(tally.unjudged.values())
    return {
        "ratio": asdict(ratio_of_means(after, before)) if tasks and before.mean() > 0 else None,
        "tasks": len(tasks),
        "elapsed_s": elapsed_s,
        "distinct_a_second": tally.judged / max(judging_s, 1e-9),
        "with_repeats_a_second": answered / max(judging_s, 1e-9),
        "idle_share": reinforced["waited_s"] / max(reinforced["reinforce_s"], 1e-9),
    }


def beside_replay(
    replay: dict[str, Any], compared: dict[str, Any], ratio: dict[str, float] | None
) -> dict[str, Any]:
    """Whether the ratio lies in the interval of a replay's P1.

    Raises:
        typer.BadParameter: the replay is of other settings.
    """
    theirs = {**replay["settings"], "families": replay["table"]["families"]}
    if differing := [name for name, value in compared.items() if theirs.get(name) != value]:
        raise typer.BadParameter(f"the replay differs in {', '.join(differing)}")
    claim = next(one for one in replay["claims"] if one["name"] == "P1")
    known = ratio is not None and claim["value"] is not None
    inside = known and claim["low"] <= ratio["value"] <= claim["high"] if ratio else False
    return {"replay": {key: claim[key] for key in ("value", "low", "high")}, "inside": inside}


if __name__ == "__main__":
    typer.run(main)
