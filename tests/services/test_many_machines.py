"""The same code on PostgreSQL and Redis, with the worker in a process of its own: two URLs are all that changes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from services.db.models import Base
from services.db.session import Database
from tests.services.service import ROOT, TINY_TASK, WRONG, Service, candidate, is_alive, wait_until

SLOW = candidate("import time; time.sleep(4.0); return torch.relu(x) * self.weight")

pytestmark = [pytest.mark.services("postgres", "redis"), pytest.mark.slow]


@pytest.fixture
def deployment(tmp_path: Path, postgres_url: str, redis_url: str) -> Iterator[Service]:
    """An API process without a worker, on an empty PostgreSQL and a Redis."""
    base = Database(postgres_url)
    with base.write() as session:
        for table in Base.metadata.sorted_tables:
            session.execute(text(f"DROP TABLE IF EXISTS {table.name} CASCADE"))
        session.execute(text("DROP TABLE IF EXISTS alembic_version"))
    base.close()
    environment = {
        "KERNELWRIGHT_DATABASE_URL": postgres_url,
        "KERNELWRIGHT_BROKER_URL": redis_url,
        "KERNELWRIGHT_LEASE_SECONDS": "3",
        "KERNELWRIGHT_LOG_FORMAT": "json",
    }
    with Service(tmp_path, "--no-worker", environment=environment) as running:
        yield running


@contextmanager
def worker(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker process for the CPU queue."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "services.worker.app",
        "worker",
        "-Q",
        "cpu",
        "-l",
        "INFO",
    ]
    with (service.data_dir / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=service.environment, cwd=ROOT
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()


def worker_log(service: Service) -> str:
    """The end of the worker's log."""
    return (service.data_dir / "worker.log").read_text(errors="replace")[-4000:]


def test_a_job_runs_on_postgresql_and_redis_and_survives_its_workers_death(deployment: Service) -> None:
    assert deployment.get("/readyz").status_code == 503
    assert deployment.get("/readyz").json()["checks"]["sandbox"]["problem"] == "no worker is alive"
    job_id = deployment.submit(source=TINY_TASK, origins=["human"], start_from=SLOW)
    with worker(deployment) as first:
        wait_until(lambda: bool(deployment.candidates(job_id)), 90, lambda: worker_log(deployment))
        first.kill()
        first.wait()
    with worker(deployment):
        deployment.wait_until_ready(90)
        job = deployment.wait_for(job_id, 120)
        assert job["attempt"] == 2
        assert [view["verdict"] for view in deployment.candidates(job_id)] == ["incorrect"]
        told = [event["name"] for event in deployment.stream(job_id)]
        assert told[0] == "job.queued"
        assert told[-1] == "job.failed"
        wrong = deployment.post(
            "/evaluate", {"source": TINY_TASK, "candidate": WRONG}, headers={"Prefer": "wait=60"}, timeout=70
        )
        assert wrong.json()["verdict"] == "incorrect"


def test_a_worker_that_is_asked_to_stop_leaves_nothing_running(deployment: Service) -> None:
    with worker(deployment) as process:
        deployment.wait_until_ready(90)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert not is_alive(process.pid)
    wait_until(
        lambda: deployment.get("/readyz").status_code == 503, 5, lambda: deployment.get("/readyz").text
    )


def test_a_worker_writes_json_that_says_whose_job_it_is_of(deployment: Service) -> None:
    with worker(deployment):
        job_id = deployment.submit(source="x = 1\n")
        deployment.wait_for(job_id, 90)
    text = worker_log(deployment)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    of_job = [line["message"] for line in lines if line["job_id"] == job_id]
    assert "attempt 1 begins" in of_job, text
    assert any(line["logger"].startswith("celery") for line in lines), "Celery's own lines are JSON, too"
    assert not re.search(r"^\[?20\d\d-\d\d-\d\d", text, flags=re.MULTILINE), "a line in another format"
