"""The supervisor of a worker: whoever dies is followed at once, whoever is asked to stop stops, nobody is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from services.db.models import Job, Worker
from services.jobs import lease
from services.settings import get_settings
from services.worker import context, supervisor
from services.worker.identity import identity_of
from tests.services.databases import new_job, new_sqlite
from tests.services.service import ROOT, descendants, is_alive, wait_until

# A worker that does nothing but say who it is, whom it follows, and when it was told to stop.
PROGRAM = """
import logging, signal, sys
from services.worker.identity import own_identity
from services.worker.supervisor import supervise
logging.basicConfig()
predecessor = supervise()
print("begins", own_identity(), predecessor, flush=True)
if "fail" in sys.argv:
    sys.exit(3)
if "stop" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: (print("stops", flush=True), sys.exit(7)))
while True:
    signal.pause()
"""


@contextmanager
def supervised(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The program under its supervisor, and the file of what it says."""
    said = folder / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdout=output, stderr=output, cwd=ROOT
        )
    try:
        yield process, said
    finally:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in filter(is_alive, below):
            os.kill(pid, signal.SIGKILL)


def begun(said: Path, number: int) -> list[list[str]]:
    """Once so many workers have begun: (its identity, its predecessor's) of each."""

    def lines() -> list[list[str]]:
        return [line.split()[1:] for line in said.read_text().splitlines() if line.startswith("begins")]

    wait_until(lambda: len(lines()) >= number, 30, said.read_text)
    return lines()


def test_a_killed_worker_is_followed_by_one_that_knows_whom_it_follows(tmp_path: Path) -> None:
    with supervised(tmp_path) as (process, said):
        for number in range(1, 4):
            [[first, *_], *_] = begun(said, number)[-1:]
            [pid] = descendants(process.pid)
            assert identity_of(pid) == first
            os.kill(pid, signal.SIGKILL)
        told = begun(said, 4)
    assert told[0][1] == "None"
    assert [predecessor for _, predecessor in told[1:]] == [identity for identity, _ in told[:-1]]


def test_a_stop_reaches_the_worker_and_its_exit_status_is_the_supervisors(tmp_path: Path) -> None:
    with supervised(tmp_path, "stop") as (process, said):
        begun(said, 1)
        [pid] = descendants(process.pid)
        process.terminate()
        assert process.wait(timeout=20) == 7
        assert "stops" in said.read_text()
        assert not is_alive(pid)


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path) as (process, said):
        begun(said, 1)
        [pid] = descendants(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(pid), 10, lambda: f"{pid} outlived its supervisor")


def test_a_worker_that_fails_at_its_start_is_not_started_ever_faster(tmp_path: Path) -> None:
    with supervised(tmp_path, "fail") as (process, said):
        begun(said, 5)
        wait_until(lambda: "exit status 3" in said.read_text(), 5, said.read_text)
        time.sleep(0.8)
        assert len(begun(said, 5)) <= 6, "pauses grow"
        process.terminate()
        assert process.wait(timeout=20) in (0, 3, 128 + signal.SIGTERM), "between two workers, or with one"


def test_a_stop_in_the_last_moment_before_a_worker_is_made_makes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {number: signal.getsignal(number) for number in supervisor._STOPS}
    block = signal.pthread_sigmask

    def stopped_just_before(how: int, numbers: tuple[int, ...]) -> object:
        if how == signal.SIG_BLOCK:
            os.kill(os.getpid(), signal.SIGTERM)
        return block(how, numbers)

    def no_fork() -> int:
        raise AssertionError("a worker was made that nobody would stop")

    monkeypatch.setattr(supervisor.signal, "pthread_sigmask", stopped_just_before)
    monkeypatch.setattr(supervisor.os, "fork", no_fork)
    try:
        with pytest.raises(SystemExit) as ended:
            supervisor.supervise()
        assert ended.value.code == 0
    finally:
        block(signal.SIG_UNBLOCK, supervisor._STOPS)
        for number, handler in before.items():
            signal.signal(number, handler)
        gc.unfreeze()


def test_the_rows_of_a_dead_worker_are_freed_by_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = new_sqlite(tmp_path)
    monkeypatch.setenv("KERNELWRIGHT_DATABASE_URL", base.engine.url.render_as_string())
    get_settings.cache_clear()
    mine, other = (new_job(base, tmp_path) for _ in range(2))
    with base.write() as session:
        for job_id, owner in ((mine, "elsewhere/1-2/3-4"), (other, "elsewhere/1-2/5-6")):
            assert lease.claim(session, Job, job_id, owner, 3600.0, 3)
            session.add(Worker(id=owner, device="cpu", seen_at=0.0))
    context.free_rows_of("elsewhere/1-2/3-4")
    with base.read() as session:
        assert list(session.scalars(select(Worker.id))) == ["elsewhere/1-2/5-6"]
    with base.write() as session:
        assert lease.claim(session, Job, other, "next", 60.0, 3) is None
        assert lease.claim(session, Job, mine, "next", 60.0, 3) is not None
    get_settings.cache_clear()
    base.close()
