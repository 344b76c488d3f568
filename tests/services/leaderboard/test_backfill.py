"""Jobs that ended before there was a leaderboard come onto it as of when they ended, and rewrite nothing that was shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from typer.testing import CliRunner

from services.cli import app
from services.db.models import Job, Leaderboard, LeaderboardEntry, LeaderboardFirst
from services.db.session import Database, database
from services.db.upgrade import upgrade
from services.leaderboard import reading
from services.leaderboard.recording import backfill
from services.settings import get_settings
from tests.services.databases import BOTH_DATABASES, fresh_database
from tests.services.ranked import TASK, ended_job

BEGIN = datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture(params=BOTH_DATABASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh_database(request.param, tmp_path, request) as found:
        yield found


def ended_before(base: Database, *jobs: str) -> None:
    """Jobs that ended a day apart, before the leaderboard was kept."""
    with base.write() as session:
        for day, job_id in enumerate(jobs):
            session.get_one(Job, job_id).finished_at = BEGIN + timedelta(days=day)
        session.execute(delete(LeaderboardEntry).where(LeaderboardEntry.job_id.in_(jobs)))
        empty = ~select(LeaderboardEntry.id).where(LeaderboardEntry.board_id == Leaderboard.id).exists()
        session.execute(delete(Leaderboard).where(empty))


def firsts(base: Database) -> list[tuple[str, datetime]]:
    query = select(LeaderboardEntry.job_id, LeaderboardFirst.since).join(
        LeaderboardEntry, LeaderboardEntry.id == LeaderboardFirst.entry_id
    )
    with base.read() as session:
        return [(row[0], row[1]) for row in session.execute(query.order_by(LeaderboardFirst.id))]


def ranked(base: Database) -> list[str | None]:
    with base.read() as session:
        return [row.job_id for row in reading.read_board(session, TASK).data]


def test_an_empty_board_gets_its_history_once(base: Database) -> None:
    slow, fast, middle = (ended_job(base, speedup, source=f"x = {speedup}") for speedup in (1.2, 2.0, 1.5))
    unranked = ended_job(base, 3.0, source="x = 3", effort="screen")
    ended_before(base, slow, fast, middle, unranked)
    made, kept_out = backfill(base)
    assert (made, sum(kept_out.values())) == (3, 1)
    assert ranked(base) == [fast, middle, slow]
    assert firsts(base) == [(slow, BEGIN), (fast, BEGIN + timedelta(days=1))]
    assert backfill(base)[0] == 0
    assert len(firsts(base)) == 2


def test_what_was_measured_later_stays_what_counts(base: Database) -> None:
    old = ended_job(base, 2.0, source="same = 1")
    better = ended_job(base, 3.0, source="other = 1")
    ended_before(base, old, better)
    new = ended_job(base, 1.5, source="same = 1")
    assert backfill(base)[0] == 2
    assert ranked(base) == [better, new], "the same source was measured again since, and less luckily"
    (first, since), (second, later) = firsts(base)
    assert (first, second) == (new, better)
    assert later > since, "who was shown as first then was the first then"


def test_the_command_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_DATA_DIR", str(tmp_path))
    get_settings.cache_clear()
    try:
        base = database(get_settings().database)
        upgrade(base)
        ended_before(base, ended_job(base, 2.0), ended_job(base, 3.0, effort="screen"))
        done = CliRunner().invoke(app, ["backfill-leaderboard", "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert (told["entered"], list(told["not_listed"].values())) == (1, [1])
        assert "0 jobs entered" in CliRunner().invoke(app, ["backfill-leaderboard"]).output
        base.close()
    finally:
        get_settings.cache_clear()
