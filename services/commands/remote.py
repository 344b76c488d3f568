"""`submit`, `jobs`, `watch`, `fetch`, `batch`: use a local or remote service from a terminal (`services.client`).

`services.commands.terminal` chooses the key; the client decides where the key may be sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from services.client import DEFAULT_URL, Client, ClientError, OptimizeRequest, Unauthorized, Unreachable
from services.client.sending import KEY_VARIABLE
from services.commands.showing import Following, leaderboard
from services.commands.terminal import (
    AsJson,
    BudgetCandidates,
    BudgetUsd,
    KeyFile,
    KeyNotSent,
    PlainHttp,
    Space,
    Task,
    Traffic,
    give_up,
    json_of,
    key_from,
    print_json,
    print_line,
    task_field,
    text_of,
    wrong_fields,
)
from services.plain_text import plain_line

Url = Annotated[
    str, typer.Option("--url", envvar="KERNELWRIGHT_URL", help="Where the service is; `serve` prints it.")
]
_PIECE_CHARACTERS = 300_000  # a request may hold a million bytes, and nested JSON grows when escaped
_SHOWN_JOBS = 20


def submit(
    task: Task,
    url: Url = DEFAULT_URL,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the service's own by default.")] = None,
    budget_usd: BudgetUsd = None,
    budget_seconds: Annotated[float | None, typer.Option(help="Wall-clock seconds for all of it.")] = None,
    budget_candidates: BudgetCandidates = None,
    traffic: Traffic = None,
    space: Space = None,
    priority: Annotated[
        int | None, typer.Option(help="Which of your own jobs go first: the greater, from -4 to 4.")
    ] = None,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Start a job on a service and print its id.

    Example: kernelwright submit layernorm_relu_add --budget-seconds 600 --url https://kernels.example.org
    """
    budget = {"usd": budget_usd, "seconds": budget_seconds, "candidates": budget_candidates}
    wanted: dict[str, Any] = {
        **task_field(task),
        "device": device,
        "priority": priority,
        "budget": _given(budget),
        "traffic": json_of(traffic),
        "space": json_of(space),
    }
    with _service(url, key_file, plain_http) as client:
        print(client.submit(OptimizeRequest.model_validate(_given(wanted))).id)  # noqa: T201 - the program's output


def batch(
    job_id: str,
    url: Url = DEFAULT_URL,
    out: Annotated[Path | None, typer.Option(help="Write the open requests to this file.")] = None,
    answers: Annotated[Path | None, typer.Option(help="Hand in this file of answers instead.")] = None,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Fetch the requests of a job that is waiting, or hand in answers so that it goes on.

    Both files are OpenAI's Batch API's: its input file, and its output or error file.

    Example: kernelwright batch JOB --out requests.jsonl; kernelwright batch JOB --answers answers.jsonl
    """
    with _service(url, key_file, plain_http) as client:
        if answers is not None:
            pieces = pieces_of(text_of(answers))
            for number, piece in enumerate(pieces, start=1):
                job = client.answer_batch(job_id, piece, more=number < len(pieces))
            print(job.state)  # noqa: T201 - the program's output
            return
        content = client.batch(job_id)
    if out is None:
        sys.stdout.write(content)
    else:
        out.write_text(content, encoding="utf-8")


def pieces_of(text: str) -> list[str]:
    """Split text at line ends into pieces small enough for one request; a longer line is its own piece."""
    pieces = [""]
    for line in text.split("\n"):
        if pieces[-1] and len(pieces[-1]) + len(line) > _PIECE_CHARACTERS:
            pieces.append("")
        pieces[-1] += f"{line}\n" if line.strip() else ""
    return pieces


def jobs(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = _SHOWN_JOBS,
    as_json: AsJson = False,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """List the latest jobs of a service, newest first: what they are, how they stand and the best that they found."""
    with _service(url, key_file, plain_http) as client:
        found = list(client.jobs(limit=limit))
    if as_json:
        print_json([job.model_dump(mode="json") for job in found])
        return
    table = Table(box=SIMPLE_HEAD)
    # Never truncated, even on a narrow terminal: the other commands need the full id.
    table.add_column("job", no_wrap=True, min_width=26)
    table.add_column("name", overflow="ellipsis", min_width=12)
    for heading in ("state", "tried", "best", "origin"):
        table.add_column(heading, no_wrap=True)
    for job in found:
        speedup = job.best.geomean_speedup if job.best else None
        table.add_row(
            job.id,
            plain_line(job.name).replace("[", "\\["),
            job.state,
            str(job.counts.candidates),
            f"{speedup:.2f}x" if speedup else "-",
            job.best.origin if job.best else "-",
        )
    Console().print(table)


def watch(
    job_id: str, url: Url = DEFAULT_URL, key_file: KeyFile = None, plain_http: PlainHttp = False
) -> None:
    """Follow a job until it ends, with what is being judged below its log; exit code 0 when it succeeded."""
    console = Console()
    with _service(url, key_file, plain_http) as client:
        with Following(console) as following:
            for event in client.watch(job_id):
                following.tell(event)
        job = client.job(job_id)
        found = list(client.candidates(job_id))
    winner = job.winner.sha256 if job.winner else None
    console.print(leaderboard([view.model_dump(mode="json") for view in found], winner))
    print_line(f"{job.state}: {plain_line(job.reason)}", console)
    raise typer.Exit(0 if job.state == "succeeded" else 1)


def fetch(
    job_id: str,
    url: Url = DEFAULT_URL,
    out: Annotated[Path | None, typer.Option(help="File to write, or a folder to put it into.")] = None,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Download a job's bundle; the file appears when it is whole, and its name is printed."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        _service(url, key_file, plain_http) as client,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        row = bar.add_task("bundle", total=None)
        path = client.fetch(
            job_id, out or Path(), lambda done, total: bar.update(row, completed=done, total=total)
        )
    print(path)  # noqa: T201 - the program's output


@contextmanager
def _service(url: str, key_file: Path | None, plain_http: bool) -> Iterator[Client]:
    """Yield a client whose errors exit the program with a sentence."""
    try:
        with Client(url, key_from(key_file), allow_insecure_key=plain_http) as client:
            yield client
    except ValidationError as error:
        give_up(wrong_fields(error))
    except Unreachable as error:
        give_up(f"{error}; start one with `kernelwright serve`", 1)
    except Unauthorized as error:
        give_up(f"{error}\ngive its key in {KEY_VARIABLE}, or its file by --key-file", 1)
    except (ClientError, KeyNotSent, OSError, ValueError) as error:
        give_up(str(error), 1)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
