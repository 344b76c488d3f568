"""The routes of the dashboard: ``/``, ``/ui/jobs/{id}``, ``/ui/candidates/{id}`` and two plain forms.

Routes read through `services.jobs.read`, write through the same functions as the API, and leave
what to show to `ranking`, `charts` and `listing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from kernelbench_tasks import catalog
from services.api.deps import SessionDep, SettingsDep
from services.dashboard import charts, formats, listing, ranking, words
from services.dashboard.rendering import STATIC_TYPES, plain, render, static_file
from services.errors import NotFound, Refused
from services.jobs import cancel, read, submit
from services.jobs.requests import OptimizeRequest
from services.settings import Settings

PAGE_SIZE = 50
EVENTS_READ = 2_000
EVENTS_SHOWN = 200
DEVICES = ("cpu", "cuda")
DEMO_TASK = "layernorm_relu_add"

router = APIRouter(include_in_schema=False)


def blank_form() -> dict[str, Any]:
    """The form as a newcomer meets it: the demo task is one click away."""
    return {
        "kind": "task",
        "task": DEMO_TASK,
        "source": "",
        "device": "",
        "seconds": "",
        "name": "",
        "errors": [],
    }


async def form_fields(request: Request) -> dict[str, Any]:
    """What a browser sent as `application/x-www-form-urlencoded`; unknown fields are dropped."""
    body = (await request.body()).decode("utf-8", errors="replace")
    sent = {key: values[-1] for key, values in parse_qs(body, keep_blank_values=True).items()}
    return {key: sent.get(key, value) for key, value in blank_form().items() if key != "errors"}


FormDep = Annotated[dict[str, Any], Depends(form_fields)]


@router.get("/")
def index(
    session: SessionDep, settings: SettingsDep, after: Annotated[str | None, Query(max_length=64)] = None
) -> Response:
    """The jobs, newest first, and the form for a new one."""
    return _index(session, settings, blank_form(), after=after)


@router.get("/ui/jobs/{job_id}")
def job_page(session: SessionDep, job_id: str) -> Response:
    """One job: result, leaderboard, shapes, rejections, source, events, environment."""
    try:
        job = plain(read.get_job(session, job_id))
        candidates = [plain(view) for view in read.list_candidates(session, job_id)]
        reference = read.task_source(session, job_id)
        held_out = read.held_out_verdict(session, job_id)
    except NotFound as error:
        return _missing(error)
    events = [plain(view) for view in read.list_events(session, job_id, limit=EVENTS_READ)]
    return render("job.html", **job_context(job, candidates, reference, events, held_out))


@router.get("/ui/candidates/{candidate_id}")
def candidate_page(session: SessionDep, candidate_id: str, against: str = "reference") -> Response:
    """One candidate: verdict, findings, measurements, difference, source."""
    try:
        candidate = plain(read.get_candidate(session, candidate_id))
        job = plain(read.get_job(session, candidate["job_id"]))
        reference = read.task_source(session, candidate["job_id"])
        siblings = [plain(view) for view in read.list_candidates(session, candidate["job_id"])]
    except NotFound as error:
        return _missing(error)
    parent = next((one for one in siblings if one["sha256"] == candidate["parent_sha256"]), None)
    return render("candidate.html", **candidate_context(job, candidate, reference, parent, against))


@router.post("/ui/submit")
def submit_form(session: SessionDep, settings: SettingsDep, form: FormDep) -> Response:
    """The form of the index page, as any browser sends it: 303 to the new job, or the form again with what is wrong.

    `services.api.guard` has already refused forms that come from other sites.
    """
    try:
        wanted = OptimizeRequest.model_validate(_wanted(form))
        job_id = submit.create_job(session, wanted, settings)
    except ValidationError as error:
        found = [(_field_name(item["loc"]), str(item["msg"])) for item in error.errors(include_input=False)]
        return _index(session, settings, {**form, "errors": found}, status=422)
    except Refused as error:
        found = [(one.field, one.message) for one in error.errors]
        return _index(session, settings, {**form, "errors": found}, status=422)
    return RedirectResponse(f"/ui/jobs/{job_id}", status_code=303)


@router.post("/ui/jobs/{job_id}/cancel")
def cancel_form(session: SessionDep, job_id: str) -> Response:
    """The cancel button; harmless on a job that has ended."""
    try:
        cancel.request_cancel(session, job_id)
    except NotFound as error:
        return _missing(error)
    return RedirectResponse(f"/ui/jobs/{job_id}", status_code=303)


@router.get("/ui/static/{name}")
def static(name: str) -> Response:
    """Style sheet, script and icon."""
    content = static_file(name)
    if content is None:
        return render(
            "error.html", status=404, title="No such file", detail="The dashboard has no file of that name."
        )
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=STATIC_TYPES[name], headers=headers)


@router.get("/favicon.ico")
def favicon() -> Response:
    """Browsers ask for it when they show bare JSON."""
    return static("favicon.svg")


def job_context(
    job: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]],
    reference: str,
    events: Sequence[Mapping[str, Any]],
    held_out: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything that the job page shows, from the JSON objects of the API."""
    winner_sha256 = (job.get("winner") or {}).get("sha256")
    candidate, phase, verdict = ranking.delivered(job, candidates, held_out)
    shown = job.get("winner") or job.get("best") or {}
    timed = ranking.timed_shapes(verdict)
    shapes, summary = ranking.shapes_of(verdict), ranking.summary_of(verdict)
    is_final = job["state"] in words.FINAL_STATES
    return {
        "job": job,
        "is_final": is_final,
        "is_live": not is_final or job["counts"]["pending"] > 0,
        "rows": ranking.leaderboard(candidates, winner_sha256),
        "rejected": ranking.rejections(candidates),
        "delivered": candidate,
        "shown_id": next((one["id"] for one in candidates if one["sha256"] == shown.get("sha256")), ""),
        "phase": phase,
        "verdict": verdict,
        "leading_summary": summary,
        "shapes": shapes,
        "baseline_names": ranking.baseline_names(shapes),
        "shape_chart_wide": charts.shape_chart(timed, summary=summary, name="shapes-wide"),
        "shape_chart_narrow": charts.shape_chart(timed, summary=summary, narrow=True, name="shapes-narrow"),
        "progress_chart": charts.search_chart(candidates),
        "diff": listing.unified(reference, candidate["source"]) if candidate else None,
        "reference_lines": [] if candidate else listing.highlighted_lines(reference),
        "environment": (verdict or {}).get("environment") or ranking.environment_of(candidates),
        "events": timeline(events[-EVENTS_SHOWN:], job.get("created_at")),
        "events_hidden": max(0, len(events) - EVENTS_SHOWN),
        "last_event_id": events[-1]["id"] if events else 0,
        "activity": activity(events),
    }


