"""`kernelwright tasks`: lists the project's reference problems and imports others."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from evaluator.counting import counted
from services.commands.terminal import AsJson, MinimumTier, give_up, print_json, print_line

app = typer.Typer(
    no_args_is_help=True, help="The reference problems: those of the project and imported ones."
)


@app.callback()
def _group() -> None:
    """The reference problems: those of the project and imported ones."""


@app.command("list")
def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks; their names are what `optimize` and POST /optimize take."""
    from kernelbench_tasks import catalog
    from services.catalogue import registry
    from services.settings import get_settings

    shown = [
        {
            "name": task.name,
            "level": task.level,
            "title": task.title,
            "sha256": task.sha256,
            "imported": False,
        }
        for task in catalog.list_tasks()
    ]
    shown += [
        {"name": task.name, "level": task.level, "title": task.title, "sha256": task.sha256, "imported": True}
        for task in registry.list_tasks(get_settings().data_dir)
    ]
    if as_json:
        print_json(shown)
        return
    table = Table("task", "level", "what it computes")
    for task in shown:
        table.add_row(Text(str(task["name"])), str(task["level"]), Text(str(task["title"])))
    Console().print(table)


@app.command("import")
def import_tasks(
    path: Annotated[Path, typer.Argument(help="A checkout of KernelBench, any version.")],
    device: Annotated[str, typer.Option(help="cpu or cuda: where tasks are looked at.")] = "cpu",
    minimum_tier: MinimumTier = "landlock",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Files looked at side by side. Default: by cores and memory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at every task of a KernelBench checkout and register those that measure something.

    Tasks get the space of shapes that is inferred; a report says of each what was found. A task can be used as soon as it has been
    looked at, while the others go on. Stopped, it goes on with the same command. Exit status: 0 done, 2 nothing could be done.
    """
    from evaluator.batch.places import Place, places, untimed_jobs
    from evaluator.client import Referee
    from evaluator.errors import EvaluatorError
    from evaluator.folders import default_work_dir, verdicts_folder
    from services.catalogue import checkout, importing
    from services.settings import get_settings

    try:
        files = checkout.find(path)
        work_dir = default_work_dir()
        seats = places({device}, "all", jobs or untimed_jobs(device), work_dir)
        with ExitStack() as opened, _bar(Console(stderr=True)) as bar:
            row = bar.add_task("starting", total=len(files))

            def start(place: Place) -> Referee:
                referee = Referee(
                    place.device,
                    work_dir=place.work_dir,
                    minimum_tier=minimum_tier,
                    visible_gpu=place.visible_gpu,
                    verdicts_dir=verdicts_folder(work_dir),
                    referees=place.referees,
                )
                # When the import is stopped, kill the referee instead of waiting for its check.
                opened.callback(referee.close)
                opened.push(lambda kind, *_: referee.kill() if kind else None)
                return referee

            def show(done: int, total: int, name: str) -> None:
                bar.update(row, completed=done, description=name)

            starts = [partial(start, place) for place in seats]
            imported = importing.run(files, starts, device, get_settings().data_dir, show)
    except (checkout.NotKernelBench, EvaluatorError, OSError) as error:
        give_up(str(error))
    except KeyboardInterrupt:
        give_up("stopped; what was looked at is registered, and the same command goes on where it was", 130)
    report = imported.folder / "report.html"
    if as_json:
        print_json({"folder": str(imported.folder), "report": str(report), "counts": imported.counts})
        return
    counts = imported.counts
    words = f"{counts['sound'] + counts['marked']} of {counted(len(files), 'task')} registered ({counts['marked']} with remarks), "
    words += f"{counts['refused']} refused, {counts['unknown']} could not be looked at; report: {report}"
    print_line(words)


def _bar(console: Console) -> Progress:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    return Progress(*columns, console=console, transient=True)
