"""Turns requests into rows. An unsupported option is rejected with its field name, never ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from agent.providers.list_prices import list_price
from agent.spec import DEFAULT_STRATEGY, POLICY_API_KEY_VARIABLE, Budget, JobSpec, ModelChoice
from evaluator.precision import with_precision
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from services.catalogue import registry
from services.db.ids import new_id
from services.db.models import Candidate, Evaluation, Job, Verdict, Worker
from services.db.privacy import owner_of, sees_all
from services.db.types import epoch_seconds
from services.errors import FieldError, NotFound, Refused
from services.jobs import events, idempotency, lease
from services.jobs.dimensions import name_errors
from services.jobs.requests import (
    OWN_PRIORITY,
    CandidateRequest,
    EvaluateRequest,
    OptimizeRequest,
    TaskRequest,
    own_shapes,
)
from services.jobs.rows import LOOK, candidate_row, proposed_data
from services.settings import Settings
from services.users import quotas

_WORKER_REMEMBERED_S = 24 * 3600.0
_POLICY_SAMPLES, _POLICY_TOKENS = 4, 8192
_LOOK_S = 120.0


def make_job(
    session: Session,
    request: OptimizeRequest,
    settings: Settings,
    idempotency_key: str | None = None,
    *,
    claim_for: str | None = None,
    batch_folder: Path | None = None,
) -> Job:
    """Create a queued job, commit, and return its row; if the idempotency key was used before, return the earlier job's row.

    Args:
        session: a writable session of the requesting user.
        request: the job.
        settings: the service's settings.
        idempotency_key: see `services.jobs.idempotency`.
        claim_for: a worker that holds the lease from the start, as attempt 1; no other worker ever sees the job queued.
        batch_folder: folder for the files of a batch job, instead of the job's own folder.

    Raises:
        Refused: the request asks for something that this service does not offer.
        Conflict: the key was used before with another body.
        QuotaExceeded: a quota of the session's user is used up.
        NotFound: the job created with this key no longer exists.
    """
    made_before = idempotency.earlier(session, "optimize", request, idempotency_key)
    if made_before:
        job = session.get(Job, made_before)
        if job is None:
            raise NotFound(f"there is no job {made_before!r} any more")
        return job
    job_id = new_id()
    task = _task(request, request.name, settings)
    device = request.device or settings.device
    owner_id = owner_of(session)
    errors = _device_errors(session, device, settings) + _priority_errors(session, request.priority)
    errors += name_errors(task.source, request.shapes, request.traffic)
    if request.budget.gpu_seconds is not None and device == "cpu":
        errors.append(
            FieldError("budget.gpu_seconds", "a job on the CPU spends none; limit `seconds` instead")
        )
    origins, models = _proposers(request, settings, errors)
    pays = any(choice.provider != "batch" for choice in models)
    if pays and request.budget.usd is None and quotas.standing_of(session, owner_id).left("usd") is not None:
        errors += _unpriced(models, settings)
    if errors:
        raise Refused(errors)
    quotas.check(session, owner_id, device, pays=pays, budget=request.budget.model_dump())
    if batch_folder is not None:
        models = tuple(
            replace(one, folder=str(batch_folder)) if one.provider == "batch" else one for one in models
        )
    strategy = replace(DEFAULT_STRATEGY, **request.strategy.model_dump(exclude_none=True))
    if request.batch and request.strategy.rounds is None:
        strategy = replace(
            strategy, rounds=0
        )  # a search round takes two batch files, and each may take a day
    spec = JobSpec(
        job_id=job_id,
        name=request.name or task.name,
        task=task,
        device=device,
        budget=Budget(**request.budget.model_dump()),
        origins=origins,
        models=models,
        start_from=request.start_from,
        shapes=own_shapes(request.shapes),
        traffic=tuple(row.model_dump() for row in request.traffic) if request.traffic else None,
        space={name: dim.model_dump(exclude_none=True) for name, dim in request.space.items()}
        if request.space
        else None,
        strategy=strategy,
        batch_invariant=request.batch_invariant,
        energy=request.energy,
    )
    wanted = spec.to_json()
    del wanted["task"]  # stored in its own columns
    job = Job(
        id=job_id,
        owner_id=owner_id,
        name=spec.name,
        device=device,
        task_name=task.name,
        task_sha256=task.sha256,
        task_source=task.source,
        from_catalog=catalog.find_by_sha256(task.sha256) is not None,
        request=wanted,
        priority=request.priority,
    )
    session.add(job)
    session.flush()
    events.append(
        session, job_id, "job.queued", {"name": spec.name, "device": device, "origins": list(origins)}
    )
    if claim_for is not None:
        lease.claim(session, Job, job_id, claim_for, settings.lease_seconds, settings.max_lost_workers)
    idempotency.remember(session, "optimize", request, idempotency_key, job_id)
    session.commit()
    events.NEW_WORK.set()
    return job


def make_evaluation(
    session: Session, request: EvaluateRequest, settings: Settings, idempotency_key: str | None = None
) -> str:
    """Create a queued evaluation, commit, and return its id. Raises as `make_job` does."""
    made_before = idempotency.earlier(session, "evaluate", request, idempotency_key)
    if made_before:
        return made_before
    task = _task(request, None, settings)
    device = request.device or settings.device
    errors = _device_errors(session, device, settings) + _priority_errors(session, request.priority)
    errors += name_errors(task.source, request.shapes)
    if errors:
        raise Refused(errors)
    owner_id = owner_of(session)
    quotas.check(session, owner_id, device)
    quotas.add_usage(session, owner_id, candidates=1)
    row = Evaluation(
        id=new_id(),
        **_sources(task, CandidateSource(request.candidate)),
        owner_id=owner_id,
        device=device,
        effort=request.effort,
        deadline_s=request.deadline_s,
        priority=request.priority,
        shapes=own_shapes(request.shapes),
    )
    session.add(row)
    idempotency.remember(session, "evaluate", request, idempotency_key, row.id)
    session.commit()
    events.NEW_WORK.set()
    return row.id


def make_look(session: Session, request: TaskRequest, settings: Settings) -> Evaluation:
    """Queue a check of a task (lint and shape space, without a job), commit, and return its row.

    The row is an evaluation without a candidate and with effort `LOOK`; leases, privacy and cancelling work as for any
    evaluation. `request` may name a device.

    Raises:
        Refused: the request asks for something that this service does not offer.
        QuotaExceeded: a quota of the session's user is used up.
    """
    task = _task(request, getattr(request, "name", None), settings)
    device = getattr(request, "device", None) or settings.device
    errors = _device_errors(session, device, settings)
    if errors:
        raise Refused(errors)
    owner_id = owner_of(session)
    quotas.check(session, owner_id, device)
    row = Evaluation(
        id=new_id(),
        **_sources(task, CandidateSource("", label="none")),
        owner_id=owner_id,
        device=device,
        effort=LOOK,
        deadline_s=_LOOK_S,
        priority=OWN_PRIORITY,  # a person is waiting at the page
    )
    session.add(row)
    session.commit()
    events.NEW_WORK.set()
    return row


def add_external_candidate(session: Session, job_id: str, request: CandidateRequest) -> str:
    """Add a candidate of origin `external` to a running or ended job, queue its evaluation, commit, and return its id.

    Adding the same source again returns the same candidate; a new evaluation is queued only if it has no verdict and no
    evaluation waiting.

    Raises:
        NotFound: no such job.
        QuotaExceeded: the source is new, and a quota of the job's owner is used up.
    """
    quotas.lock_user(session, session.scalar(select(Job.owner_id).where(Job.id == job_id)))
    job = events.lock_job(session, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}")
    job.tally = None
    source = CandidateSource(request.candidate, origin="external", label=request.label or "external")
    row = session.scalar(
        select(Candidate).where(Candidate.job_id == job_id, Candidate.sha256 == source.sha256)
    )
    if row is None:
        quotas.check(session, job.owner_id, job.device)
        quotas.add_usage(session, job.owner_id, candidates=1)
        row = candidate_row(
            job_id, source.sha256, "external", source.label, request.candidate, note=request.note
        )
        session.add(row)
        events.append(session, job_id, "candidate.proposed", proposed_data(row), once=source.sha256)
    judged = select(Verdict.id).where(Verdict.job_id == job_id, Verdict.sha256 == source.sha256)
    waiting = select(Evaluation.id).where(
        Evaluation.job_id == job_id,
        Evaluation.candidate_sha256 == source.sha256,
        Evaluation.state.in_(("queued", "running")),
    )
    if session.scalar(judged.limit(1)) is None and session.scalar(waiting.limit(1)) is None:
        task = TaskSource(name=job.task_name, source=job.task_source)
        session.add(
            Evaluation(
                id=new_id(),
                **_sources(task, source),
                owner_id=job.owner_id,
                job_id=job_id,
                device=job.device,
                effort="screen",
                priority=job.priority,
            )
        )
    candidate_id = row.id
    session.commit()
    events.NEW_WORK.set()
    return candidate_id


def _sources(task: TaskSource, candidate: CandidateSource) -> dict[str, str]:
    """The columns of an evaluation that hold its task and its candidate."""
    return {
        "task_name": task.name,
        "task_sha256": task.sha256,
        "task_source": task.source,
        "candidate_sha256": candidate.sha256,
        "candidate_source": candidate.source,
        "origin": candidate.origin,
        "label": candidate.label,
    }


def _task(request: TaskRequest, name: str | None, settings: Settings) -> TaskSource:
    """Return the task's source at the requested precision."""
    if request.task is not None:
        try:
            found = registry.load(settings.data_dir, request.task) or catalog.load(request.task)
        except KeyError as error:
            raise Refused([FieldError("task", str(error.args[0]))]) from None
        task = TaskSource(name=found.name, source=found.source)
    else:
        assert request.source is not None  # TaskRequest checked it
        task = TaskSource(name=name or "task", source=request.source)
    return with_precision(task, getattr(request, "precision", None))


