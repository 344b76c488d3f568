"""`kernelwright resume`: go on with a job that waits for answers to its batch of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.commands.task_argument import EXIT_USAGE, text_of
from services.commands.working import Out, end, work_here


def resume(
    job: Annotated[str, typer.Argument(help="Id of a job that is waiting.")],
    answers: Annotated[
        Path | None, typer.Option(help="A file of answers, unless they are in the job's folder already.")
    ] = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout.")] = False,
) -> None:
    """Go on with a job of this machine that waits for answers; exit codes as those of `optimize`.

    Example: kernelwright resume JOB --answers answers.jsonl
    """
    from services.errors import ServiceError

    text = text_of(answers) if answers is not None else None

    def begin(session: Any, settings: Any, owner: str) -> str:
        from services.db.models import Job
        from services.errors import NotReady
        from services.jobs import batches, events, lease

        if text is not None:
            batches.add_answers(session, job, text)
        row = events.lock_job(session, job)
        if row is not None and row.state == "waiting":
            batches.resume(session, row)
            session.flush()
        held = lease.claim(session, Job, job, owner, settings.lease_seconds, settings.max_lost_workers)
        if held is None:
            raise NotReady(f"job {job} waits for no answers here, or somebody else works on it")
        session.commit()
        return job

    say = Console(stderr=True)
    try:
        view, bundle = work_here(begin, say, show=not as_json)
    except ServiceError as error:
        say.print(f"[red]refused:[/] {error}")
        raise typer.Exit(EXIT_USAGE) from None
    end(view, bundle, out, say, as_json=as_json)
