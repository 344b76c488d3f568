"""A real service that is watched: ids from request to log, metrics, readiness by capability."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from services.db.models import Verdict, Worker, utc_now
from services.db.session import Database
from services.db.types import epoch_seconds
from services.observing.metrics import Metrics
from services.observing.workers import alive, capabilities
from tests.services.databases import new_job, new_postgres, new_sqlite
from tests.services.service import TINY_TASK, WRONG, Service, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(scrape: str) -> Samples:
    """Every sample of a scrape by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
    }


def one(found: Samples, name: str, **labels: str) -> float:
    """The one sample with these labels, and perhaps others."""
    (value,) = [
        value for (known, has), value in found.items() if known == name and set(labels.items()) <= has
    ]
    return value


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a worker that logs JSON."""
    environment = {"KERNELWRIGHT_LOG_FORMAT": "json"}
    with Service(tmp_path_factory.mktemp("watched"), "--no-worker", environment=environment) as running:
        yield running


def lines_of(service: Service) -> list[dict[str, Any]]:
    """The service's log, every line of which must be JSON but for its two words to a person."""
    found = []
    for line in service.log.read_text().rpartition("\n")[0].splitlines():  # the last one may be half written
        if not line.startswith(("Kernelwright is at", "no worker:")):
            found.append(json.loads(line))
    return found


def test_a_request_is_found_again_in_the_log(watched: Service) -> None:
    key = "kw_do_not_log_this_0123456789"
    headers = {"X-Request-ID": "from-a-proxy.7", "Authorization": f"Bearer {key}"}
    made = watched.post("/optimize", {"source": TINY_TASK, "name": "a\nforged line"}, headers=headers)
    made = watched.post("/optimize", {"source": TINY_TASK}, headers=headers)
    assert made.headers["x-request-id"] == "from-a-proxy.7"
    job_id = made.json()["id"]
    looked = watched.get(f"/jobs/{job_id}?note={key}", headers={"X-Request-ID": 'x" job_id="forged'})
    own_id = looked.headers["x-request-id"]
    assert own_id.isalnum()
    refused = watched.get("/jobs", headers={"Host": "evil.example"})
    assert refused.status_code == 403
    # An answer is on its way before its line is written.
    last_id = refused.headers["x-request-id"]
    wait_until(lambda: last_id in watched.log.read_text(), 5, watched.log_tail)

    lines = lines_of(watched)
    assert all({"time", "level", "logger", "message", "request_id", "job_id"} <= set(line) for line in lines)
    by_id = {line["request_id"]: line for line in lines if line["logger"] == "kernelwright.access"}
    created, shown = by_id["from-a-proxy.7"], by_id[own_id]
    assert (created["method"], created["route"], created["status"]) == ("POST", "/optimize", 202)
    assert created["job_id"] == shown["job_id"] == job_id
    assert (shown["route"], shown["status"]) == ("/jobs/{job_id}", 200)
    assert by_id[last_id]["status"] == 403
    assert key not in watched.log.read_text()


def test_a_fault_is_found_by_the_id_of_its_answer(watched: Service) -> None:
    job_id = watched.submit(source=TINY_TASK)
    base = Database(f"sqlite:///{watched.data_dir / 'kernelwright.db'}")
    with base.write() as session:
        session.execute(text("UPDATE jobs SET request = '{' WHERE id = :id"), {"id": job_id})
    failed = watched.get(f"/jobs/{job_id}")
    assert failed.status_code == 500
    with base.write() as session:
        session.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": job_id})
    base.close()
    wait_until(lambda: any("exception" in line for line in lines_of(watched)), 5, watched.log_tail)
    (fault,) = [line for line in lines_of(watched) if "exception" in line]
    assert (fault["request_id"], fault["job_id"]) == (failed.headers["x-request-id"], job_id)
    assert "EOF while parsing" in fault["exception"]
    assert "EOF while parsing" not in failed.text


def test_a_worker_says_whose_lines_it_writes(recorded: Service) -> None:
    service = recorded
    job_id = service.submit(source="x = 1\n")
    service.wait_for(job_id)

    def lines() -> list[str]:
        told = service.log.read_text().splitlines()
        return [line for line in told if f"[request=- job={job_id}]: " in line]

    wait_until(lambda: any("ended as failed" in line for line in lines()), 20, service.log_tail)
    assert any(line.endswith("attempt 1 begins") for line in lines())


def busy_share(service: Service) -> float | None:
    """What the service's worker said last."""
    found = samples(service.get("/metrics").text)
    return next((v for (name, _), v in found.items() if name == "kernelwright_device_busy_share"), None)


def test_a_worker_says_how_busy_its_device_is(recorded: Service) -> None:
    service = recorded
    found = samples(service.get("/metrics").text)
    assert one(found, "kernelwright_workers", device="cpu", state="ready") == 1
    wait_until(lambda: busy_share(service) is not None, 15, service.log_tail)
    assert 0 <= (busy_share(service) or 0) <= 1


