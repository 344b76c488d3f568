"""Jobs that ended with a confirmed figure, as a worker would have stored them."""

from __future__ import annotations

import hashlib
from typing import Any

from evaluator.verdict import HARNESS_VERSION
from kernelbench_tasks import catalog
from services.db.ids import new_id
from services.db.models import Candidate, Job, Step, utc_now
from services.db.session import Database
from services.db.types import storable_json
from services.jobs import events
from services.jobs.endings import end_job
from services.jobs.rows import candidate_row, verdict_row
from services.leaderboard import recording

TASK = "layernorm_relu_add"
H200 = {
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "gpu_uuid": "GPU-1",
    "driver": "580.1",
    "power_limit_w": 700.0,
    "torch": "2.11.0",
    "triton": "3.6.0",
    "threads": 32,
    "harness": HARNESS_VERSION,
    "sandbox_tier": "namespaces",
}


def confirmed(speedup: float, task_sha256: str, **changes: Any) -> dict[str, Any]:
    """A held-out verdict that ranks, unless `changes` sees to it that it does not."""
    body: dict[str, Any] = {
        "schema": "kernelwright.verdict/1",
        "verdict": "accepted",
        "reason": "correct",
        "findings": [],
        "task": {"name": "any", "sha256": task_sha256},
        "effort": "confirm",
        "splits": ["held_out"],
        "environment": dict(H200),
        "shapes": [{"timed": True, "split": "held_out", "dims": {"rows": 8}, "speedup": speedup}] * 4,
        "summary": {
            "geomean_speedup": speedup,
            "geomean_ci95": [speedup * 0.98, speedup * 1.02],
            "worst_speedup": speedup * 0.8,
        },
        "timing": {"protocol": "paired", "pairs": 3},
        "elapsed_s": 20.0,
    }
    for path, value in changes.items():
        *above, name = path.split("__")
        place = body
        for part in above:
            place = place[part]
        place[name] = value
    return body


def ended_job(
    base: Database,
    speedup: float,
    *,
    task: str = TASK,
    source: str | None = None,
    origin: str = "llm",
    label: str = "m-1 #1",
    model: str = "m-1",
    request: dict[str, Any] | None = None,
    task_source: str | None = None,
    usd: float = 0.25,
    steps: dict[str, Any] | None = None,
    screen: dict[str, Any] | None = None,
    name: str = "a private name",
    owner_id: str | None = None,
    **changes: Any,
) -> str:
    """A job of `task` that succeeded with this figure; its id. `changes` are of its held-out verdict."""
    job_id = new_id()
    reference = task_source if task_source is not None else catalog.load(task).source
    text = source if source is not None else f"# private source of {job_id}\n"
    sha256, delivered = (_digest(one) for one in (text, f"optimized {text}"))
    models = [{"model": model, "origin": origin}] if origin in ("llm", "policy") else []
    with base.write() as session:
        session.add(
            Job(
                id=job_id,
                owner_id=owner_id,
                name=name,
                device="cuda",
                task_name="whatever the client said",
                task_sha256=_digest(reference),
                task_source=reference,
                from_catalog=True,
                request={"models": models, **(request or {})},
                state="running",
                attempt=1,
                started_at=utc_now(),
                usd=usd,
            )
        )
        session.flush()
        winner: Candidate = candidate_row(job_id, sha256, origin, label, text)
        session.add(winner)
        optimized = candidate_row(
            job_id, delivered, origin, "optimized.py", f"optimized {text}", parent_sha256=sha256
        )
        session.add(optimized)
        body = storable_json(confirmed(speedup, _digest(reference), **changes))
        session.add(verdict_row(job_id, delivered, "held_out", body))
        if screen is not None:
            session.add(verdict_row(job_id, sha256, "screen", storable_json(screen)))
        for step, value in (steps or {}).items():
            session.add(Step(job_id=job_id, name=step, value={"value": value}))
        session.flush()
        job = events.lock_job(session, job_id)
        assert job is not None
        end_job(
            session, job, "succeeded", "ok", verdict="accepted", winner_sha256=sha256, summary=body["summary"]
        )
        recording.enter(session, job)
    return job_id


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
