"""The dashboard's routes: ``/``, ``/ui/jobs/{id}``, ``/ui/candidates/{id}`` and two plain forms.

Routes read through `services.jobs.read`, write through the same functions as the API, and let `contexts` build the template
context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from agent.performance.money import Prices
from evaluator.devices import BACKENDS
from kernelbench_tasks import catalog
from services.api.deps import FormDep, Route, SessionDep, SettingsDep
from services.dashboard import contexts, event_text
from services.dashboard.rendering import STATIC_TYPES, page, plain, render, static_file
from services.db.models import FINAL_STATES, Evaluation, Job
from services.errors import NotFound, QuotaExceeded, Refused
from services.jobs import endings, read, submit
from services.jobs.requests import OptimizeRequest
from services.leaderboard import reading
from services.settings import Settings

PAGE_SIZE = 50
DEVICES = tuple(BACKENDS)
DEMO_TASK = "layernorm_relu_add"

router = APIRouter(route_class=Route, include_in_schema=False)


def blank_form() -> dict[str, Any]:
    """The initial form, with the demo task selected."""
    return {
        "kind": "task",
        "task": DEMO_TASK,
        "source": "",
        "device": "",
        "seconds": "",
        "priority": "",
        "name": "",
        "errors": [],
    }


async def job_form(sent: FormDep) -> dict[str, Any]:
    """The submitted form for a new job, without unknown fields."""
    return {key: sent.get(key, value) for key, value in blank_form().items() if key != "errors"}


JobFormDep = Annotated[dict[str, Any], Depends(job_form)]


@router.get("/")
@page
def index(
    session: SessionDep, settings: SettingsDep, after: Annotated[str | None, Query(max_length=400)] = None
) -> Response:
    """The jobs, newest first, and the form for a new one."""
    return _index(session, settings, blank_form(), after=after)


@router.get("/ui/jobs/{job_id}")
@page
def job_page(session: SessionDep, settings: SettingsDep, job_id: str) -> Response:
    """One job: result, leaderboard, shapes, rejections, source, events, environment."""
    row = read.job_row(session, job_id)
    job = plain(read.get_job(session, job_id))
    shown = {one["sha256"] for one in (job["winner"], job["best"]) if one}
    most = contexts.CANDIDATES_READ if job["counts"]["candidates"] > contexts.CANDIDATES_READ else None
    events, earlier = read.recent_events(
        session, job_id, but_not=event_text.PROGRESS_EVENT, also="task.profiled", limit=contexts.EVENTS_SHOWN
    )
    candidates, held_out = read.judged_candidates(session, job_id, shown, most)
    context = contexts.job_context(
        job,
        candidates,
        row.task_source,
        events,
        held_out,
        Prices(settings.gpu_prices, settings.energy_price),
        earlier_events=earlier,
        place=plain(reading.place_of(session, row)) if row.state in FINAL_STATES else None,
    )
    return render("job.html", **context)


@router.get("/ui/candidates/{candidate_id}")
@page
def candidate_page(
    session: SessionDep, candidate_id: str, against: str = "reference", lines: str = ""
) -> Response:
    """One candidate: verdict, findings, measurements, difference, source; with `lines=all` the whole of long ones."""
    candidate = plain(read.get_candidate(session, candidate_id))
    row = read.job_row(session, candidate["job_id"])  # keep it, or it would be queried twice
    job = plain(read.get_job(session, row.id))
    found = read.find_candidate(session, candidate["job_id"], candidate["parent_sha256"])
    parent = plain(found) if found else None
    context = contexts.candidate_context(
        job, candidate, row.task_source, parent, against, whole=lines == "all"
    )
    return render("candidate.html", **context)


@router.post("/ui/submit")
def submit_form(session: SessionDep, settings: SettingsDep, form: JobFormDep) -> Response:
    """The form of the index page, as any browser sends it: 303 to the new job, or the form again with what is wrong.

    `services.api.hosts` has already refused forms that come from other sites.
    """
    made = accepted(session, settings, form, submit.make_job)
    return made if isinstance(made, Response) else RedirectResponse(f"/ui/jobs/{made}", status_code=303)


def accepted(
    session: Session,
    settings: Settings,
    form: Mapping[str, Any],
    make: Callable[[Session, OptimizeRequest, Settings], Job | Evaluation],
) -> str | Response:
    """Create a job or evaluation from the form and return its id; on errors, return the form with messages."""
    try:
        return make(session, OptimizeRequest.model_validate(_wanted(form)), settings).id
    except ValidationError as error:
        found = [
            (_field_name(item["loc"]), str(item["msg"]).removeprefix("Value error, "))
            for item in error.errors(include_input=False)
        ]
        return _index(session, settings, {**form, "errors": found}, status=422)
    except Refused as error:
        found = [(_field_name((one.field,)), one.message) for one in error.errors]
        return _index(session, settings, {**form, "errors": found}, status=422)
    except QuotaExceeded as error:
        return _index(session, settings, {**form, "errors": [("quota", str(error))]}, status=429)


@router.post("/ui/jobs/{job_id}/cancel")
@page
def cancel_form(session: SessionDep, job_id: str) -> Response:
    """The cancel button; harmless on a job that has ended."""
    endings.cancel_job(session, job_id)
    return RedirectResponse(f"/ui/jobs/{job_id}", status_code=303)


@router.get("/ui/static/{name}")
@page
def static(name: str) -> Response:
    """Style sheet, script and icon."""
    content = static_file(name)
    if content is None:
        raise NotFound("the dashboard has no file of that name")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=STATIC_TYPES[name], headers=headers)


@router.get("/favicon.ico")
def favicon() -> Response:
    """Browsers ask for it when they show bare JSON."""
    return static("favicon.svg")


def _index(
    session: Session,
    settings: Settings,
    form: Mapping[str, Any],
    *,
    after: str | None = None,
    status: int = 200,
) -> Response:
    jobs = [plain(view) for view in read.list_jobs(session, limit=PAGE_SIZE + 1, after=after)]
    shown = jobs[:PAGE_SIZE]
    return render(
        "index.html",
        status=status,
        jobs=shown,
        older=shown[-1]["id"] if len(jobs) > PAGE_SIZE else None,
        any_running=any(job["state"] not in FINAL_STATES for job in shown),
        **form_context(settings, form),
    )


def form_context(settings: Settings, form: Mapping[str, Any]) -> dict[str, Any]:
    """Template context of the form for a new job."""
    return {
        "catalogue": catalog.list_tasks(),
        "devices": sorted(DEVICES, key=lambda device: device != settings.device),
        "form": form,
    }


def _wanted(form: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the form to the body of POST /optimize."""
    # Browsers send CRLF from a textarea; the task's digest must not depend on how it was submitted.
    wanted: dict[str, Any] = {"device": form["device"]} if form["device"] else {}
    if form["kind"] == "source":
        wanted["source"] = form["source"].replace("\r\n", "\n")
    else:
        wanted["task"] = form["task"]
    if form["name"].strip():
        wanted["name"] = form["name"].strip()
    if form["seconds"].strip():
        wanted["budget"] = {"seconds": form["seconds"].strip()}
    if form["priority"].strip():
        wanted["priority"] = form["priority"].strip()
    return wanted


def _field_name(location: Sequence[object]) -> str:
    """Name of the form control for a request field."""
    name = ".".join(str(part) for part in location)
    return {"budget.seconds": "seconds", "": "task"}.get(name, name)
