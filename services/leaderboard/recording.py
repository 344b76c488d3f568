"""Writes a job's entry to its board, in the transaction that ends the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from agent import candidates
from agent.budget import ROOFLINE_BELIEVED
from agent.diagnosing import DESCRIBE_STEP, PROFILE_STEP, roofline_share
from agent.store import PLAN_STEPS
from evaluator.verdict import from_json
from services.db.models import (
    Candidate,
    Job,
    Leaderboard,
    LeaderboardEntry,
    LeaderboardFirst,
    Step,
    Verdict,
    utc_now,
)
from services.db.session import Database
from services.jobs import events
from services.jobs.rows import step_value
from services.leaderboard.eligibility import Board, NotListed, Standing, decide
from services.leaderboard.ownership import shown_label, shown_model

_MODEL_ORIGINS = ("llm", "policy")


def standing_of(session: Session, job: Job) -> Standing | NotListed:
    """Decide from stored rows whether a job ranks."""
    of_job = select(Candidate).where(Candidate.job_id == job.id, Candidate.sha256 == job.winner_sha256)
    winner = session.scalar(of_job) if job.winner_sha256 is not None else None
    query = select(Verdict).where(Verdict.job_id == job.id, Verdict.phase == "held_out")
    held_out = session.scalar(query.order_by(Verdict.id.desc()).limit(1))
    return decide(job, winner, held_out, _of_members(session, job))


def _of_members(session: Session, job: Job) -> list[dict[str, Any]]:
    """Verdicts on the delivered module's candidates; empty if the plan is unknown or any was not judged separately.

    Baselines are excluded: this project writes them to run the reference, and they are not judged.
    """
    query = select(Step.value).where(Step.job_id == job.id, Step.name.startswith(PLAN_STEPS, autoescape=True))
    stored = session.scalar(query.order_by(Step.name.desc()).limit(1))
    plan = (stored or {}).get("value")
    if not isinstance(plan, dict) or plan["members"][0] != job.winner_sha256:
        return []
    baselines = [candidates.Candidate(**one).sha256 for one in plan.get("baselines") or ()]
    judged = {sha256 for sha256 in plan["members"] if sha256 not in baselines}
    rows = session.execute(
        select(Verdict.sha256, Verdict.body).where(Verdict.job_id == job.id, Verdict.sha256.in_(judged))
    ).all()
    return [row.body for row in rows] if {row.sha256 for row in rows} == judged else []


def enter(session: Session, job: Job, at: datetime | None = None) -> LeaderboardEntry | NotListed:
    """Add a job that ends now, or ended at `at`, to its board, unless it does not rank or already has an entry.

    The caller has locked the job.
    """
    if session.scalar(select(LeaderboardEntry.id).where(LeaderboardEntry.job_id == job.id)) is not None:
        return NotListed("it has an entry already")
    standing = standing_of(session, job)
    if isinstance(standing, NotListed):
        return standing
    winner = standing.winner
    board = _locked_board(session, standing.board)
    choice = _choice_of(job, winner)
    model = str(choice["model"]) if choice else ""
    shown = shown_model(model, is_folder=bool(choice) and choice.get("provider") == "policy")
    now = utc_now()
    at = at or now
    entry = LeaderboardEntry(
        board_id=board.id,
        job_id=job.id,
        owner=job.owner_id or "",
        winner_sha256=winner.sha256,
        origin=winner.origin,
        model=shown or None,
        label=shown_label(winner.label, winner.origin, model, shown),
        **asdict(standing.figures),
        roofline_share=_roofline_share(session, job, winner),
        usd=job.usd,
        entered_at=at,
    )
    same = (
        LeaderboardEntry.board_id == board.id,
        LeaderboardEntry.winner_sha256 == winner.sha256,
        LeaderboardEntry.owner == entry.owner,
        LeaderboardEntry.origin == winner.origin,
    )
    later = select(LeaderboardEntry.id).where(*same, LeaderboardEntry.entered_at > at)
    entry.live = session.scalar(later.limit(1)) is None
    earlier = update(LeaderboardEntry).where(*same, LeaderboardEntry.entered_at <= at).values(live=False)
    session.execute(earlier.execution_options(synchronize_session=False))
    session.add(entry)
    session.flush()
    board.changed_at = now
    _note_first(session, board.id, at, now)
    return entry


def backfill(database: Database) -> tuple[int, Counter[str]]:
    """Enter all jobs that rank but have no entry, in order of their end, dated to that time.

    Each job gets its own transaction, so a job that ends meanwhile waits only for its own board. Safe to repeat or interrupt.

    Returns:
        The number of jobs entered, and the count of each reason for exclusion.
    """
    entered = exists().where(LeaderboardEntry.job_id == Job.id)
    missing = select(Job.id).where(Job.state == "succeeded", Job.from_catalog, ~entered)
    with database.read() as session:
        ids = session.scalars(missing.order_by(Job.finished_at, Job.id)).all()
    made, kept_out = 0, Counter[str]()
    for job_id in ids:
        with database.write() as session:
            job = events.lock_job(session, job_id)
            if job is None:
                continue
            found = enter(session, job, job.finished_at)
            if isinstance(found, NotListed):
                kept_out[found.reason] += 1
            else:
                made += 1
    return made, kept_out


def _note_first(session: Session, board_id: int, at: datetime, now: datetime) -> None:
    """Record a new first place as of `at`, or as of now if first place changed after `at`: shown history is not rewritten."""
    first = session.scalar(
        select(LeaderboardEntry.id)
        .where(LeaderboardEntry.board_id == board_id, LeaderboardEntry.live)
        .order_by(LeaderboardEntry.geomean.desc(), LeaderboardEntry.id)
        .limit(1)
    )
    held = session.scalar(
        select(LeaderboardFirst)
        .where(LeaderboardFirst.board_id == board_id)
        .order_by(LeaderboardFirst.id.desc())
        .limit(1)
    )
    if first is not None and (held is None or first != held.entry_id):
        since = at if held is None or held.since <= at else now
        session.add(LeaderboardFirst(board_id=board_id, entry_id=first, since=since))


def _locked_board(session: Session, described: Board) -> Leaderboard:
    """The board's row, locked until the transaction ends, which serializes jobs that end at the same time."""
    query = (
        select(Leaderboard)
        .where(
            Leaderboard.task_sha256 == described.task_sha256,
            Leaderboard.harness == described.harness,
            Leaderboard.platform == described.platform,
        )
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    board = session.scalar(query)
    if board is None:
        try:
            with session.begin_nested():
                session.add(Leaderboard(**asdict(described)))
        except IntegrityError:
            pass  # another job has created it meanwhile
        board = session.scalars(query).one()
    return board


def _choice_of(job: Job, winner: Candidate) -> Mapping[str, Any]:
    """The job's model that wrote the winner; empty if unknown. Proposers begin their labels with the model's name."""
    if winner.origin not in _MODEL_ORIGINS:
        return {}
    asked = [one for one in job.request.get("models") or () if one.get("origin", "llm") == winner.origin]
    asked.sort(key=lambda one: len(str(one["model"])), reverse=True)
    if len({one["model"] for one in asked}) == 1:
        return asked[0]
    return next((one for one in asked if winner.label.startswith(f"{one['model']} ")), {})


def _roofline_share(session: Session, job: Job, winner: Candidate) -> float | None:
    query = select(Verdict.body).where(
        Verdict.job_id == job.id, Verdict.sha256 == winner.sha256, Verdict.phase == "screen"
    )
    screen = session.scalar(query)
    share = roofline_share(
        step_value(session, job.id, PROFILE_STEP),
        step_value(session, job.id, DESCRIBE_STEP),
        None if screen is None else from_json(screen),
    )
    return share if share is not None and 0 < share <= ROOFLINE_BELIEVED else None
