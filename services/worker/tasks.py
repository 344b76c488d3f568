"""The one Celery task: something may be ready in the database. What, and whose turn it is, is asked there."""

from __future__ import annotations

from services.worker.app import app
from services.worker.context import worker_context

LOOK = "kernelwright.look"


@app.task(name=LOOK)
def look(table: str | None = None) -> None:
    """Wake the slots of this worker, those for one table alone where it is named: others would look in vain."""
    worker_context().slots.wake(table)
