"""Stopping: a job on request within two seconds, a service with what it runs, and neither leaves anything behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.services.service import (
    ENDLESS,
    TINY_TASK,
    WRONG,
    Service,
    candidate,
    descendants,
    is_alive,
    wait_until,
)

# Marked as wrong for the service that has recorded verdicts.
SLOW = "# kind: wrong, 1\n" + candidate("import time; time.sleep(0.2); return torch.relu(x) * self.weight")


# Two seconds are promised for a machine that has time.
@pytest.mark.alone
def test_a_running_job_ends_within_two_seconds_and_the_next_one_runs(service: Service) -> None:
    job_id = service.submit(source=TINY_TASK, origins=["human"], start_from=ENDLESS)
    wait_until(lambda: bool(service.candidates(job_id)), 60, service.log_tail)
    time.sleep(0.5)  # into the endless loop

    asked = time.monotonic()
    response = service.post(f"/jobs/{job_id}/cancel")
    assert response.status_code == 202
    assert response.json()["state"] in ("cancelling", "cancelled")
    job = service.wait_for(job_id, seconds=5)
    elapsed_s = time.monotonic() - asked

    assert job["state"] == "cancelled"
    assert elapsed_s < 2.0, elapsed_s
    assert service.post(f"/jobs/{job_id}/cancel").json()["state"] == "cancelled"
    assert service.events(job_id)[-1]["name"] == "job.cancelled"
    following = service.submit(source=TINY_TASK, origins=["human"], start_from=WRONG)
    wait_until(
        lambda: [view["verdict"] for view in service.candidates(following)] == ["incorrect"],
        60,
        service.log_tail,
    )
    service.post(f"/jobs/{following}/cancel")


def test_a_queued_job_is_cancelled_at_once(door: Service) -> None:
    job_id = door.submit(source=TINY_TASK)
    assert door.post(f"/jobs/{job_id}/cancel").json()["state"] == "cancelled"
    assert [event["name"] for event in door.events(job_id)] == ["job.queued", "job.cancelled"]


@pytest.mark.alone
def test_a_running_evaluation_ends_within_two_seconds_and_the_next_one_runs(service: Service) -> None:
    asked = {"source": TINY_TASK, "candidate": ENDLESS, "device": "cpu"}
    made = service.post("/evaluate", asked).json()
    path = f"/evaluations/{made['id']}"
    assert made["urls"]["cancel"] == f"{path}/cancel"
    wait_until(lambda: service.get(path).json()["state"] == "running", 60, service.log_tail)
    time.sleep(1.0)  # into the endless loop

    began = time.monotonic()
    response = service.post(made["urls"]["cancel"])
    assert response.status_code == 202
    assert response.json()["state"] in ("cancelling", "cancelled")
    wait_until(lambda: service.get(path).json()["state"] == "cancelled", 5, service.log_tail)
    assert time.monotonic() - began < 2.0

    ended = service.get(path).json()
    assert (ended["verdict"], ended["result"]) == (None, None)
    assert service.post(made["urls"]["cancel"]).json() == ended
    following = service.post("/evaluate", {**asked, "candidate": WRONG}, headers={"Prefer": "wait=60"})
    assert following.json()["verdict"] == "incorrect"
    # Nor does what has ended well become something else.
    stopped = service.post(following.json()["urls"]["cancel"]).json()
    assert (stopped["state"], stopped["verdict"]) == ("succeeded", "incorrect")


def test_a_queued_evaluation_is_cancelled_at_once(door: Service) -> None:
    made = door.post("/evaluate", {"source": TINY_TASK, "candidate": WRONG}).json()
    ended = door.post(made["urls"]["cancel"]).json()
    assert (ended["state"], ended["reason"]) == ("cancelled", "cancelled before it started")
    assert door.post("/evaluations/nothing/cancel").status_code == 404


def test_a_service_that_is_asked_to_stop_gives_its_job_back(tmp_path: Path) -> None:
    service = Service(tmp_path, afresh=True)
    try:
        service.start()
        service.wait_until_ready()
        job_id = service.submit(source=TINY_TASK, origins=["human"], start_from=SLOW)
        wait_until(lambda: bool(service.candidates(job_id)), 60, service.log_tail)
        assert service.process is not None
        below = descendants(service.process.pid)
        begin = time.monotonic()
        assert service.stop() == 0, service.log_tail()
        assert time.monotonic() - begin < 10
        wait_until(lambda: not any(is_alive(pid) for pid in below), 3, lambda: f"left behind: {below}")
    finally:
        service.end()
    # The next one on the same folder: here only that it takes the job up again, so verdicts are recorded ones.
    with Service(tmp_path, program="tests.services.scripted_service") as following:
        job = following.wait_for(job_id)
        assert job["attempt"] == 2
        assert [view["verdict"] for view in following.candidates(job_id)] == ["incorrect"]
