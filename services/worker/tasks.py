"""The one Celery task: something may be ready in the database. What, and whose turn it is, is asked there."""

from __future__ import annotations

from services.worker.app import app
from services.worker.context import worker_context

LOOK = "kernelwright.look"


@app.task(name=LOOK)
def look() -> None:
    """Wake the slots of this worker."""
    worker_context().slots.wake()
