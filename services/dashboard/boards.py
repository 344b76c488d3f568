"""Pages of the global leaderboard: ``/ui/leaderboard`` and ``/ui/leaderboard/{task}``."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response

from services.api.deps import Route, SessionDep
from services.dashboard import charts
from services.dashboard.rendering import page, plain, render
from services.db.models import utc_now
from services.errors import FieldError, Refused
from services.leaderboard import reading

PAGE_SIZE = 50
ORIGINS = ("human", "compiler", "llm", "policy", "external")

router = APIRouter(route_class=Route, include_in_schema=False)
Text = Annotated[str | None, Query(max_length=400)]


def selection(**wanted: str | None) -> dict[str, Any]:
    """Return the non-empty filters of a board; forms send unused ones as empty strings.

    Raises:
        Refused: a filter contains a control character, which is never valid and can fail in PostgreSQL.
    """
    found = {name: value for name, value in wanted.items() if value}
    wrong = [name for name, value in found.items() if not value.isprintable()]
    if wrong:
        raise Refused([FieldError(name, "holds a control character") for name in wrong])
    return found


@router.get("/ui/leaderboard")
@page
def boards_page(session: SessionDep, gpu: Text = None, after: Text = None) -> Response:
    """Every board with its first entry."""
    wanted = selection(gpu=gpu)
    found, more = reading.list_boards(session, limit=PAGE_SIZE, after=after or None, **wanted)
    return render(
        "leaderboard.html",
        boards=[plain(view) for view in found],
        gpus=reading.gpu_types(session),
        gpu=gpu or "",
        next_query=urlencode({**wanted, "after": more}) if more else "",
        query=urlencode(wanted),
    )


@router.get("/ui/leaderboard/{task}")
@page
def board_page(
    session: SessionDep,
    task: str,
    gpu: Text = None,
    platform: Text = None,
    origin: Text = None,
    model: Text = None,
    after: Text = None,
) -> Response:
    """One board, and the history of its first place."""
    where, who = selection(gpu=gpu, platform=platform), selection(origin=origin, model=model)
    found = plain(reading.read_board(session, task, limit=PAGE_SIZE, after=after or None, **where, **who))
    firsts = [plain(view) for view in reading.history(session, task, **where)]
    models = sorted(
        {row["model"] for row in [*found["data"], *firsts] if row["model"]} | ({model} if model else set())
    )
    return render(
        "board.html",
        task=task,
        page=found,
        firsts=firsts[::-1],
        chart=charts.history_chart(firsts, utc_now()),
        origins=ORIGINS,
        models=models,
        where=where,
        who=who,
        where_query=urlencode(where),
        query=urlencode({**where, **who}),
        next_query=urlencode({**where, **who, "after": found["next"]}) if found["next"] else "",
    )
