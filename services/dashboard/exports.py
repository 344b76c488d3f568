"""Exports the pages' tables as CSV and JSON and plots as SVG, at stable addresses below each page.

| address | what |
| --- | --- |
| `/ui/tables/jobs.csv` | the overview; `after` and `limit` as in GET /jobs |
| `/ui/jobs/{id}/tables/{name}.csv` | `candidates`, `rejected`, `shapes`, `own_shapes`, `costs`, `events` (with `after`) |
| `/ui/candidates/{id}/tables/{name}.csv` | `findings`, and `held_out`, `validation`, `screen`: all shapes of that phase |
| `/ui/leaderboard/tables/boards.csv` | all boards; filters as on the page |
| `/ui/leaderboard/{task}/tables/{name}.csv` | `entries`, `history` |
| `/ui/jobs/{id}/plots/{name}.svg` | `search`, `shapes`, `map` |
| `/ui/candidates/{id}/plots/{phase}.svg` | `held_out`, `validation`, `screen` |
| `/ui/leaderboard/{task}/plots/history.svg` | first place over time |
| `/ui/workers/tables/{name}.csv` | see `workers` |
| `/ui/runs/tables/{name}.csv`, `/ui/runs/{run}/tables/{name}.csv` | see `runs` |
| `/ui/compare/tables/{name}.csv` | `facts`, `shapes` of several `candidate` |

`.json` instead of `.csv` returns the same rows as JSON. Paginated lists give the next page in a `Link` header and in `next`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from agent.performance.money import Prices
from agent.performance.rate_map import draw
from services.api.deps import After, Route, SessionDep, SettingsDep
from services.dashboard import charts, contexts, ranking, tables
from services.dashboard.boards import Text, selection
from services.dashboard.rendering import plain, static_file
from services.dashboard.tables import Table
from services.db.models import utc_now
from services.errors import NotFound
from services.jobs import read
from services.jobs.views import page_of
from services.leaderboard import reading

_MOST = 1000
_PHASES = ranking.PHASES
#: The file may not load or run anything; its style sheet is inline.
_SVG_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_COLORS = (":root {", "* { box-sizing")
_CHARTS = ("/* charts */", "/* code */")

router = APIRouter(route_class=Route, include_in_schema=False)
Rows = Annotated[int, Query(ge=1, le=_MOST)]


@router.get("/ui/tables/{file}")
def overview_table(
    request: Request, session: SessionDep, file: str, limit: Rows = 100, after: After = None
) -> Response:
    """The overview's table."""
    _, ending = parts_of(file, "jobs")
    page = page_of(read.list_jobs(session, limit + 1, after), limit)
    return answer_of(request, tables.jobs([plain(view) for view in page.data], page.next), "jobs", ending)


@router.get("/ui/jobs/{job_id}/tables/{file}")
def job_table(
    request: Request,
    session: SessionDep,
    settings: SettingsDep,
    job_id: str,
    file: str,
    limit: Rows = 500,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
) -> Response:
    """One of a job's tables."""
    name, ending = parts_of(file, "candidates", "rejected", "shapes", "own_shapes", "costs", "events")
    if name == "events":
        read.job_row(session, job_id)
        page = page_of(read.list_events(session, job_id, after, limit + 1), limit)
        table = tables.events([plain(view) for view in page.data], page.next)
    else:
        found = _Measured(session, job_id, alone=name in ("shapes", "own_shapes", "costs"))
        prices = Prices(settings.gpu_prices, settings.energy_price)
        made: dict[str, Callable[[], Table]] = {
            "candidates": lambda: tables.candidates(found.rows()),
            "rejected": lambda: tables.rejected(ranking.rejections(found.candidates)),
            "shapes": lambda: tables.shapes(ranking.shapes_of(found.verdict)),
            "own_shapes": lambda: tables.shapes(
                (contexts.own_shapes(found.delivered) or {}).get("shapes", [])
            ),
            "costs": lambda: tables.costs(contexts.costs(found.verdict, prices)),
        }
        table = made[name]()
    return answer_of(request, table, f"{job_id}-{name}", ending)


@router.get("/ui/candidates/{candidate_id}/tables/{file}")
def candidate_table(request: Request, session: SessionDep, candidate_id: str, file: str) -> Response:
    """One of a candidate's tables."""
    name, ending = parts_of(file, "findings", *_PHASES)
    candidate = plain(read.get_candidate(session, candidate_id))
    if name == "findings":
        table = tables.findings(candidate["findings"])
    else:
        table = tables.shapes(ranking.shapes_of(ranking.verdict_in(candidate, name)))
    return answer_of(request, table, f"{candidate_id}-{name}", ending)


@router.get("/ui/leaderboard/tables/{file}")
def boards_table(
    request: Request, session: SessionDep, file: str, gpu: Text = None, limit: Rows = 200, after: After = None
) -> Response:
    """All boards."""
    _, ending = parts_of(file, "boards")
    found, more = reading.list_boards(session, limit=limit, after=after, **selection(gpu=gpu))
    return answer_of(request, tables.boards([plain(view) for view in found], more), "leaderboard", ending)


