"""`kernelwright optimize` and `resume`: run a whole job in this process, without HTTP.

The job is a row in the service's database, leased by this process: the dashboard shows it, and if the process is killed,
`kernelwright serve` resumes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from services.commands.terminal import (
    AsJson,
    BudgetCandidates,
    BudgetUsd,
    Space,
    Task,
    Traffic,
    give_up,
    json_of,
    task_field,
    text_of,
    wrong_fields,
)
from services.commands.working import Out, end, work_here
from services.jobs.views import JobView

#: Origins that propose by themselves.
_PROPOSE = ("human", "compiler", "llm", "policy")


def _those_that_propose(origins: list[str] | None) -> list[str] | None:
    for origin in origins or ():
        if origin not in _PROPOSE:
            raise typer.BadParameter(
                f"{origin!r} is not one of {', '.join(_PROPOSE)}; a candidate of your own is given by --from"
            )
    return origins


def optimize(
    task: Task,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    budget_usd: BudgetUsd = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option(help="Wall-clock seconds for all of it; what is not done by then is left out."),
    ] = None,
    budget_candidates: BudgetCandidates = None,
    budget_tokens: Annotated[
        int | None, typer.Option(help="Tokens of model calls, prompts included.")
    ] = None,
    budget_gpu_seconds: Annotated[float | None, typer.Option(help="Seconds of judging on a GPU.")] = None,
    plateau: Annotated[
        int | None, typer.Option(help="Stop after so many candidates in a row without progress.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            callback=_those_that_propose,
            help=f"What may propose: {', '.join(_PROPOSE)}; repeat. Default: all configured.",
        ),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="A candidate or a kernel (.py, .cu, .cpp) to begin with.")
    ] = None,
    traffic: Traffic = None,
    space: Space = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to ask; repeat. Default: KERNELWRIGHT_LLM_MODEL.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="default, strict, tf32, bf16, fp16 or fp8, instead of the file's.")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            help="Ask models through files in this folder (OpenAI's Batch format): the job waits, and `kernelwright resume` goes on."
        ),
    ] = None,
    energy: Annotated[
        bool, typer.Option("--energy", help="Of candidates whose times tie, the one that needs least joules.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Make a module faster: find candidates, judge them, write a bundle with the winner and its evidence.

    Prints the leaderboard; with --json an object with the keys job, winner, summary and bundle. Exit code 0 when a
    bundle was made, 1 when not, 2 when the request makes no sense, 3 when the job waits for answers to a batch.

    Example: kernelwright optimize layernorm_relu_add --budget-seconds 120
    """
    from services.errors import Refused
    from services.jobs.requests import OptimizeRequest

    wanted: dict[str, Any] = {
        **task_field(task),
        "device": device,
        "precision": precision,
        "budget": {
            "usd": budget_usd,
            "seconds": budget_seconds,
            "candidates": budget_candidates,
            "tokens": budget_tokens,
            "gpu_seconds": budget_gpu_seconds,
            "plateau": plateau,
        },
        "origins": origin or None,
        "traffic": json_of(traffic),
        "space": json_of(space),
        "start_from": text_of(start_from) if start_from else None,
        "models": model or None,
        "batch": batch is not None,
        "energy": energy,
    }
    say = Console(stderr=True)
    try:
        job, bundle = _run(OptimizeRequest.model_validate(wanted), batch, say, show=not as_json)
    except ValidationError as error:
        give_up(wrong_fields(error))
    except Refused as error:
        give_up(f"refused: {error}")
    end(job, bundle, out, say, as_json=as_json)


def _run(request: Any, batch: Path | None, say: Console, *, show: bool) -> tuple[JobView, Path | None]:
    from services.jobs import submit

    def begin(session: Any, settings: Any, owner: str) -> str:
        folder = batch.resolve() if batch is not None else None
        return submit.make_job(session, request, settings, claim_for=owner, batch_folder=folder).id

    return work_here(begin, say, show=show, seconds=request.budget.seconds)


def resume(
    job: Annotated[str, typer.Argument(help="Id of a job that is waiting.")],
    answers: Annotated[
        Path | None, typer.Option(help="A file of answers, unless they are in the job's folder already.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
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
            raise NotReady(f"job {job} waits for no answers here, or another worker has it")
        session.commit()
        return job

    say = Console(stderr=True)
    try:
        view, bundle = work_here(begin, say, show=not as_json)
    except ServiceError as error:
        give_up(f"refused: {error}")
    end(view, bundle, out, say, as_json=as_json)
