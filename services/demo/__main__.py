"""The program behind `make demo`; see the package's docstring."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelbench_tasks import catalog
from services.client import Client, ClientError, OptimizeRequest
from services.commands.terminal import task_field, wrong_fields
from services.data_folder import DataFolderOpen, make_private
from services.demo.serving import DemoFailed, running_service
from services.demo.steps import Demo

DEFAULT_TASK = "gated_linear_recurrence"
#: For the demo's own task: the library's and the compiler's kernel, one of which wins; more would only take longer.
_OWN_CANDIDATES = 2


class Clock:
    """Records the duration of each part in seconds."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, float]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part, even if it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.parts.append((name, time.monotonic() - start))


def _source_of(fields: Mapping[str, Any]) -> str:
    if "source" in fields:
        return str(fields["source"])
    try:
        return catalog.load(str(fields["task"])).source
    except KeyError as error:
        raise DemoFailed(str(error.args[0])) from None


def _run(
    task: str, folder: Path, console: Console, clock: Clock, *, device: str | None, seconds: float
) -> None:
    budget = {"seconds": seconds, **({"candidates": _OWN_CANDIDATES} if task == DEFAULT_TASK else {})}
    fields = dict(task_field(task), budget=budget, **({"device": device} if device else {}))
    source = _source_of(fields)
    try:
        request = OptimizeRequest.model_validate(fields)
    except ValidationError as error:
        raise DemoFailed(wrong_fields(error)) from None
    # While it is still empty: the service refuses a folder that other users can read.
    make_private(folder)
    heading = console.rule
    heading("[bold]1. Start the service", align="left")
    starting = time.monotonic()
    with running_service(folder) as url, Client(url) as client:
        demo = Demo(client, folder, console)
        tier = demo.wait_until_ready()
        demo.clear_leftovers()
        clock.parts.append(
            ("start of the service, with the sandbox's self-check", time.monotonic() - starting)
        )
        console.print(f"Dashboard: {url}/   sandbox: {tier}", highlight=False)

        heading(f"[bold]2. Optimize {Path(task).name}", align="left")
        with clock.part("POST /optimize to bundle"):
            job = demo.optimize(request)
            bundle = demo.fetch_bundle(job)
        if demo.first_accepted_s is not None:
            clock.parts.insert(-1, ("POST /optimize to the first accepted candidate", demo.first_accepted_s))
        demo.show_result(job)
        console.print(f"Bundle: {bundle}", highlight=False, soft_wrap=True)
        console.print(f"Page:   {url}{job.urls.dashboard}", highlight=False, soft_wrap=True)

        heading("[bold]3. Re-check the bundle in a new process", align="left")
        with clock.part("reproduce.py of the bundle"):
            demo.reproduce(bundle)

        heading("[bold]4. A candidate that cheats", align="left")
        with clock.part("judging the cheating candidate"):
            demo.show_cheat(job, source)

        heading("[bold]5. Stop", align="left")
    console.print("The service is stopped. The bundle and the database stay; to look at the pages again:")
    script = Path(sys.executable).with_name("kernelwright")
    serve = script if script.exists() else "kernelwright"
    console.print(f"  KERNELWRIGHT_DATA_DIR={folder} {serve} serve", highlight=False, soft_wrap=True)


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main(
    task: Annotated[
        str, typer.Option(help="A task file, or the name of a task of the catalogue.")
    ] = DEFAULT_TASK,
    data_dir: Annotated[Path, typer.Option(help="Where database and bundle are kept.")] = Path(
        ".kernelwright-demo"
    ),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the service's own by default.")] = None,
    seconds: Annotated[
        float, typer.Option(help="For the whole job; what is not done by then is left out.")
    ] = 600.0,
    plain: Annotated[bool, typer.Option(help="Plain lines, as when the output is no terminal.")] = False,
) -> None:
    """Run the whole path once: service, job, bundle, re-check, a cheat that is caught."""
    # A terminated demo must stop its service too; the default handler would leave it running.
    signal.signal(signal.SIGTERM, _terminate)
    is_terminal = sys.stdout.isatty() and not plain
    console = Console() if is_terminal else Console(force_terminal=False, width=120)
    clock = Clock()
    try:
        _run(task, data_dir.resolve(), console, clock, device=device, seconds=seconds)
    except (
        DemoFailed,
        DataFolderOpen,
        ClientError,
        httpx.HTTPError,
        subprocess.TimeoutExpired,
        OSError,
    ) as error:
        console.print(Text.assemble(("The demo failed: ", "bold red"), str(error)), soft_wrap=True)
        console.print(Text(f"The service's log is {data_dir.resolve() / 'service.log'}"), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted; the service is stopped.")
        raise typer.Exit(130) from None
    table = Table("part", "seconds", title="How long it took", title_justify="left")
    table.columns[1].justify = "right"
    for name, took_s in clock.parts:
        table.add_row(name, f"{took_s:.1f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
