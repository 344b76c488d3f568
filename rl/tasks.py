"""Tasks that a stage names: of the catalogue, or files of one's own; and which of them a step asks for."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.prompts.markers import holds_markers
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog
from rl.config import Stage
from rl.decontamination import refuse_overlaps
from rl.errors import ConfigError

_MOST_BYTES = 1 << 20


def named(names: Iterable[str]) -> dict[str, TaskSource]:
    """Tasks by the names that a config gives them; what ends in `.py` is a file.

    Raises:
        ConfigError: there is no such task or file, or two have one name.
    """
    found: dict[str, TaskSource] = {}
    for name in names:
        task = _file(Path(name)) if name.endswith(".py") else _of_catalogue(name)
        if task.name in found:
            raise ConfigError(f"two tasks are called {task.name!r}; rename one of the files")
        found[task.name] = task
    return found


def of_stage(stage: Stage, held_out: Iterable[str] = ()) -> dict[str, TaskSource]:
    """The tasks that a stage trains on, none of which is one that the run is evaluated on, by whatever name.

    Args:
        stage: names them.
        held_out: those of the other stages of a list.

    Raises:
        ConfigError: there is none, one that does not exist, or one that no prompt can show.
        ContaminatedError: one of them is an evaluation task.
    """
    tasks = named(stage.tasks)
    if not tasks:
        raise ConfigError(f"the stage {stage.name!r} names no `tasks` to train on")
    for name, task in tasks.items():
        if holds_markers(task.source):
            raise ConfigError(
                f"the task {name!r} holds text that means something in prompts, such as ``` or <|...|>; take it out"
            )
    evaluated = sources(named(dict.fromkeys([*stage.held_out, *held_out])))
    refuse_overlaps(sources(tasks), evaluated)
    return tasks


def sources(tasks: dict[str, TaskSource]) -> dict[str, str]:
    """Task files by name, as `rl.decontamination` takes them."""
    return {name: task.source for name, task in tasks.items()}


def of_step(seed: int, step: int, count: int, tasks: Sequence[str]) -> list[str]:
    """The tasks of an optimizer step: all in turn, in an order drawn anew for each turn. A function of its arguments alone."""
    chosen = []
    for place in range((step - 1) * count, step * count):
        turn, at = divmod(place, len(tasks))
        order = sorted(tasks)
        random.Random(f"{seed}/tasks/{turn}").shuffle(order)  # noqa: S311 - a draw that can be repeated
        chosen.append(order[at])
    return chosen


def seed_of(*parts: object) -> int:
    """A seed for a generator from anything that says what is drawn: the same in every process."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big")


def _of_catalogue(name: str) -> TaskSource:
    try:
        task = catalog.load(name)
    except KeyError as error:
        raise ConfigError(str(error.args[0])) from None
    return TaskSource(task.name, task.source)


def _file(path: Path) -> TaskSource:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes, which no task is")
        source = path.read_text(encoding="utf-8")
        ast.parse(source)
        return TaskSource(path.stem, source)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no UTF-8 text") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: is no Python ({error})") from None
