"""Loads the tasks that a stage names, from the catalog or from files, and selects those of each step."""

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
    """Load tasks by their names in a config; a name that ends in `.py` is a file.

    Raises:
        ConfigError: a task or file does not exist or cannot be read, or two tasks have the same name.
    """
    found: dict[str, TaskSource] = {}
    for name in names:
        task = _file(Path(name)) if name.endswith(".py") else _of_catalogue(name)
        if task.name in found:
            raise ConfigError(f"two tasks are called {task.name!r}; rename one of the files")
        found[task.name] = task
    return found


def of_stage(stage: Stage, held_out: Iterable[str] = ()) -> dict[str, TaskSource]:
    """Load the tasks that a stage trains on, and refuse evaluation tasks under any name.

    Args:
        stage: names the tasks.
        held_out: evaluation tasks of the other stages of a list.

    Raises:
        ConfigError: there are no tasks, or one does not exist or cannot be shown in a prompt.
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
    """Source texts by task name, for `rl.decontamination`."""
    return {name: task.source for name, task in tasks.items()}


def of_step(seed: int, step: int, count: int, tasks: Sequence[str]) -> list[str]:
    """The tasks of an optimizer step: passes over all tasks, each pass shuffled anew; a pure function of the arguments."""
    chosen = []
    for place in range((step - 1) * count, step * count):
        turn, at = divmod(place, len(tasks))
        order = sorted(tasks)
        random.Random(f"{seed}/tasks/{turn}").shuffle(order)  # noqa: S311 - a reproducible draw
        chosen.append(order[at])
    return chosen


def seed_of(*parts: object) -> int:
    """A generator seed derived from values that identify the draw; the same in every process."""
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
