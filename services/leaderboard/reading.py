"""Read-only queries over boards, from rows to views; each one is an index lookup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased

from evaluator.verdict import HARNESS_VERSION
from kernelbench_tasks import catalog
from services.db.models import Job, Leaderboard, LeaderboardEntry, LeaderboardFirst
from services.errors import NotFound
from services.jobs import cursors
from services.jobs.views import View, same_fields
from services.leaderboard.eligibility import NotListed
from services.leaderboard.ownership import typed_labels, visible_jobs
from services.leaderboard.recording import standing_of
from services.leaderboard.views import BoardPage, BoardView, EntryView, FirstView, PlaceView

MOST_BOARDS_OF_TASK = 50
MOST_FIRSTS = 200
_OTHER = aliased(LeaderboardEntry)
_OTHERS = select(func.count()).where(_OTHER.board_id == LeaderboardEntry.board_id, _OTHER.live.is_(True))
_ENTRY_OF_JOB = (
    select(
        LeaderboardEntry.live, Leaderboard.task_sha256, Leaderboard.task_name, Leaderboard.device_type, Leaderboard.platform,
        _OTHERS.correlate(LeaderboardEntry).scalar_subquery().label("entries"),
        # among equal figures, the earlier entry ranks first
        _OTHERS.where(
            or_(
                _OTHER.geomean > LeaderboardEntry.geomean,
                and_(_OTHER.geomean == LeaderboardEntry.geomean, _OTHER.id <= LeaderboardEntry.id),
            )
        ).correlate(LeaderboardEntry).scalar_subquery().label("rank"),
    )
    .join(Leaderboard, Leaderboard.id == LeaderboardEntry.board_id)
    .where(LeaderboardEntry.job_id == bindparam("job"), Leaderboard.harness == HARNESS_VERSION)
)  # fmt: skip


def list_boards(
    session: Session, *, gpu: str | None = None, limit: int = 50, after: str | None = None
) -> tuple[list[BoardView], str | None]:
    """List boards of the current catalogue and referee by task with their first entries, and the next page's cursor.

    Raises:
        Refused: `after` is not a cursor of this list.
    """
    query = select(Leaderboard).where(_current())
    if gpu is not None:
        query = query.where(Leaderboard.device_type == gpu)
    if after is not None:
        name, number = cursors.decode(cursors.BOARDS, after)
        query = query.where(
            or_(Leaderboard.task_name > name, and_(Leaderboard.task_name == name, Leaderboard.id > number))
        )
    query = query.order_by(Leaderboard.task_name, Leaderboard.id).limit(limit + 1)
    rows = session.scalars(query).all()
    shown = rows[:limit]
    more = cursors.encode("boards", shown[-1].task_name, shown[-1].id) if len(rows) > limit else None
    return _board_views(session, shown), more


def gpu_types(session: Session) -> list[str]:
    """Types of machine that have a current board, by name."""
    query = select(Leaderboard.device_type).where(_current()).distinct().order_by(Leaderboard.device_type)
    return list(session.scalars(query))


def read_board(
    session: Session,
    task_name: str,
    *,
    gpu: str | None = None,
    platform: str | None = None,
    origin: str | None = None,
    model: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> BoardPage:
    """Return one board of a task: that of `platform`, else the last changed one of type `gpu` (or of any type).

    Args:
        task_name: a task of the catalogue.
        gpu: type of machine.
        platform: fingerprint of one platform.
        origin: only entries of this origin, ranked among themselves; likewise `model`.
        limit: most entries to return.
        after: cursor from the previous page.

    Raises:
        NotFound: no such task in the catalogue.
        Refused: `after` is not a cursor of this board.
    """
    boards = _boards_of(session, task_name)
    board = _chosen(boards, gpu, platform)
    if board is None:
        return BoardPage(board=None, boards=_board_views(session, boards), data=[], has_more=False, next=None)
    within = _of_board(board.id, origin, model)
    query = select(LeaderboardEntry).where(*within)
    before = 0
    if after is not None:
        board_id, geomean, number = cursors.decode(cursors.ENTRIES, after)
        if board_id != board.id:
            raise cursors.refused()
        seen = _at_least_as_good(geomean, number)
        before = session.scalar(select(func.count()).select_from(LeaderboardEntry).where(*within, seen)) or 0
        query = query.where(~seen)
    rows = session.scalars(_best_first(query).limit(limit + 1)).all()
    shown = rows[:limit]
    more = None
    if len(rows) > limit:
        more = cursors.encode("entries", board.id, shown[-1].geomean, shown[-1].id)
    others = _board_views(session, boards)
    return BoardPage(
        board=next(view for view in others if view.platform == board.platform),
        boards=[view for view in others if view.platform != board.platform],
        data=_entry_views(session, shown, before + 1),
        has_more=more is not None,
        next=more,
    )


def history(
    session: Session, task_name: str, *, gpu: str | None = None, platform: str | None = None
) -> list[FirstView]:
    """Holders of a board's first place over time, oldest first; only the latest `MOST_FIRSTS`.

    Raises:
        NotFound: no such task in the catalogue.
    """
    boards = _boards_of(session, task_name)
    board = _chosen(boards, gpu, platform)
    if board is None:
        return []
    query = (
        select(LeaderboardFirst, LeaderboardEntry)
        .join(LeaderboardEntry, LeaderboardEntry.id == LeaderboardFirst.entry_id)
        .where(LeaderboardFirst.board_id == board.id)
        .order_by(LeaderboardFirst.id.desc())
        .limit(MOST_FIRSTS)
    )
    rows = [(first.since, entry) for first, entry in session.execute(query)][::-1]
    ends = [since for since, _ in rows[1:]] + [None]
    visible = visible_jobs(session, [entry.job_id for _, entry in rows])
    typed = typed_labels(session, [entry for _, entry in rows])
    return [
        FirstView(since=since, until=until, **_shown(FirstView, entry, visible, typed))
        for (since, entry), until in zip(rows, ends, strict=True)
    ]


def place_of(session: Session, job: Job) -> PlaceView:
    """A job's current place, or the reason from `eligibility.decide` why it does not rank."""
    entry = session.execute(_ENTRY_OF_JOB, {"job": job.id}).one_or_none()
    # checked in Python: passing a hundred digests to a query for one row would be wasteful
    if entry is None or catalog.find_by_sha256(entry.task_sha256) is None:
        standing = standing_of(session, job)
        if isinstance(standing, NotListed):
            return PlaceView(state="not_listed", reason=standing.reason)
        return PlaceView(state="not_listed", reason="it ended before this service kept a leaderboard")
    where = {"task": entry.task_name, "gpu": entry.device_type, "platform": entry.platform}
    if not entry.live:
        return PlaceView(
            state="replaced", reason="the same source was confirmed again later, and that counts", **where
        )
    return PlaceView(state="ranked", reason="", rank=entry.rank, entries=entry.entries, **where)


