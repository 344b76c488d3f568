"""Jobs: create, list, show, cancel, fetch."""

from __future__ import annotations

from fastapi import APIRouter, Response

from services.api.deps import After, IdempotencyKey, Limit, Route, SessionDep, SettingsDep
from services.jobs import batches, endings, read, submit
from services.jobs.requests import BatchAnswers, CandidateRequest, OptimizeRequest
from services.jobs.views import CandidateView, JobView, Page, page, page_of

router = APIRouter(route_class=Route, tags=["jobs"])


@router.post("/optimize", status_code=202)
def optimize(
    body: OptimizeRequest,
    response: Response,
    session: SessionDep,
    settings: SettingsDep,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Start a job: a reference module in, a faster one with evidence out. Follow `urls.events` or `urls.self`."""
    # Keep a reference to the row, or the session would query it again.
    made = submit.make_job(session, body, settings, idempotency_key)
    response.headers["Location"] = f"/jobs/{made.id}"
    return read.get_job(session, made.id)


@router.get("/jobs")
def list_jobs(session: SessionDep, limit: Limit = 20, after: After = None) -> Page[JobView]:
    """Jobs, newest first."""
    return page_of(read.list_jobs(session, limit + 1, after), limit)


@router.get("/jobs/{job_id}")
def get_job(job_id: str, session: SessionDep) -> JobView:
    """One job."""
    return read.get_job(session, job_id)


@router.post("/jobs/{job_id}/cancel", status_code=202)
def cancel_job(job_id: str, session: SessionDep) -> JobView:
    """Stop a job; asking twice, or asking one that has ended, changes nothing."""
    endings.cancel_job(session, job_id)
    return read.get_job(session, job_id)


@router.get(
    "/jobs/{job_id}/batch",
    response_class=Response,
    responses={
        200: {"content": {"application/jsonl": {}}},
        409: {"description": "the job waits for no answers"},
    },
)
def get_batch(job_id: str, session: SessionDep) -> Response:
    """What a `waiting` job would ask its models: an input file of OpenAI's Batch API, without what was answered before."""
    return Response(batches.open_requests(session, job_id), media_type="application/jsonl")


@router.post("/jobs/{job_id}/batch", status_code=202)
def add_answers(job_id: str, body: BatchAnswers, session: SessionDep) -> JobView:
    """Hand in answers, all or some; the job goes on, and is `waiting` again if it needs more."""
    batches.add_answers(session, job_id, body.answers, more=body.more)
    return read.get_job(session, job_id)


@router.get("/jobs/{job_id}/candidates")
def list_candidates(
    job_id: str, session: SessionDep, limit: Limit = 20, after: After = None
) -> Page[CandidateView]:
    """Candidates of a job in order of arrival, with their verdicts; fewer than `limit` where sources are long."""
    return page(*read.candidate_page(session, job_id, limit, after))


@router.post("/jobs/{job_id}/candidates", status_code=202)
def add_candidate(
    job_id: str, body: CandidateRequest, response: Response, session: SessionDep
) -> CandidateView:
    """Add a candidate of your own (origin `external`): same rules, same leaderboard; the job may have ended."""
    made_id = submit.add_external_candidate(session, job_id, body)
    response.headers["Location"] = f"/candidates/{made_id}"
    return read.get_candidate(session, made_id)


@router.get("/candidates/{candidate_id}")
def get_candidate(candidate_id: str, session: SessionDep) -> CandidateView:
    """One candidate with its verdicts."""
    return read.get_candidate(session, candidate_id)


@router.get(
    "/jobs/{job_id}/bundle",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}, 409: {"description": "the job has made no bundle"}},
)
def get_bundle(job_id: str, session: SessionDep) -> Response:
    """The bundle: optimized.py, kernels, evidence, report, reproduce.py."""
    _, content = read.get_bundle(session, job_id)
    headers = {"Content-Disposition": f'attachment; filename="kernelwright-{job_id}.zip"'}
    return Response(content, media_type="application/zip", headers=headers)
