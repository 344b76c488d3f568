"""`evaluate-batch`: many candidates, resumable, for a GPU node without a service."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from evaluator.batch.manifest import ManifestUnreadable, read_manifest
from evaluator.batch.places import Place, places
from evaluator.batch.results import Results, ResultsUnusable
from evaluator.batch.run import UNJUDGED, Batch, Options
from evaluator.commands.options import Fresh, MinimumTier, WorkDir
from evaluator.counting import counted
from evaluator.devices import BACKENDS
from evaluator.errors import EvaluatorError
from evaluator.folders import default_work_dir

_LINE_EVERY_S = 15.0


def evaluate_batch(
    manifest: Annotated[
        Path,
        typer.Argument(
            help="JSON lines: id, task, candidate, and optionally device, effort, splits, shapes, deadline_s, precision."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Verdicts, one JSON line each; an existing file is continued.")
    ],
    device: Annotated[str, typer.Option(help="cpu or cuda, for lines without one.")] = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Referees per device; by default chosen by cores and memory."),
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs to use: all, or numbers such as 0,1.")] = "all",
    fresh: Fresh = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Judge again the lines that an earlier run could not judge.")
    ] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
) -> None:
    """Judge every line of a manifest. Exit status: 0 all judged, 1 some could not be judged, 2 nothing could be done."""
    console = Console(stderr=True)
    folder = work_dir or default_work_dir()
    if device not in BACKENDS:
        _fail(console, f"--device {device}: known are {' and '.join(BACKENDS)}")
    # A cluster's scheduler ends jobs with SIGTERM, which must leave the files as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        lines = read_manifest(manifest, device)
        with Results(out) as results:
            batch = Batch(
                lines,
                results,
                lambda devices: _seats(console, devices, gpus, jobs, folder),
                Options(folder, minimum_tier, fresh, retry),
            )
            _run(console, batch, out)
    except (ManifestUnreadable, ResultsUnusable, EvaluatorError) as error:
        _fail(console, str(error))
    finally:
        signal.signal(signal.SIGTERM, before)


def _seats(console: Console, devices: set[str], gpus: str, jobs: int | None, folder: Path) -> list[Place]:
    def warn(sentence: str) -> None:
        console.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)

    return places(devices, gpus, jobs, folder, warn)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _fail(console: Console, sentence: str) -> NoReturn:
    console.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _run(console: Console, batch: Batch, out: Path) -> None:
    display = _Display(console, batch)
    try:
        with display:
            batch.run(display.show)
    except KeyboardInterrupt:
        console.print(
            f"stopped: {batch.done} of {counted(batch.total, 'line')} judged, in {out}; the file is intact, and the same command "
            "goes on with the rest.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    console.print(
        f"{counted(batch.total, 'line')}: {_counts(batch)}", markup=False, highlight=False, soft_wrap=True
    )
    for place, why in batch.failures.items():
        console.print(f"{place}: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    left = batch.total - batch.done
    if left:
        console.print(
            f"{counted(left, 'line')} not reached; the same command goes on with the rest.", highlight=False
        )
        raise typer.Exit(2 if batch.judged + batch.skipped + batch.reused == 0 else 1)
    raise typer.Exit(1 if any(batch.counts[word] for word in UNJUDGED) else 0)


def _counts(batch: Batch) -> str:
    words = [f"{count} {word}" for word, count in batch.counts.most_common()]
    if batch.skipped:
        words.append(f"{batch.skipped} from an earlier run")
    if batch.reused:
        words.append(f"{batch.reused} known from before")
    if batch.judged:
        words.append(f"{batch.rate_per_minute:.1f} a minute")
    return ", ".join(words) or "nothing yet"


class _Display:
    """Bar and counts on a terminal; otherwise a line from time to time."""

    def __init__(self, console: Console, batch: Batch) -> None:
        self._console = console
        self._batch = batch
        self._bar = Progress(
            TextColumn("judged"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._row = self._bar.add_task("judged", total=batch.total)
        self._live = Live(self._bar, console=console, transient=True, refresh_per_second=4)
        self._printed_s = time.monotonic()

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self) -> None:
        text = _counts(self._batch)
        if self._console.is_terminal:
            self._bar.update(self._row, completed=self._batch.done)
            self._live.update(Group(self._bar, Text(text)))
        elif time.monotonic() - self._printed_s > _LINE_EVERY_S:
            self._printed_s = time.monotonic()
            self._console.print(
                f"{self._batch.done} of {self._batch.total}: {text}", markup=False, highlight=False
            )
