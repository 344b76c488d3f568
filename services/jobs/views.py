"""Read models of the API and the pages. Field names are the public contract: add fields, never rename them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

JobState = Literal["queued", "running", "waiting", "cancelling", "succeeded", "failed", "cancelled"]


class View(BaseModel):
    """Base of the read models."""

    model_config = ConfigDict(frozen=True)


class TaskView(View):
    """Which task; `catalog` says that it is one of ours, and only those rank on the leaderboard."""

    name: str
    sha256: str
    catalog: bool


class CountsView(View):
    """How many candidates a job has: accepted + rejected + pending = candidates."""

    candidates: int = 0
    accepted: int = 0
    rejected: int = 0
    pending: int = 0


class BestView(View):
    """A candidate's name and its speedup over the best baseline (geometric mean) with the 95 % interval.

    `traffic_speedup` is the same over the shapes of the user's traffic alone, each as heavy as it is there. Where it is
    known, candidates are chosen by it.
    """

    sha256: str
    label: str
    origin: str
    geomean_speedup: float | None
    ci95: tuple[float, float] | None
    traffic_speedup: float | None = None
    traffic_ci95: tuple[float, float] | None = None


class SpendView(View):
    """What a job has cost: US dollars and tokens of model calls, seconds since it was started; and its caps, if any."""

    usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    usd_cap: float | None = None
    tokens_cap: int | None = None
    seconds_cap: float | None = None


class JobUrls(View):
    """Where the rest of a job is; paths on this service."""

    self: str
    candidates: str
    events: str
    cancel: str
    bundle: str
    dashboard: str


class JobView(View):
    """One job."""

    id: str
    name: str
    state: JobState
    task: TaskView
    device: str
    priority: int = 0
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    verdict: str | None
    reason: str | None
    counts: CountsView
    best: BestView | None
    winner: BestView | None
    summary: dict[str, Any] | None
    spend: SpendView
    urls: JobUrls


class ChoiceView(View):
    """How a candidate stood when the winner was chosen: `place` 1 is the winner.

    The speedup is over the `shapes` where it was timed, of `of_shapes` that the choice went by; where it was not timed it counted as
    the reference. `why` says why a winner without the best mean is delivered, and is empty otherwise.
    """

    place: int
    geomean_speedup: float
    ci95: tuple[float, float]
    worst_speedup: float
    shapes: int
    of_shapes: int
    why: str = ""


class CandidateView(View):
    """One candidate of a job. `verdict` is the word of its latest phase; `screen`, `validation`, `held_out` are whole verdicts.

    `choice` is null before the winner is chosen, and of candidates that the choice was not among.
    """

    id: str
    job_id: str
    sha256: str
    origin: str
    label: str
    parent_sha256: str | None
    source: str
    note: str
    created_at: datetime
    state: Literal["pending", "judged"]
    verdict: str | None
    reason: str | None
    findings: list[dict[str, Any]]
    screen: dict[str, Any] | None
    validation: dict[str, Any] | None
    held_out: dict[str, Any] | None
    choice: ChoiceView | None = None


class EventView(View):
    """Something that happened; `id` grows, so `Last-Event-ID` resumes."""

    id: int
    time: datetime
    name: str
    data: dict[str, Any]


class EvaluationUrls(View):
    """Where an evaluation is, and where it is stopped (null: by a service that cannot)."""

    self: str
    cancel: str | None = None


class EvaluationView(View):
    """One POST /evaluate. `verdict` is the word, `result` the referee's whole verdict."""

    id: str
    state: JobState
    task: TaskView
    candidate: dict[str, str]
    device: str
    effort: str
    priority: int = 0
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    verdict: str | None
    reason: str | None
    result: dict[str, Any] | None
    urls: EvaluationUrls


def same_fields(view: type[View], row: Any) -> dict[str, Any]:
    """Return the values of a view's fields that the row has under the same names."""
    return {name: getattr(row, name) for name in view.model_fields if hasattr(row, name)}


Item = TypeVar("Item", bound=View)


class Page(View, Generic[Item]):
    """A page of a list; pass `next` as `after` to get the next one (null: there is none)."""

    data: list[Item]
    has_more: bool
    next: str | None = None
    first_id: str | int | None
    last_id: str | int | None


def page_of(found: Sequence[Item], limit: int) -> Page[Item]:
    """Return a page of at most `limit` items, from a query for `limit` + 1."""
    return page(found[:limit], len(found) > limit)


def page(shown: Sequence[Item], more: bool) -> Page[Item]:
    """Return a page of all the items; `more` says whether others follow."""
    ids: list[Any] = [getattr(item, "id", None) for item in shown]
    return Page(
        data=list(shown),
        has_more=more,
        next=str(ids[-1]) if more else None,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
    )
