"""A full disk, a read-only folder, a damaged database: told once and in one sentence, and nothing is lost when it is over."""

from __future__ import annotations

import errno
import io
import json
import logging
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, OperationalError

import services.worker.runner
from agent.spec import JobOutcome
from agent.stores.folder import FolderStore
from services.db.models import Job
from services.db.trouble import database_problem, folder_problem, trouble
from services.observing.logs import dress
from services.settings import Settings
from services.worker.referee_queue import RefereeQueue
from services.worker.runner import Runner
from tests.agent.scripted_referee import ScriptedReferee
from tests.agent.test_scheduling import SPEC, Lines, accepted, run
from tests.services.databases import new_job, new_sqlite
from tests.services.keyed import Keyed

#: A file system of 4 MiB in a mount namespace of its own.
_SMALL_DISK = (
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=4m none "$1" && shift && exec "$@"',
)
_PROGRAM = """
import json, sys
from pathlib import Path
from services.db.trouble import database_problem, folder_problem
from tests.services.databases import new_sqlite

folder = Path(sys.argv[1])
base = new_sqlite(folder)
used = base.engine.connect()  # as a service has it: its files beside the database are there
found = [(database_problem(base.engine), folder_problem(folder))]
with open(folder / "fill", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
database_problem(base.engine)  # what room the write-ahead log had
found.append((database_problem(base.engine), folder_problem(folder)))
(folder / "fill").unlink()
found.append((database_problem(base.engine), folder_problem(folder)))
print(json.dumps(found))
"""


def has_small_disks(folder: Path) -> bool:
    """Whether this machine lets a test mount one."""
    try:
        return subprocess.run([*_SMALL_DISK, "sh", str(folder), "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    if not has_small_disks(tmp_path):
        pytest.skip("needs unshare(1) and leave to mount")
    command = [*_SMALL_DISK, "sh", str(tmp_path), sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, full, after = json.loads(done.stdout)
    assert before == after == [None, None]
    assert "no space left on device" in full[1]
    assert full[0] is None or "the disk is full" in full[0], "a write-ahead log with room still takes writes"


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def damage(path: Path) -> None:
    # A checkpoint waits this long for readers, and cannot complete while there is one.
    with sqlite3.connect(path, timeout=0.1) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as file:
        file.write(b"\x5a" * path.stat().st_size)


def test_a_damaged_file_is_told_although_others_still_show_what_they_read(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    assert database_problem(base.engine) is None and base.answers()
    with base.read() as session:
        session.execute(text("SELECT count(*) FROM jobs"))
        damage(tmp_path / "test.db")
        assert "the database file is damaged" in (database_problem(base.engine) or "")
    (tmp_path / "test.db").unlink()
    assert database_problem(base.engine) is not None, "a missing file is not made anew"


def test_readyz_says_what_is_wrong_with_the_database_and_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Keyed(tmp_path)
    checks = keyed.client().get("/readyz").json()["checks"]
    assert checks["database"] == {"ok": True, "kind": "sqlite"} and checks["data_folder"] == {"ok": True}
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", no_room)
        found = keyed.client().get("/readyz").json()["checks"]["data_folder"]
    assert not found["ok"] and "the data folder cannot be written (no space left" in found["problem"]
    damage(tmp_path / "kernelwright.db")
    answer = keyed.client().get("/readyz")
    assert answer.status_code == 503 and "damaged" in json.dumps(answer.json())


def sqlite_error(kind: type[sqlite3.Error], code: int) -> Any:
    error = kind("words of SQLite's")
    error.sqlite_errorcode = code
    return (DatabaseError if kind is sqlite3.DatabaseError else OperationalError)("INSERT", {}, error)


TROUBLES = [
    (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_FULL), "the disk is full"),
    (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_READONLY), "cannot be written"),
    (sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_IOERR_WRITE), "fails to read or write"),
    (sqlite_error(sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT), "damaged"),
    (OSError(errno.ENOSPC, "No space left on device"), "no space left"),
    (OSError(errno.EROFS, "Read-only file system"), "read-only"),
]


@pytest.mark.parametrize(("error", "words"), TROUBLES)
def test_the_log_tells_trouble_once_without_a_traceback(error: Exception, words: str) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    dress([handler], "text")
    log = logging.Logger("one of the service's")
    log.addHandler(handler)
    for number in range(200):
        try:
            raise error
        except Exception:
            log.exception("round %d failed", number)
        log.warning("the database is away; trying again", extra={"trouble": error})
    assert len(out.getvalue().splitlines()) == 1 and words in out.getvalue()
    log.error("another fault", exc_info=KeyError("ours"))
    assert "KeyError" in out.getvalue(), "what is no trouble of the disk keeps its traceback"


def test_an_error_in_a_statement_of_ours_is_no_trouble_of_the_disk() -> None:
    assert trouble(sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_ERROR)) is None
    assert trouble(OSError(errno.ENOENT, "no such file")) is None and trouble(None) is None


def test_a_job_waits_for_room_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = new_sqlite(tmp_path)
    job_id = new_job(base, tmp_path)
    runner = Runner(
        Settings(data_dir=tmp_path), base, RefereeQueue("cpu", tmp_path, "landlock"), "one", lambda: None
    )
    tries, looks = [], iter([*["full"] * 3, None])

    def writes(*_: object) -> JobOutcome:
        tries.append(1)
        if len(tries) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return JobOutcome("failed", "task_rejected", "done")

    monkeypatch.setattr(services.worker.runner, "run_job", writes)
    monkeypatch.setattr(services.worker.runner, "folder_problem", lambda _: next(looks))
    monkeypatch.setattr(services.worker.runner, "_LOOK_AT_DISK_S", 0.01)
    assert runner.work_on_next(Job)
    with base.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.reason, job.faults, job.attempt) == ("failed", "done", 0, 1)
    base.close()


def test_a_proposer_on_a_full_disk_has_not_come_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = FolderStore(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        run(SPEC, store, ScriptedReferee(accepted), monkeypatch, Lines("human", 1, before=full))
    assert store.step("proposed/human") is None and folder_problem(tmp_path) is None
