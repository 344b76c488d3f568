"""The migrations make what the models say, on both databases, from any number of processes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command

from services.db.session import Database
from services.db.upgrade import alembic_config, upgrade
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