def _current() -> ColumnElement[bool]:
    """Select boards of this referee version and the catalogue's current task files."""
    return and_(Leaderboard.harness == HARNESS_VERSION, Leaderboard.task_sha256.in_(catalog.digests()))


def _chosen(boards: Sequence[Leaderboard], gpu: str | None, platform: str | None) -> Leaderboard | None:
    fits = (one for one in boards if gpu in (None, one.device_type) and platform in (None, one.platform))
    return next(fits, None)


def _boards_of(session: Session, task_name: str) -> Sequence[Leaderboard]:
    """A task's boards for the current referee, last changed first."""
    try:
        task = catalog.load(task_name)
    except KeyError:
        raise NotFound("the catalogue has no task of that name") from None
    query = select(Leaderboard).where(
        Leaderboard.task_sha256 == task.sha256, Leaderboard.harness == HARNESS_VERSION
    )
    query = query.order_by(Leaderboard.changed_at.desc(), Leaderboard.id.desc()).limit(MOST_BOARDS_OF_TASK)
    return session.scalars(query).all()


def _of_board(board_id: int, origin: str | None, model: str | None) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [
        LeaderboardEntry.board_id == board_id,
        LeaderboardEntry.live.is_(True),
    ]
    if origin is not None:
        wanted.append(LeaderboardEntry.origin == origin)
    if model is not None:
        wanted.append(LeaderboardEntry.model == model)
    return wanted


def _at_least_as_good(geomean: float, number: int) -> ColumnElement[bool]:
    """Select entries that rank at or above this one; among equal figures, the earlier entry ranks first."""
    return or_(
        LeaderboardEntry.geomean > geomean,
        and_(LeaderboardEntry.geomean == geomean, LeaderboardEntry.id <= number),
    )


def _best_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(LeaderboardEntry.geomean.desc(), LeaderboardEntry.id)


@cache
def _first_and_count() -> Select[Any]:
    """Query each board's first entry id and number of entries; cached, since creating table aliases takes 1 ms."""
    one, every = aliased(LeaderboardEntry), aliased(LeaderboardEntry)
    first_id = (
        select(one.id)
        .where(one.board_id == Leaderboard.id, one.live.is_(True))
        .order_by(one.geomean.desc(), one.id)
        .limit(1)
        .scalar_subquery()
    )
    count = (
        select(func.count())
        .select_from(every)
        .where(every.board_id == Leaderboard.id, every.live.is_(True))
        .scalar_subquery()
    )
    return select(Leaderboard.id, first_id, count)


def _board_views(session: Session, boards: Sequence[Leaderboard]) -> list[BoardView]:
    """Views of boards with first entry and number of entries; one index lookup per board."""
    if not boards:
        return []
    ids = [board.id for board in boards]
    found = session.execute(_first_and_count().where(Leaderboard.id.in_(ids))).all()
    wanted = [first for _, first, _ in found if first is not None]
    entries = session.scalars(select(LeaderboardEntry).where(LeaderboardEntry.id.in_(wanted))).all()
    views = _entry_views(session, entries, 1)
    firsts = {
        entry.board_id: view.model_copy(update={"rank": 1})
        for entry, view in zip(entries, views, strict=True)
    }
    counts = {board_id: int(number) for board_id, _, number in found}
    return [
        BoardView(
            **same_fields(BoardView, board),
            task=board.task_name,
            gpu=board.device_type,
            entries=counts.get(board.id, 0),
            first=firsts.get(board.id),
        )
        for board in boards
    ]


def _entry_views(session: Session, rows: Sequence[LeaderboardEntry], first_rank: int) -> list[EntryView]:
    visible = visible_jobs(session, [row.job_id for row in rows])
    typed = typed_labels(session, rows)
    return [
        EntryView(
            rank=rank,
            worst_speedup=row.worst,
            sha256=row.winner_sha256,
            **_shown(EntryView, row, visible, typed),
        )
        for rank, row in enumerate(rows, start=first_rank)
    ]


def _shown(
    view: type[View], row: LeaderboardEntry, visible: Collection[str], typed: Mapping[str, str]
) -> dict[str, Any]:
    """Fields common to both views of an entry; job id and typed label only for readers who may see the job."""
    return {
        **same_fields(view, row),
        "label": typed.get(row.job_id, row.label),
        "geomean_speedup": row.geomean,
        "ci95": (row.ci_low, row.ci_high),
        "job_id": row.job_id if row.job_id in visible else None,
    }