def candidate_context(
    job: Mapping[str, Any],
    candidate: Mapping[str, Any],
    reference: str,
    parent: Mapping[str, Any] | None,
    against: str,
) -> dict[str, Any]:
    """Everything that a candidate's page shows."""
    against = "parent" if against == "parent" and parent is not None else "reference"
    old = parent["source"] if against == "parent" and parent is not None else reference
    sections = []
    for phase, title in (
        ("held_out", "Held-out shapes"),
        ("validation", "Validation shapes"),
        ("screen", "Visible and adversarial shapes"),
    ):
        verdict = ranking.verdict_in(candidate, phase)
        if verdict is None:
            continue
        shapes, timed, summary = (
            ranking.shapes_of(verdict),
            ranking.timed_shapes(verdict),
            ranking.summary_of(verdict),
        )
        sections.append(
            {
                "phase": phase,
                "title": title,
                "verdict": verdict,
                "summary": summary,
                "shapes": shapes,
                "has_timed": bool(timed),
                "baseline_names": ranking.baseline_names(shapes),
                "wide": charts.shape_chart(timed, summary=summary, name=f"{phase}-wide"),
                "narrow": charts.shape_chart(timed, summary=summary, narrow=True, name=f"{phase}-narrow"),
            }
        )
    return {
        "job": job,
        "candidate": candidate,
        "parent": parent,
        "against": against,
        "sections": sections,
        "diff": listing.unified(old, candidate["source"]),
        "source_lines": listing.highlighted_lines(candidate["source"]),
        "environment": ranking.environment_of([candidate]),
    }


def timeline(events: Sequence[Mapping[str, Any]], created_at: object) -> list[dict[str, Any]]:
    """Events in words, newest first, each with the time since the job was created."""
    begun = formats.moment(created_at)
    told = []
    for event in reversed(events):
        what, detail, tone = words.event(str(event["name"]), event.get("data") or {})
        when = formats.moment(event.get("time"))
        offset = formats.offset((when - begun).total_seconds()) if when and begun else "?"
        told.append(
            {"time": event.get("time"), "offset": offset, "what": what, "detail": detail, "tone": tone}
        )
    return told


def activity(events: Sequence[Mapping[str, Any]]) -> str:
    """What the job is doing now, as far as its events tell."""
    if not events:
        return "Waiting for a worker"
    name, data = str(events[-1]["name"]), events[-1].get("data") or {}
    label = str(data.get("label") or str(data.get("sha256") or "")[:12])
    if name == "job.queued":
        return "Waiting for a worker"
    if name == "job.started":
        return "Reading the module and looking for candidates"
    if name in ("candidate.proposed", "candidate.compiled") and label:
        return f"Judging {label}"
    if name == "candidate.judged" and data.get("phase") == "held_out":
        return "Writing the bundle"
    return "Looking for the next candidate"


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
        any_running=any(job["state"] not in words.FINAL_STATES for job in shown),
        catalogue=catalog.list_tasks(),
        devices=sorted(DEVICES, key=lambda device: device != settings.device),
        form=form,
    )


def _wanted(form: Mapping[str, Any]) -> dict[str, Any]:
    """The form as the body that POST /optimize would get."""
    # Browsers send CRLF from a textarea; the task's identity must not depend on how it was submitted.
    wanted: dict[str, Any] = {"device": form["device"]} if form["device"] else {}
    if form["kind"] == "source":
        wanted["source"] = form["source"].replace("\r\n", "\n")
    else:
        wanted["task"] = form["task"]
    if form["name"].strip():
        wanted["name"] = form["name"].strip()
    if form["seconds"].strip():
        wanted["budget"] = {"seconds": form["seconds"].strip()}
    return wanted


def _field_name(location: Sequence[object]) -> str:
    return ".".join(str(part) for part in location)


def _missing(error: NotFound) -> Response:
    return render("error.html", status=404, title="Not found", detail=str(error))