def _device_errors(session: Session, device: str, settings: Settings) -> list[FieldError]:
    recent = Worker.seen_at > epoch_seconds() - _WORKER_REMEMBERED_S
    offered = {settings.device, *session.scalars(select(Worker.device).where(recent))}
    if device in offered:
        return []
    return [FieldError("device", f"no worker here offers {device!r}; there is: {', '.join(sorted(offered))}")]


def _priority_errors(session: Session, priority: int) -> list[FieldError]:
    if priority <= OWN_PRIORITY or sees_all(session):
        return []
    return [FieldError("priority", f"beyond {OWN_PRIORITY} it takes a key of scope admin")]


def _proposers(
    request: OptimizeRequest, settings: Settings, errors: list[FieldError]
) -> tuple[tuple[str, ...], tuple[ModelChoice, ...]]:
    # Batch requests need no endpoint here: the client has them answered.
    configured = request.batch or settings.llm_base_url is not None or settings.llm_api_key is not None
    names = [model.model_dump() for model in request.models or ()]
    if not names and settings.llm_model and configured:
        names = [{"model": settings.llm_model}]
    origins = tuple(dict.fromkeys(request.origins or ("human", "compiler", *(["llm"] if names else []))))
    asks = "llm" in origins
    for wrong, field, message in (
        (
            "policy" in origins and settings.policy is None,
            "origins",
            "'policy' needs a fine-tuned model; set KERNELWRIGHT_POLICY to its checkpoint",
        ),
        (
            request.models and not configured,
            "models",
            "this service has no LLM; set KERNELWRIGHT_LLM_BASE_URL or KERNELWRIGHT_LLM_API_KEY",
        ),
        (
            asks and not names,
            "origins",
            "'llm' needs a model: name one in `models` or set KERNELWRIGHT_LLM_MODEL and its URL",
        ),
        (request.models and not asks, "models", "given, but 'llm' is not among `origins`"),
        (request.batch and not asks, "batch", "needs a model to ask: name one in `models`"),
    ):
        if wrong:
            errors.append(FieldError(field, message))
    way = {"provider": "batch", "timeout_s": 0.0} if request.batch else {"base_url": settings.llm_base_url}
    models = [
        ModelChoice(**way, **name, **_prices(name["model"], settings)) for name in (names if asks else [])
    ]
    if request.budget.usd is not None:
        errors += _unpriced(models, settings)
    if "policy" in origins and settings.policy is not None:
        provider = "openai" if settings.policy_base_url else "policy"
        own = ModelChoice(
            settings.policy,
            base_url=settings.policy_base_url,
            api_key_variable=POLICY_API_KEY_VARIABLE,  # must not receive the key for hosted models
            provider=provider,
            origin="policy",
            samples=_POLICY_SAMPLES,
            max_tokens=_POLICY_TOKENS,
        )
        models.append(own)
    return origins, tuple(models)


def _unpriced(models: Sequence[ModelChoice], settings: Settings) -> list[FieldError]:
    """Return an error if a model has no known price: a dollar limit needs the price of every model."""
    unknown = [
        choice.model
        for choice in models
        if choice.origin != "policy" and _price(choice.model, settings) is None
    ]
    if not unknown:
        return []
    message = (
        f"no price is known of {', '.join(unknown)}; set KERNELWRIGHT_LLM_PRICES (0 for a model of one's own)"
    )
    return [FieldError("budget.usd", message)]


def _price(model: str, settings: Settings) -> tuple[float, float] | None:
    """The operator's price of a model, or its list price."""
    listed = list_price(model)
    return settings.llm_prices.get(model, listed.usd_per_million_tokens if listed else None)


def _prices(model: str, settings: Settings) -> dict[str, Any]:
    given, made = _price(model, settings) or (0.0, 0.0)
    return {"usd_per_million_input_tokens": given, "usd_per_million_output_tokens": made}
