"""The migrations make what the models say, on both databases, from any number of processes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, select, text

from services.db.models import Job, Verdict
from services.db.session import Database
from services.db.upgrade import alembic_config, upgrade
from services.jobs import read
from services.leaderboard import reading
from tests.services.databases import BOTH_DATABASES, fresh_database
from tests.services.ranked import TASK, ended_job
from tests.services.service import ROOT


def test_migrations_make_the_models_on_sqlite(tmp_path: Path) -> None:
    base = Database(f"sqlite:///{tmp_path / 'new.db'}")
    upgrade(base)
    command.check(alembic_config(base))  # raises when autogenerate would still find a difference
    base.close()


@pytest.mark.services("postgres")
def test_migrations_make_the_models_on_postgresql(postgres_url: str) -> None:
    base = Database(postgres_url)
    upgrade(base)
    command.check(alembic_config(base))
    base.close()


def test_processes_that_start_together_migrate_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    program = (
        "import sys; from services.db.session import Database; from services.db.upgrade import upgrade; "
        "sys.stdin.readline(); upgrade(Database(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        for _ in range(3)
    ]
    results = [process.communicate(b"go\n", timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_the_leaderboard_comes_and_goes_around_what_is_stored(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        job_id = ended_job(base, 1.5)
        config = alembic_config(base)
        command.downgrade(config, "0004")
        with base.read() as session:
            held = session.execute(text("SELECT count(*) FROM candidates")).scalar()
            assert (held, session.execute(text("SELECT winner_sha256 FROM jobs")).scalar() is not None) == (
                2,
                True,
            )
            assert not inspect(session.connection()).has_table("leaderboard_entries")
        upgrade(base)
        command.check(config)
        with base.read() as session:
            job = session.get(Job, job_id)
            assert job is not None
            assert (job.tally, session.scalars(select(Verdict.outline)).all()) == (None, [None])
            # what the columns were for is worked out from the rows themselves
            view = read.get_job(session, job_id)
            assert view.counts.candidates == 2
            assert view.winner is not None
            first, second = read.outlined_candidates(session, job_id)
            assert (first["lines"], first["source"] is not None) == (None, True)
            assert second["held_out"]["summary"]["geomean_speedup"] == 1.5
            assert reading.place_of(session, job).reason == "it ended before this service kept a leaderboard"
        again = ended_job(base, 2.0)
        with base.read() as session:
            assert [row.job_id for row in reading.read_board(session, TASK).data] == [again]
