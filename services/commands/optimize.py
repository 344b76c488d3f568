"""`kernelwright optimize`: a whole job on this machine, in this process, without HTTP.

The job is a row of the same database as the service's, leased by this process: the dashboard shows it, and when the
process is killed `kernelwright serve` takes it up where it was.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from services.commands.showing import event_line, leaderboard
from services.commands.task_argument import EXIT_USAGE, json_of, task_field, text_of
from services.jobs.views import JobView

_REFRESH_S = 0.3
_EXIT_FAILED = 1


def optimize(
    task: Annotated[str, typer.Argument(help="A task file, or the name of a task of the catalogue.")],
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="US dollars for model calls.")] = None,
    budget_seconds: Annotated[float | None, typer.Option(help="Wall-clock seconds.")] = None,
    budget_candidates: Annotated[int | None, typer.Option(help="How many candidates are judged.")] = None,
    origin: Annotated[
        list[str] | None, typer.Option(help="Who may propose; repeat. Default: all configured.")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="A candidate or a kernel (.py, .cu, .cpp) to begin with.")
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(help='Your own shapes as JSON: [{"dims": {"rows": 4}, "weight": 12}, ...].'),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(help='Instead of sizes that are inferred, as JSON: {"rows": {"max": 64}, ...}.'),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Copy the bundle to this file or folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout.")] = False,
) -> None:
    """Make a module faster: find candidates, judge them, write a bundle with the winner and its evidence.

    Prints the leaderboard; with --json an object with the keys job, winner, summary and bundle. Exit code 0 when a
    bundle was made, 1 when not, 2 when the request makes no sense.

    Example: kernelwright optimize layernorm_relu_add --budget-seconds 120
    """
    from services.errors import Refused
    from services.jobs.requests import OptimizeRequest

    wanted: dict[str, Any] = {
        **task_field(task),
        "device": device,
        "budget": {"usd": budget_usd, "seconds": budget_seconds, "candidates": budget_candidates},
        "origins": origin or None,
        "traffic": json_of(traffic),
        "space": json_of(space),
        "start_from": text_of(start_from) if start_from else None,
    }
    say = Console(stderr=True)
    try:
        job, bundle = _run(OptimizeRequest.model_validate(wanted), say, show=not as_json)
    except ValidationError as error:
        for item in error.errors():
            say.print(
                f"[red]{'.'.join(str(part) for part in item['loc'])}[/]: {item['msg']}", highlight=False
            )
        raise typer.Exit(EXIT_USAGE) from None
    except Refused as error:
        say.print(f"[red]refused:[/] {error}")
        raise typer.Exit(EXIT_USAGE) from None
    if bundle is not None and out is not None:
        bundle = Path(shutil.copy(bundle, out / bundle.name if out.is_dir() else out))
    if as_json:
        shown = {
            "job": job.model_dump(mode="json"),
            "winner": job.winner.model_dump(mode="json") if job.winner else None,
            "summary": job.summary,
            "bundle": str(bundle) if bundle else None,
        }
        json.dump(shown, sys.stdout)
        sys.stdout.write("\n")
    else:
        say.print(f"{job.state}: {job.reason}", markup=False, highlight=False)
        if bundle:
            Console().print(f"bundle: {bundle}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if job.state == "succeeded" else _EXIT_FAILED)


def _run(request: Any, say: Console, *, show: bool) -> tuple[JobView, Path | None]:
    from services.db.models import Job
    from services.db.session import database
    from services.db.upgrade import upgrade
    from services.jobs import cancel, lease, read, submit
    from services.settings import get_settings
    from services.worker.context import stop_worker, worker_context

    settings = get_settings()
    base = database(settings.database)
    upgrade(base)
    context = worker_context()
    context.presence.problem()  # waits for the sandbox's self-check, so that the job's clock starts with the job
    with base.uncommitted() as session:
        job_id = submit.create_job(session, request, settings, claim_for=context.owner)
        held = lease.Lease(Job, job_id, context.owner, 1)
    work = threading.Thread(target=context.runner.work_on_job, args=(held,), daemon=True)
    work.start()
    try:
        _follow(base, job_id, work, say, show=show)
    except KeyboardInterrupt:
        say.print("cancelling ...")
        with base.uncommitted() as session:
            cancel.request_cancel(session, job_id)
        work.join(timeout=5)
    stop_worker()
    with base.read() as session:
        job = read.get_job(session, job_id)
        bundle = None
        if job.state == "succeeded":
            name, content = read.get_bundle(session, job_id)
            bundle = settings.job_dir(job_id) / name
            bundle.parent.mkdir(parents=True, exist_ok=True)
            bundle.write_bytes(content)
    return job, bundle


def _follow(base: Any, job_id: str, work: threading.Thread, say: Console, *, show: bool) -> None:
    """Print events as they come and keep the leaderboard below them, until the work is done."""
    from services.jobs import read

    seen = 0
    with Live(Table(), console=say, auto_refresh=False, transient=False) as live:
        while True:
            running = work.is_alive()
            with base.read() as session:
                found = read.list_events(session, job_id, seen)
                candidates = read.list_candidates(session, job_id) if found and show else None
            for event in found:
                seen = event.id
                line = event_line(event.model_dump(mode="json"))
                if line:
                    live.console.print(line)
            if candidates is not None:
                live.update(leaderboard([view.model_dump(mode="json") for view in candidates]), refresh=True)
            if not running:
                return
            work.join(_REFRESH_S)
