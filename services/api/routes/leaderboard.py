"""The global leaderboard. Only `services.leaderboard.eligibility` decides which jobs rank."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from services.api.deps import After, Limit, Route, SessionDep
from services.jobs import read
from services.jobs.views import Page
from services.leaderboard import reading
from services.leaderboard.views import BoardPage, BoardView, FirstView, PlaceView

router = APIRouter(route_class=Route, tags=["leaderboard"])

TaskName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_]{1,200}$", description="a task of the catalogue")]
Gpu = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[^\x00-\x1f]+$",
        description="type of machine, as `gpu` of a board names it",
    ),
]
Platform = Annotated[
    str | None,
    Query(pattern=r"^[0-9a-f]{16}$", description="one platform; by default the one that changed last"),
]
Origin = Annotated[
    Literal["llm", "policy", "compiler", "human", "external"] | None,
    Query(description="rank entries of this origin among themselves"),
]
Model = Annotated[
    str | None,
    Query(
        max_length=200, pattern=r"^[^\x00-\x1f]+$", description="rank entries of this model among themselves"
    ),
]


@router.get("/leaderboard")
def list_boards(
    session: SessionDep, gpu: Gpu = None, limit: Limit = 50, after: After = None
) -> Page[BoardView]:
    """Every board (task, platform) of this version of the referee, with its first entry."""
    boards, more = reading.list_boards(session, gpu=gpu, limit=limit, after=after)
    return Page(data=boards, has_more=more is not None, next=more, first_id=None, last_id=more)


@router.get("/leaderboard/{task}")
def get_board(
    session: SessionDep,
    task: TaskName,
    gpu: Gpu = None,
    platform: Platform = None,
    origin: Origin = None,
    model: Model = None,
    limit: Limit = 50,
    after: After = None,
) -> BoardPage:
    """One board: confirmed figures of jobs on this task, best first. Platforms are never mixed."""
    return reading.read_board(
        session, task, gpu=gpu, platform=platform, origin=origin, model=model, limit=limit, after=after
    )


@router.get("/leaderboard/{task}/history")
def get_history(
    session: SessionDep, task: TaskName, gpu: Gpu = None, platform: Platform = None
) -> list[FirstView]:
    """Who held first place of a board, and when."""
    return reading.history(session, task, gpu=gpu, platform=platform)


@router.get("/jobs/{job_id}/place")
def get_place(job_id: str, session: SessionDep) -> PlaceView:
    """Where a job stands on the global leaderboard, or why it does not."""
    return reading.place_of(session, read.job_row(session, job_id))
