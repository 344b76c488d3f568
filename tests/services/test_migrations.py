"""The migrations make what the models say, on both databases, from any number of processes at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import inspect, select, text

from services.db.models import Evaluation, Job, Verdict
from services.db.session import Database
from services.db.upgrade import alembic_config, upgrade
from services.jobs import read, turns
from services.leaderboard import reading
from services.users import keys
from services.users.audit import FROM_THE_MACHINE
from tests.services.databases import BOTH_DATABASES, empty_postgres, fresh_database
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


_TIME = "'2026-11-01 10:00:00'"
_OLD_ROWS = (
    (
        "INSERT INTO jobs (id, name, device, task_name, task_sha256, task_source, from_catalog, request, usd, tokens, state, "
        "attempt, stalled_attempts, cancel_requested, created_at) VALUES "
        f"('j', 'old', 'cpu', 't', 's', 'src', false, '{{}}', 0, 0, 'queued', 0, 0, false, {_TIME})"
    ),
    (
        "INSERT INTO candidates (id, job_id, sha256, origin, label, note, source, created_at) "
        f"VALUES ('j.a', 'j', 'a', 'llm', 'l', '', 'class ModelNew', {_TIME})"
    ),
    (
        "INSERT INTO evaluations (id, job_id, device, effort, task_name, task_sha256, task_source, candidate_sha256, "
        "candidate_source, origin, label, state, attempt, stalled_attempts, cancel_requested, created_at) VALUES "
        f"('e', 'j', 'cpu', 'screen', 't', 's', 'src', 'a', 'c', 'llm', 'l', 'queued', 0, 0, false, {_TIME})"
    ),
    f"INSERT INTO events (job_id, time, name, data) VALUES ('j', {_TIME}, 'job.queued', '{{}}')",
    f"INSERT INTO idempotency_keys (key, body_sha256, made_id, created_at) VALUES ('k', 'b', 'j', {_TIME})",
)
_USERS_ROWS = (
    f"INSERT INTO users (id, name, quotas, created_at) VALUES ('u', 'ada', '{{}}', {_TIME})",
    (
        "INSERT INTO api_keys (id, user_id, name, prefix, sha256, scope, created_at) "
        f"VALUES ('a', 'u', 'k', 'kw_aaaaaaaa', '0', 'read', {_TIME})"
    ),
    "INSERT INTO usage (user_id, day, candidates, usd, gpu_seconds, cpu_seconds) VALUES ('u', '2026-11-01', 1, 0.5, 0, 0)",
    "UPDATE jobs SET owner_id = 'u'",
    "UPDATE evaluations SET owner_id = 'u'",
    (
        "INSERT INTO idempotency_keys (owner_id, key, body_sha256, made_id, created_at) "
        f"VALUES ('u', 'k', 'of ada', 'j', {_TIME})"
    ),
)


def _write(base: Database, statements: Sequence[str]) -> None:
    with base.write() as session:
        for statement in statements:
            session.execute(text(statement))


def _rows(base: Database, query: str) -> list[tuple[Any, ...]]:
    with base.read() as session:
        return [tuple(row) for row in session.execute(text(query))]


def _nothing_is_lost(base: Database) -> None:
    for table in ("jobs", "candidates", "evaluations", "events"):
        assert _rows(base, f"SELECT count(*) FROM {table}") == [(1,)], table


def _users_come_and_go(base: Database) -> None:
    """From before there were users, with a job that others refer to; then with users and back; then forwards again."""
    config = alembic_config(base)
    command.upgrade(config, "0004")
    _write(base, _OLD_ROWS)
    command.upgrade(config, "0005")
    _nothing_is_lost(base)
    assert (
        _rows(base, "SELECT owner_id FROM jobs UNION ALL SELECT owner_id FROM evaluations") == [(None,)] * 2
    )
    assert _rows(base, "SELECT owner_id, key, made_id FROM idempotency_keys") == [("", "k", "j")]
    _write(base, _USERS_ROWS)
    command.downgrade(config, "0004")
    _nothing_is_lost(base)
    assert _rows(base, "SELECT key, body_sha256 FROM idempotency_keys") == [("k", "b")]
    command.upgrade(config, "head")
    command.check(config)
    _nothing_is_lost(base)
    assert _rows(base, "SELECT owner_id FROM jobs") == [(None,)]
    assert _rows(base, "SELECT count(*) FROM users") == [(0,)]


def test_users_come_and_go_and_no_job_is_lost_on_sqlite(tmp_path: Path) -> None:
    base = Database(f"sqlite:///{tmp_path / 'old.db'}")
    _users_come_and_go(base)
    base.close()


@pytest.mark.services("postgres")
def test_users_come_and_go_and_no_job_is_lost_on_postgresql(postgres_url: str) -> None:
    with empty_postgres(postgres_url) as url:
        base = Database(url)
        _users_come_and_go(base)
        base.close()


def test_processes_that_start_together_migrate_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    program = (
        "import sys; from services.db.session import Database; from services.db.upgrade import upgrade; "
        "print(flush=True); sys.stdin.readline(); upgrade(Database(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # it has imported what it needs
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), results


def test_who_opens_a_new_database_waits_for_another_that_writes(tmp_path: Path) -> None:
    """SQLite does not, where its journal is to change: it says at once that the database is locked."""
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    later = threading.Timer(0.3, other.close)
    later.start()
    base = Database(f"sqlite:///{path}")
    upgrade(base)
    later.join()
    base.close()


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
            first, second = read.judged_candidates(session, job_id)[0]
            assert (first["lines"], first["source"] is not None) == (None, True)
            assert second["held_out"]["summary"]["geomean_speedup"] == 1.5
            assert reading.place_of(session, job).reason == "it ended before this service kept a leaderboard"
        again = ended_job(base, 2.0)
        with base.read() as session:
            assert [row.job_id for row in reading.read_board(session, TASK).data] == [again]


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_boards_come_and_go_around_users_and_keep_nothing_of_who_is_gone(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        with base.write() as session:
            made = keys.make_key(session, FROM_THE_MACHINE, "ada", "laptop", "submit", None)
        ada = made.user.id
        hers = ended_job(base, 2.0, owner_id=ada)
        other = ended_job(base, 1.5, owner_id="bob")
        assert _rows(base, "SELECT owner, job_id FROM leaderboard_entries ORDER BY id") == [
            (ada, hers), ("bob", other)
        ]  # fmt: skip
        with base.write() as session:
            keys.revoke_key(session, FROM_THE_MACHINE, made.row.id)
        assert _board(base) == [hers, other], "a figure is the job's, not the key's"
        _write(base, [f"DELETE FROM jobs WHERE owner_id = '{ada}'", f"DELETE FROM users WHERE id = '{ada}'"])
        assert _board(base) == [other]
        assert _rows(base, "SELECT count(*) FROM api_keys") == [(0,)]
        assert _rows(base, f"SELECT count(*) FROM leaderboard_entries WHERE owner = '{ada}'") == [(0,)]
        lost = "SELECT count(*) FROM leaderboard_firsts WHERE entry_id NOT IN (SELECT id FROM leaderboard_entries)"
        assert _rows(base, lost) == [(0,)]
        config = alembic_config(base)
        command.downgrade(config, "0005")
        assert _rows(base, "SELECT id, owner_id FROM jobs") == [(other, "bob")]
        upgrade(base)
        command.check(config)
        assert _board(base) == []
        assert _rows(base, "SELECT id, owner_id FROM jobs") == [(other, "bob")]


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_own_shapes_come_and_go_and_nobody_is_judged_elsewhere(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        config = alembic_config(base)
        command.downgrade(config, "0008")
        _write(base, _OLD_ROWS[:4])
        upgrade(base)
        command.check(config)
        states = "SELECT state FROM evaluations"
        assert _rows(base, "SELECT shapes, state FROM evaluations") == [(None, "queued")]
        command.downgrade(config, "0008")
        assert _rows(base, states) == [("queued",)]
        upgrade(base)
        _write(base, ["""UPDATE evaluations SET shapes = '{"visible": [{"rows"\\: 3}]}'"""])
        command.downgrade(config, "0008")
        assert _rows(base, states) == [("failed",)]
        _nothing_is_lost(base)
        upgrade(base)
        command.check(config)


def _board(base: Database) -> list[str | None]:
    """Jobs on the task's board, best first."""
    with base.read() as session:
        return [row.job_id for row in reading.read_board(session, TASK).data]


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_turns_come_and_go_and_what_waits_keeps_its_place(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        config = alembic_config(base)
        command.downgrade(config, "0006")
        _write(base, _OLD_ROWS[:4])
        upgrade(base)
        command.check(config)
        _nothing_is_lost(base)
        both = "SELECT priority FROM jobs UNION ALL SELECT priority FROM evaluations"
        assert _rows(base, both) == [(0,), (0,)]
        _write(base, ["UPDATE jobs SET priority = 4"])
        assert turns.take(base, Job, "cpu", "one", 60.0, 3) is not None
        assert turns.take(base, Evaluation, "cpu", "one", 60.0, 3) is not None
        assert _rows(base, "SELECT kind FROM turns ORDER BY kind") == [("evaluations",), ("jobs",)]
        command.downgrade(config, "0006")
        _nothing_is_lost(base)
        assert _rows(base, "SELECT id, state, lease_owner, attempt FROM jobs") == [("j", "running", "one", 1)]
        upgrade(base)
        command.check(config)
        assert (_rows(base, both), _rows(base, "SELECT * FROM turns")) == ([(0,), (0,)], [])


@pytest.mark.parametrize("kind", BOTH_DATABASES)
def test_faults_are_counted_apart_and_together_again(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database(kind, tmp_path, request) as base:
        config = alembic_config(base)
        command.downgrade(config, "0007")
        _write(base, [*_OLD_ROWS[:4], "UPDATE jobs SET stalled_attempts = 2"])
        upgrade(base)
        counted = "SELECT stalled_attempts, faults FROM jobs UNION ALL SELECT stalled_attempts, faults FROM evaluations"
        assert _rows(base, counted) == [(2, 0), (0, 0)]
        _write(base, ["UPDATE jobs SET faults = 1"])
        command.downgrade(config, "0007")
        _nothing_is_lost(base)
        assert _rows(base, "SELECT stalled_attempts FROM jobs") == [(3,)]
        upgrade(base)
        command.check(config)
        assert _rows(base, counted) == [(3, 0), (0, 0)]
