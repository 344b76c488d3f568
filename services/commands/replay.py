"""`kernelwright replay`: replays a finished job from its record without a model, to show that it is deterministic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from evaluator.counting import counted
from services.commands.terminal import AsJson, give_up, print_json

EXIT_DIFFERS = 1
EXIT_UNKNOWN = 2


def replay(
    job: Annotated[str, typer.Argument(help="A job's id.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the recorded conversations here as JSON lines.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make every prompt of a job anew from its record and compare it with what was sent, byte for byte.

    Nothing is asked, judged or changed. Exit code 0 when all are the same, 1 when not, 2 when there is no such job.
    """
    from agent.records import PREFIXES, Records
    from agent.replay import replay as replay_job
    from services.db.models import Job
    from services.db.upgrade import newest
    from services.jobs.lease import Lease
    from services.jobs.rows import job_spec
    from services.jobs.store import SqlJobStore
    from services.settings import get_settings

    base = newest(get_settings().database)
    with base.read() as session:
        row = session.get(Job, job)
        spec = job_spec(row) if row is not None else None
    if spec is None:
        give_up(f"there is no job {job}", EXIT_UNKNOWN)
    store = SqlJobStore(base, spec.job_id, Lease(Job, spec.job_id, "replay", 0), lambda: False)
    found = replay_job(spec, store)
    if out is not None:
        with out.open("w") as file:
            for prefix in PREFIXES:
                records = Records(store, prefix)
                for request in records.requests():
                    answer = store.step(request)
                    file.write(
                        json.dumps({"request": request, **(records.prompt(request) or {}), "answer": answer})
                    )
                    file.write("\n")
    if as_json:
        shown = {
            "job": job,
            "same": found.same,
            "prompts": [vars(prompt) for prompt in found.prompts],
            "candidates": found.candidates,
            "recorded_candidates": found.recorded_candidates,
            "templates_changed": found.templates_changed,
        }
        print_json(shown)
    else:
        table = Table("request", "prompt", "sha256")
        for prompt in found.prompts:
            word = "same" if prompt.same else "differs" if prompt.reached else "not reached"
            table.add_row(prompt.request, word, prompt.sha256[:16])
        say = Console()
        say.print(table)
        say.print(
            f"{found.candidates} of {counted(found.recorded_candidates, 'candidate')} of models made again"
        )
        if found.templates_changed:
            say.print("the templates of prompts have changed since")
    raise typer.Exit(0 if found.same else EXIT_DIFFERS)
