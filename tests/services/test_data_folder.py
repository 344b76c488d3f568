"""Nobody else of the machine looks into the data folder, and a folder that may be another's is never changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services import data_folder
from services.data_folder import DataFolderOpen, make_private
from services.db.session import Database
from tests.services.service import ROOT, Service
from tests.variants import some


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_made_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert make_private(tmp_path / "some" / "where") is None
        Database(f"sqlite:///{tmp_path}/other/x.db").close()
    finally:
        os.umask(before)
    assert _mode(tmp_path / "some" / "where") == _mode(tmp_path / "other") == 0o700


@pytest.mark.parametrize("name", ["kernelwright.db", "bench", None])
def test_one_of_ours_that_is_open_is_closed_and_told(tmp_path: Path, name: str | None) -> None:
    if name:
        (tmp_path / name).touch()
    tmp_path.chmod(0o750)
    told = make_private(tmp_path)
    assert told is not None and "0750" in told and str(tmp_path) in told
    assert _mode(tmp_path) == 0o700
    assert make_private(tmp_path) is None


def test_one_that_may_be_another_s_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(DataFolderOpen, match="chmod 700"):
        make_private(tmp_path)
    assert _mode(tmp_path) == 0o755


def test_another_user_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DataFolderOpen, match="belongs to another user"):
        make_private(tmp_path)


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(DataFolderOpen, match="cannot be used"):
        make_private(tmp_path / "data")


@pytest.mark.parametrize(
    "program",
    some(
        [
            "serve",
            "worker",
            "optimize",
            *[pytest.param(one, marks=pytest.mark.slow) for one in ("celery", "keys", "backfill")],
        ],
        3,
    ),
)
def test_programs_do_not_start_on_an_open_one(tmp_path: Path, program: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "thesis.tex").touch()
    data.chmod(0o755)
    elsewhere = {
        "KERNELWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'other' / 'x.db'}",
        "KERNELWRIGHT_BROKER_URL": "redis://127.0.0.1:1/0",  # which `kernelwright worker` must have, and never asks here
    }
    environment = Service(tmp_path).environment | {"KERNELWRIGHT_DATA_DIR": str(data)}
    if program == "worker":
        environment |= elsewhere
    words = {
        "serve": ["services.cli", "serve", "--port", "0", "--no-worker"],
        "worker": ["services.cli", "worker"],
        "keys": ["services.cli", "keys", "create", "laptop", "--user", "ada"],
        "optimize": ["services.cli", "optimize", "softmax"],
        "backfill": ["services.cli", "backfill-leaderboard"],
        "celery": ["celery", "-A", "services.worker.app", "worker"],
    }[program]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode != 0
    assert "chmod 700" in " ".join(done.stderr.split())
    assert sorted(path.name for path in data.iterdir()) == ["thesis.tex"]
    assert _mode(data) == 0o755
