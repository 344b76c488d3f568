"""`python -m rl.data build`: rows to train on, each verified by the referee. Killed and started again, it goes on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluator.counting import counted
from evaluator.devices import BACKENDS
from evaluator.errors import EvaluatorError
from rl import tasks
from rl.config import FleetPart, load
from rl.data import accepted
from rl.data.build import Builder, Tally, provenance_path
from rl.data.lowering import Workshop, lowered
from rl.data.proposals import Proposal, from_library
from rl.data.written import written
from rl.errors import ConfigError, RLError
from rl.judges import judge_of

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
_console = Console(stderr=True)


@app.callback()
def _program() -> None:
    """Data sets of verified rows."""


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="The file of rows (JSON Lines, see rl/rows.py).")],
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="A task of the catalogue, or a task file, to evaluate on: what is like it is left out."
        ),
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="A training config: its held-out tasks are left out, too.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu (C++) or cuda (Triton).")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of modules, and of what rows show.")] = 0,
    modules: Annotated[int, typer.Option(min=0, help="Generated modules, lowered by the compiler.")] = 100,
    short: Annotated[
        int,
        typer.Option(min=0, help="Generated modules with two short Triton programs each (--device cuda)."),
    ] = 0,
    library: Annotated[bool, typer.Option(help="The kernel library's own kernels.")] = True,
    service: Annotated[
        str,
        typer.Option(help="A service whose accepted candidates are taken, too (key: KERNELWRIGHT_API_KEY)."),
    ] = "",
    most_accepted: Annotated[int, typer.Option(min=0, help="At most so many of them.")] = 1000,
    task_file: Annotated[
        list[Path] | None, typer.Option(help="Text of a task of that service that is not of the catalogue.")
    ] = None,
    judge_at: Annotated[
        str, typer.Option(help="A service that judges; without it referees of this machine.")
    ] = "",
    width: Annotated[int, typer.Option(min=1, max=64, help="Evaluations at a time.")] = 1,
    deadline_s: Annotated[float, typer.Option(min=5, max=3600, help="Of one evaluation, seconds.")] = 600.0,
    work_dir: Annotated[Path | None, typer.Option(help="Caches of the referees.")] = None,
) -> None:
    """Make proposals, look through them for evaluation tasks, judge them, and write down what was accepted."""
    try:
        if device not in BACKENDS:
            raise ConfigError(f"--device {device}: must be {' or '.join(BACKENDS)}")
        evaluated = evaluated_tasks(held_out or [], config or [])
        fleet = FleetPart.model_validate(
            {
                "url": judge_at or None,
                "device": device,
                "width": width,
                "local_referees": width,
                "deadline_s": deadline_s,
                "patience_s": deadline_s + 60,
                "step_s": deadline_s + 60,
            }
        )
        with ExitStack() as stack:
            # A referee's processes end with the thread that starts it, so create the workshop in the thread that uses it.
            making = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="workshop"))
            workshop = making.submit(Workshop, device, work_dir).result()
            stack.callback(lambda: making.submit(workshop.__exit__).result())
            judge = judge_of(fleet, work_dir)
            stack.callback(judge.close)
            builder = stack.enter_context(Builder(out, evaluated, judge, making, workshop, on_progress=_say))
            parts: list[Iterator[Proposal]] = []
            if library:
                parts.append(from_library(device))
            if service:
                client = stack.enter_context(accepted.client_of(service))
                known = accepted.tasks_by_digest(task_file or [])
                parts.append(accepted.from_service(client, device, known, most_accepted))
            parts += [written(device, seed, short), lowered(workshop, seed, modules)]
            try:
                asyncio.run(builder.run(itertools.chain(*parts), width))
            finally:
                rows = builder.export(seed)
                _show(builder.tally, rows, out)
    except (RLError, EvaluatorError) as error:
        # No markup: paths and task names may contain brackets.
        _console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    if builder.tally.missing:
        raise typer.Exit(1)


def evaluated_tasks(names: list[str], configs: list[Path]) -> dict[str, str]:
    """Sources of the evaluation tasks by name: the named tasks, and the held-out tasks of configs.

    Raises:
        ConfigError: there are none, or one cannot be found.
    """
    listed = [*names, *(name for path in configs for stage in load(path) for name in stage.held_out)]
    found = tasks.sources(tasks.named(dict.fromkeys(listed)))
    if not found:
        raise ConfigError(
            "no task to evaluate on is named: give --held-out or --config, which tell what must not be in the data"
        )
    return found


def _say(tally: Tally) -> None:
    words = ", ".join(f"{count} {word}" for word, count in sorted(tally.outcomes.items()))
    missing = sum(tally.missing.values())
    _console.print(
        f"{words or 'nothing yet'}" + (f", {missing} not judged" if missing else ""),
        markup=False,
        highlight=False,
    )


def _show(tally: Tally, rows: int, out: Path) -> None:
    table = Table("", "pairs", box=None)
    for word, count in sorted(tally.outcomes.items()):
        table.add_row(Text(word), str(count))
    table.add_row("decided before", str(tally.known))
    for why, count in tally.missing.most_common(5):
        table.add_row(Text(f"not judged: {why}"), str(count))
    _console.print(table)
    _console.print(
        f"{counted(rows, 'row')} in {out}; how each came about: {provenance_path(out)}",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    app()
