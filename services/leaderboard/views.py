"""Views of the leaderboard. Field names are a public contract: add, never rename."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from services.jobs.views import View


class EntryView(View):
    """One figure of a board: speedup over the best baseline at held-out shapes, with the 95 % interval.

    `roofline_share` is the least time that the device's measured ceilings allow over the winner's at the task's default
    sizes, where both are known. `usd` is what the job's models cost. `job_id` is null for jobs that the reader may not see.
    """

    rank: int
    label: str
    origin: str
    model: str | None
    geomean_speedup: float
    ci95: tuple[float, float]
    worst_speedup: float
    shapes: int
    roofline_share: float | None
    usd: float
    entered_at: datetime
    sha256: str
    job_id: str | None


class BoardView(View):
    """One ranking: a task on one platform. `platform` is the fingerprint that tells boards of one GPU type apart."""

    task: str
    task_sha256: str
    gpu: str
    device: str
    platform: str
    versions: dict[str, Any]
    harness: str
    entries: int
    changed_at: datetime
    first: EntryView | None


class BoardPage(View):
    """A board's entries, best first, and the other boards of the same task, last changed first."""

    board: BoardView | None
    boards: list[BoardView]
    data: list[EntryView]
    has_more: bool
    next: str | None


class FirstView(View):
    """Who took first place at `since` and lost it at `until` (null: holds it)."""

    since: datetime
    until: datetime | None
    label: str
    origin: str
    model: str | None
    geomean_speedup: float
    ci95: tuple[float, float]
    job_id: str | None


class PlaceView(View):
    """Where a job stands on the global leaderboard, or in one sentence why it does not."""

    state: Literal["ranked", "replaced", "not_listed"]
    reason: str
    rank: int | None = None
    entries: int | None = None
    task: str | None = None
    gpu: str | None = None
    platform: str | None = None
