"""Draws the exemplars for a comparison's prompts from a file of rows, as `contrastive` does, identically for both policies."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator.sources import TaskSource
from rl.config import AnyStage, ContrastiveStage, ExemplarPart
from rl.errors import ConfigError
from rl.exemplars import Draw, ExemplarDatabase
from rl.rows import successes_of
from rl.tasks import seed_of

#: Exemplars by seed and task digest.
Draws = Mapping[tuple[int, str], Draw]


def draws_of(
    path: Path, tasks: Sequence[TaskSource], machine: str | None, settings: ExemplarPart, seeds: int
) -> Draws:
    """Draw the exemplars once for each task and seed; all policies see the same ones.

    Args:
        path: a file of rows (`rl.rows`), such as a stage's `successes.jsonl`.
        tasks: the tasks of the comparison.
        machine: type of machine; rows of other types are left out. None accepts the one type that the rows have.
        settings: number of exemplars, and how to draw them.
        seeds: number of seeds.

    Raises:
        ConfigError: a task has no exemplar to show, or the rows come from two types of machine.
        DataError: the file cannot be read.
    """
    timed = successes_of(path, tasks)
    types = sorted({one.machine for one in timed if machine in (None, one.machine)})
    if len(types) > 1:
        raise ConfigError(
            f"{path} has rows of {types[0]} and of {types[1]}, whose speeds do not compare; give those of one"
        )
    found: dict[tuple[int, str], Draw] = {}
    with tempfile.TemporaryDirectory() as folder:
        with ExemplarDatabase(Path(folder) / "exemplars.journal", settings) as database:
            database.advance(timed)
            for task in tasks:
                for seed in range(seeds):
                    draw = database.draw(seed_of(seed, task.sha256), task.sha256, types[0] if types else "")
                    found[seed, task.sha256] = draw
                    if not draw.shown:
                        raise ConfigError(
                            f"{path} holds no row of {task.name} with a speedup{f' on {machine}' if machine else ''} that could be shown"
                        )
    return found


def drawing_of(stages: Sequence[AnyStage]) -> ExemplarPart:
    """The last contrastive stage's exemplar settings, without dropout and with exemplars even if it was trained without any."""
    found = [stage.exemplars for stage in stages if isinstance(stage, ContrastiveStage)]
    last = found[-1] if found else ExemplarPart()
    return last.model_copy(update={"dropout": 0.0, "draw": "buckets" if last.draw == "none" else last.draw})


def digest_of(draw: Draw) -> str:
    """Digest of the exemplars that a prompt shows; "" if it shows none."""
    shown = [[one.speedup, one.source] for one in draw.shown]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest() if shown else ""
