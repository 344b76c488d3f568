"""Celery tasks: thin doors to `services.worker.runner`."""

from __future__ import annotations

from services.worker.app import app
from services.worker.context import worker_context

RUN_JOB = "kernelwright.run_job"
RUN_EVALUATION = "kernelwright.run_evaluation"


@app.task(name=RUN_JOB)
def run_job(job_id: str) -> None:
    """Work on a job if it needs a worker."""
    worker_context().runner.run_job(job_id)


@app.task(name=RUN_EVALUATION)
def run_evaluation(evaluation_id: str) -> None:
    """Judge one (task, candidate), an external candidate of a job included, if nobody has yet."""
    worker_context().runner.run_evaluation(evaluation_id)
