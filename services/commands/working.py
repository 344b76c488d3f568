"""Runs a job in this process with live output, and ends the command."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from services.commands.showing import Following, leaderboard
from services.commands.terminal import close_data_folder, open_database, print_json, print_line
from services.jobs.views import JobView
from services.plain_text import plain_line

Out = Annotated[Path | None, typer.Option(help="Copy the bundle to this file or folder.")]
EXIT_FAILED, EXIT_WAITING = 1, 3
LOG = "kernelwright.log"
_REFRESH_S = 0.3


def end(job: JobView, bundle: Path | None, out: Path | None, say: Console, *, as_json: bool) -> NoReturn:
    """Show how a job ended and exit: 0 with a bundle, 1 without, 3 if it waits for answers to a batch."""
    if bundle is not None and out is not None:
        bundle = Path(shutil.copy(bundle, out / bundle.name if out.is_dir() else out))
    if as_json:
        shown = {
            "job": job.model_dump(mode="json"),
            "winner": job.winner.model_dump(mode="json") if job.winner else None,
            "summary": job.summary,
            "bundle": str(bundle) if bundle else None,
        }
        print_json(shown)
    else:
        reason = plain_line(job.reason)
        print_line(reason if job.verdict == "no_improvement" else f"{job.state}: {reason}", say)
        if bundle:
            print_line(f"bundle: {bundle}")
    raise typer.Exit({"succeeded": 0, "waiting": EXIT_WAITING}.get(job.state, EXIT_FAILED))


def work_here(
    begin: Callable[[Any, Any, str], str], say: Console, *, show: bool, seconds: float | None = None
) -> tuple[JobView, Path | None]:
    """Work on a job until it ends or waits.

    Args:
        begin: creates or claims the job in a session for the given owner, commits, and returns the job's id.
        say: console for progress.
        show: whether to show candidates, too.
        seconds: the job's budget, counted from this call, since the user also waits for the setup before the job.

    Returns:
        The job, and the path of its bundle, if any.
    """
    from sqlalchemy import select

    from agent.redaction import mask_logs
    from services.db.models import Job
    from services.jobs import endings, lease, read
    from services.settings import get_settings
    from services.worker.context import stop_worker, worker_context

    settings, began_s, began_at = get_settings(), time.monotonic(), time.time()
    close_data_folder(say)
    log = _keep_log(settings.data_dir / LOG)
    mask_logs()
    base = open_database(say)
    context = worker_context()
    context.presence.problem()  # wait for the sandbox self-check
    with base.uncommitted() as session:
        job_id = begin(session, settings, context.owner)
        attempt = session.scalar(select(Job.attempt).where(Job.id == job_id)) or 1
        held = lease.Lease(Job, job_id, context.owner, attempt)
    clock = {"began_s": began_s} if seconds is not None else {}
    work = threading.Thread(target=context.runner.work_on_job, args=(held,), kwargs=clock, daemon=True)
    work.start()
    try:
        _follow(base, job_id, work, say, show=show)
    except KeyboardInterrupt:
        say.print("cancelling ...")
        with base.uncommitted() as session:
            endings.cancel_job(session, job_id)
        work.join(timeout=5)
    stop_worker()
    if log.is_file() and log.stat().st_mtime >= began_at:
        print_line(f"what went wrong on the way is in {log}", say)
    with base.read() as session:
        job = read.get_job(session, job_id)
        bundle = None
        if job.state == "succeeded":
            name, content = read.get_bundle(session, job_id)
            bundle = settings.job_dir(job_id) / name
            bundle.parent.mkdir(parents=True, exist_ok=True)
            bundle.write_bytes(content)
    took_s = time.monotonic() - began_s
    if seconds is not None and took_s > seconds:
        say.print(f"this took {took_s:.0f} s, {took_s - seconds:.0f} s more than the budget")
    return job, bundle


def _keep_log(path: Path) -> Path:
    """Log this process's warnings and tracebacks to a file; the terminal shows only the job's messages."""
    from services.observing.logs import dress

    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    dress([handler], "text")
    logging.getLogger().addHandler(handler)
    return path


def _follow(base: Any, job_id: str, work: threading.Thread, say: Console, *, show: bool) -> None:
    """Print events as they arrive, with the leaderboard below them, until the work ends."""
    from services.jobs import read

    seen = 0
    with Following(say) as following:
        while True:
            running = work.is_alive()
            with base.read() as session:
                found = read.list_events(session, job_id, seen)
                candidates = read.list_candidates(session, job_id) if found and show else None
            for event in found:
                seen = event.id
                following.tell(event)
            if candidates is not None:
                following.board = leaderboard([view.model_dump(mode="json") for view in candidates])
            if not running:
                break
            work.join(_REFRESH_S)
    if following.board is not None:
        say.print(following.board)
