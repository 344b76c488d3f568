"""`submit`, `watch`, `fetch`, `jobs`: the HTTP API from a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from rich.table import Table

from services.commands.credentials import VARIABLE, KeyFile, KeyNotSent, PlainHttp, goes_directly, headers_for
from services.commands.showing import event_line, leaderboard
from services.commands.task_argument import json_of, task_field, text_of

Url = Annotated[
    str, typer.Option("--url", envvar="KERNELWRIGHT_URL", help="Where the service is; `serve` prints it.")
]
_DEFAULT_URL = "http://127.0.0.1:8000"
_PIECE_CHARACTERS = 300_000  # a service takes a million bytes in a request, and JSON within JSON grows
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Service:
    """A service, and the key that it is shown."""

    url: str
    key_file: Path | None = None
    plain_http: bool = False

    def client_options(self, timeout_s: httpx.Timeout | float = _TIMEOUT_S) -> dict[str, Any]:
        """What every request to it is made with."""
        try:
            headers = headers_for(self.url, self.key_file, plain_http=self.plain_http)
        except KeyNotSent as error:
            _give_up(str(error))
        return {"headers": headers, "timeout": timeout_s, "trust_env": not goes_directly(self.url)}


def submit(
    task: Annotated[str, typer.Argument(help="A task file, or the name of a task of the catalogue.")],
    url: Url = _DEFAULT_URL,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
    budget_seconds: Annotated[float | None, typer.Option(help="Wall-clock seconds.")] = None,
    budget_candidates: Annotated[int | None, typer.Option(help="How many candidates are judged.")] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(help='Your own shapes as JSON: [{"dims": {"rows": 4}, "weight": 12}, ...].'),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(help='Instead of sizes that are inferred, as JSON: {"rows": {"max": 64}, ...}.'),
    ] = None,
) -> None:
    """Start a job on a service and print its id."""
    service = Service(url, key_file, plain_http)
    budget = {"seconds": budget_seconds, "candidates": budget_candidates}
    body: dict[str, Any] = {
        **task_field(task),
        "budget": {name: value for name, value in budget.items() if value is not None},
    }
    if traffic is not None:
        body["traffic"] = json_of(traffic)
    if space is not None:
        body["space"] = json_of(space)
    job = _ask(service, "POST", "/optimize", json=body).json()
    print(job["id"])  # noqa: T201 - the program's answer


def batch(
    job_id: str,
    url: Url = _DEFAULT_URL,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
    out: Annotated[Path | None, typer.Option(help="Write the open requests to this file.")] = None,
    answers: Annotated[Path | None, typer.Option(help="Hand in this file of answers instead.")] = None,
) -> None:
    """Fetch the requests of a job that is waiting, or hand in answers so that it goes on.

    Both files are OpenAI's Batch API's: its input file, and its output or error file.

    Example: kernelwright batch JOB --out requests.jsonl; kernelwright batch JOB --answers answers.jsonl
    """
    service = Service(url, key_file, plain_http)
    if answers is not None:
        pieces = pieces_of(text_of(answers))
        for number, piece in enumerate(pieces, start=1):
            body = {"answers": piece, "more": number < len(pieces)}
            job = _ask(service, "POST", f"/jobs/{job_id}/batch", json=body).json()
        print(job["state"])  # noqa: T201 - the program's answer
        return
    content = _ask(service, "GET", f"/jobs/{job_id}/batch").text
    if out is None:
        sys.stdout.write(content)
    else:
        out.write_text(content, encoding="utf-8")


def pieces_of(text: str) -> list[str]:
    """Whole lines, together so short that a service takes them in one request; one that is longer stands alone."""
    pieces = [""]
    for line in text.split("\n"):
        if pieces[-1] and len(pieces[-1]) + len(line) > _PIECE_CHARACTERS:
            pieces.append("")
        pieces[-1] += f"{line}\n" if line.strip() else ""
    return pieces


def jobs(
    url: Url = _DEFAULT_URL,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """List the latest jobs of a service."""
    service = Service(url, key_file, plain_http)
    page = _ask(service, "GET", "/jobs").json()
    if as_json:
        json.dump(page["data"], sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table("job", "name", "state", "verdict", "candidates", "best", "origin of best")
    for job in page["data"]:
        best = job["best"] or {}
        speedup = best.get("geomean_speedup")
        table.add_row(
            job["id"],
            job["name"],
            job["state"],
            job["verdict"] or "-",
            str(job["counts"]["candidates"]),
            f"{speedup:.2f}x" if speedup else "-",
            best.get("origin", "-"),
        )
    Console().print(table)


def watch(
    job_id: str, url: Url = _DEFAULT_URL, key_file: KeyFile = None, plain_http: PlainHttp = False
) -> None:
    """Follow a job until it ends; exit code 0 when it succeeded."""
    service = Service(url, key_file, plain_http)
    console = Console()
    job = _ask(service, "GET", f"/jobs/{job_id}").json()
    for event in _events(service, job_id):
        line = event_line(event)
        if line:
            console.print(line)
    job = _ask(service, "GET", f"/jobs/{job_id}").json()
    console.print(leaderboard(_ask(service, "GET", f"/jobs/{job_id}/candidates").json()["data"]))
    console.print(f"{job['state']}: {job['reason']}", markup=False, highlight=False)
    raise typer.Exit(0 if job["state"] == "succeeded" else 1)


def fetch(
    job_id: str,
    url: Url = _DEFAULT_URL,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
    out: Annotated[Path | None, typer.Option(help="File to write.")] = None,
) -> None:
    """Download a job's bundle."""
    service = Service(url, key_file, plain_http)
    content = _ask(service, "GET", f"/jobs/{job_id}/bundle").content
    path = out or Path(f"kernelwright-{job_id}.zip")
    path.write_bytes(content)
    print(path)  # noqa: T201 - the program's answer


def _events(service: Service, job_id: str) -> Iterator[dict[str, Any]]:
    """Events of a job as they come; reconnects where the stream broke off."""
    seen = "0"
    options = service.client_options(httpx.Timeout(_TIMEOUT_S, read=60.0))
    with httpx.Client(base_url=service.url, **options) as client:
        while True:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": seen}
            try:
                with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
                    if response.status_code != httpx.codes.OK:
                        return
                    for line in response.iter_lines():
                        if line.startswith("data: "):
                            event = json.loads(line.removeprefix("data: "))
                            seen = str(event["id"])
                            yield event
            except httpx.ReadTimeout:
                continue
            except httpx.TransportError as error:
                _give_up(f"lost {service.url}: {error}")


def _ask(service: Service, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        response = httpx.request(
            method, service.url.rstrip("/") + path, **service.client_options(), **options
        )
    except httpx.TransportError as error:
        _give_up(f"no service answers at {service.url} ({error}); start one with `kernelwright serve`")
    if not response.is_success:
        _give_up(_problem_text(response))
    return response


def _problem_text(response: httpx.Response) -> str:
    try:
        problem = response.json()
    except ValueError:
        return f"{response.status_code} {response.reason_phrase}"
    lines = [str(problem.get("detail")), *(_field(item) for item in problem.get("errors", ()))]
    if response.status_code == httpx.codes.UNAUTHORIZED:
        lines.append(f"give its key in {VARIABLE}, or its file by --key-file")
    return "\n".join(lines)


def _field(item: dict[str, str]) -> str:
    return f"  {item['field']}: {item['message']}"


def _give_up(message: str) -> NoReturn:
    Console(stderr=True).print(message, style="red", markup=False, highlight=False)
    raise typer.Exit(1)