@router.get("/ui/leaderboard/{task}/tables/{file}")
def board_table(
    request: Request,
    session: SessionDep,
    task: str,
    file: str,
    gpu: Text = None,
    platform: Text = None,
    origin: Text = None,
    model: Text = None,
    limit: Rows = 200,
    after: After = None,
) -> Response:
    """One board, or the history of its first place."""
    name, ending = parts_of(file, "entries", "history")
    where = selection(gpu=gpu, platform=platform)
    if name == "history":
        table = tables.firsts([plain(view) for view in reading.history(session, task, **where)])
    else:
        who = selection(origin=origin, model=model)
        found = reading.read_board(session, task, limit=limit, after=after, **where, **who)
        table = tables.entries([plain(view) for view in found.data], found.next)
    return answer_of(request, table, f"leaderboard-{task}-{name}", ending)


@router.get("/ui/jobs/{job_id}/plots/{file}")
def job_plot(session: SessionDep, job_id: str, file: str) -> Response:
    """One of a job's plots."""
    name, _ = parts_of(file, "search", "shapes", "map", endings=("svg",))
    found = _Measured(session, job_id, alone=name != "search")
    if name == "map":
        drawn = contexts.rate_map_of(found.delivered, found.phase, found.verdict)
        if drawn is None:
            raise NotFound("this job has no map of work per second")
        return _svg(str(draw(drawn["chart"], as_file=True)))
    if name == "search":
        chart = charts.search_chart([one for one in found.candidates if not ranking.is_delivery(one)])
        return _chart(chart)
    timed, summary = ranking.timed_shapes(found.verdict), ranking.summary_of(found.verdict)
    return _chart(charts.shape_chart(timed, summary=summary))


@router.get("/ui/candidates/{candidate_id}/plots/{file}")
def candidate_plot(session: SessionDep, candidate_id: str, file: str) -> Response:
    """Speedup by shape in one phase of a candidate."""
    phase, _ = parts_of(file, *_PHASES, endings=("svg",))
    verdict = ranking.verdict_in(plain(read.get_candidate(session, candidate_id)), phase)
    timed, summary = ranking.timed_shapes(verdict), ranking.summary_of(verdict)
    chart = charts.shape_chart(timed, summary=summary, name=phase)
    return _chart(chart)


@router.get("/ui/leaderboard/{task}/plots/history.svg")
def history_plot(session: SessionDep, task: str, gpu: Text = None, platform: Text = None) -> Response:
    """First place of a board over time."""
    held = reading.history(session, task, **selection(gpu=gpu, platform=platform))
    chart = charts.history_chart([plain(view) for view in held], utc_now())
    return _chart(chart)


class _Measured:
    """The source data of a job's tables and plots.

    Args:
        session: the database session.
        job_id: the job.
        alone: whether only the delivered candidate is needed.

    Raises:
        NotFound: no such job.
    """

    def __init__(self, session: Session, job_id: str, *, alone: bool = False) -> None:
        self.job = plain(read.get_job(session, job_id))
        shown = {one["sha256"] for one in (self.job["winner"], self.job["best"]) if one}
        self.candidates, held_out = read.judged_candidates(session, job_id, shown, alone=alone)
        self.delivered, self.phase, self.verdict = ranking.delivered(self.job, self.candidates, held_out)

    def rows(self) -> list[ranking.Row]:
        """The candidates, ranked as on the job's page."""
        return ranking.leaderboard(self.candidates, (self.job["winner"] or {}).get("sha256"))


def parts_of(file: str, *names: str, endings: tuple[str, ...] = ("csv", "json")) -> tuple[str, str]:
    """Split a requested file name into name and ending.

    Raises:
        NotFound: the name or the ending is not among the allowed ones.
    """
    name, _, ending = file.rpartition(".")
    if name not in names or ending not in endings:
        raise NotFound(f"there is {', '.join(names)}, each as {' or '.join(endings)}")
    return name, ending


def answer_of(request: Request, table: Table, name: str, ending: str) -> Response:
    """Respond with a table as JSON, or as a CSV file named after `name`."""
    headers = {"Cache-Control": "no-store"}
    if table.next is not None:
        asked = {**request.query_params, "after": table.next}
        headers["Link"] = f'<{request.url.path}?{urlencode(asked)}>; rel="next"'
    if ending == "json":
        return JSONResponse(table.as_json(), headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return Response(table.as_csv(), media_type="text/csv; charset=utf-8", headers=headers)


def _svg(markup: str) -> Response:
    return Response(markup, media_type="image/svg+xml", headers=_SVG_HEADERS)


def _chart(chart: charts.Chart) -> Response:
    """Respond with one chart's markup and an inline style sheet."""
    markup = str(chart.svg())
    start = markup.index("<svg")
    end = markup.index(">", start) + 1  # attributes are escaped, so the first `>` ends the tag
    return _svg(f"{markup[start:end]}\n<style>\n{_style()}</style>{markup[end:]}")


@cache
def _style() -> str:
    sheet = (static_file("style.css") or b"").decode()
    parts = [sheet[sheet.index(begin) : sheet.index(end)] for begin, end in (_COLORS, _CHARTS)]
    return "".join(parts) + "svg { background: var(--paper); }\n"