@pytest.mark.slow
def test_a_worker_that_judges_is_busy(service: Service) -> None:
    wait_until(lambda: busy_share(service) == 0, 60, service.log_tail)
    made = service.post("/evaluate", {"source": TINY_TASK, "candidate": WRONG}).json()
    wait_until(lambda: (busy_share(service) or 0) > 0, 60, service.log_tail)
    path = f"/evaluations/{made['id']}"
    wait_until(lambda: service.get(path).json()["state"] == "succeeded", 120, service.log_tail)


def test_metrics_tell_of_requests_and_queue(watched: Service) -> None:
    job_id = watched.submit(source=TINY_TASK)
    watched.job(job_id)
    watched.get("/no/such/path")
    answer = watched.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert one(found, "kernelwright_database_up") == 1
    assert one(found, "kernelwright_rows", kind="job", device="cpu", state="queued") >= 1
    assert 0 < one(found, "kernelwright_queue_age_seconds", kind="job", device="cpu") < 600
    assert one(found, "kernelwright_http_request_seconds_count", route="/jobs/{job_id}", status="200") >= 1
    assert one(found, "kernelwright_http_request_seconds_count", route="other", status="404") == 1
    assert job_id not in answer.text, "a label per job"


def test_no_worker_is_said_by_capability(watched: Service) -> None:
    answer = watched.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["workers"] == {
        "ok": False, "problem": "no worker is ready", "capabilities": []
    }  # fmt: skip


def check_database_metrics(base: Database, folder: Path) -> None:
    job_id = new_job(base, folder)
    hostile = 'x"} 1\nkernelwright_usd_total 0'
    with base.write() as session:
        for number, (word, rule) in enumerate(
            [
                ("accepted", None),
                ("incorrect", "outputs_differ"),
                ("incorrect", "outputs_differ"),
                ("refused", hostile),
            ]
        ):
            body = {"findings": [{"rule": rule}] if rule else []}
            session.add(
                Verdict(
                    id=60 + number,
                    job_id=job_id,
                    sha256=f"{number}",
                    phase="screen",
                    word=word,
                    reason=hostile,
                    body=body,
                )
            )
        for number, (tier, problem, busy) in enumerate([("landlock", None, 0.5), (None, "no sandbox", 0.1)]):
            check = {"device": {"device": "cuda", "device_name": "NVIDIA H200"}, "busy_share": busy}
            session.add(
                Worker(
                    id=f"w{number}",
                    device="cuda",
                    tier=tier,
                    problem=problem,
                    self_check=check,
                    seen_at=epoch_seconds(),
                )
            )
        for number in range(50):  # older ones, which are not of the last minute
            session.add(
                Verdict(
                    id=number + 1, job_id=job_id, sha256=f"old{number}", phase="screen", word="incorrect", reason="",
                    body={}, created_at=utc_now() - timedelta(minutes=2 + (50 - number) / 10),
                )
            )  # fmt: skip
    scrape = Metrics(base).text().decode()
    found = samples(scrape)
    assert one(found, "kernelwright_verdicts_last_minute", verdict="incorrect") == 2
    assert one(found, "kernelwright_verdicts_last_minute", verdict="accepted") == 1
    assert one(found, "kernelwright_rejections_last_minute", verdict="incorrect", rule="outputs_differ") == 2
    assert one(found, "kernelwright_rejections_last_minute", verdict="refused", rule="other") == 1
    assert one(found, "kernelwright_workers", device="cuda", type="NVIDIA H200", state="ready") == 1
    assert one(found, "kernelwright_workers", device="cuda", type="NVIDIA H200", state="refusing") == 1
    assert one(found, "kernelwright_device_busy_share", device="cuda") == pytest.approx(0.3)
    assert one(found, "kernelwright_usd_total") == 0
    assert "x\\" not in scrape, "a stranger's words in a label"
    with base.read() as session:
        (known,) = capabilities(alive(session))
    assert (known.device, known.type, known.ready, known.refusing) == ("cuda", "NVIDIA H200", 1, 1)


def test_the_database_is_read_at_each_scrape(tmp_path: Path) -> None:
    check_database_metrics(new_sqlite(tmp_path), tmp_path)


@pytest.mark.services("postgres")
def test_so_is_postgresql(postgres_url: str, tmp_path: Path) -> None:
    with new_postgres(postgres_url) as base:
        check_database_metrics(base, tmp_path)


def test_a_database_that_is_down_is_a_metric(tmp_path: Path) -> None:
    found = samples(Metrics(Database(f"sqlite:///{tmp_path / 'no' / 'such.db'}")).text().decode())
    assert one(found, "kernelwright_database_up") == 0
    assert not any(name.startswith("kernelwright_rows") for name, _ in found)
