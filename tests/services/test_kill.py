"""SIGKILL at random instants: the same job, started again, ends with the same verdicts, none twice and none lost."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.services.service import (
    CORRECT,
    TINY_TASK,
    UNPARSABLE,
    WRONG,
    Service,
    candidate,
    is_alive,
    wait_until,
)

KILLS = 20
EXTERNAL = (
    WRONG,
    UNPARSABLE,
    candidate("return (torch.relu(x) * self.weight).add(1.0)"),
    candidate("return torch.clamp(x, min=0) * self.weight + 1"),
    candidate("return torch.relu(x) + 1.0"),
    candidate("raise RuntimeError('no')"),
)


def submit(service: Service) -> str:
    """The job of this test: one candidate to begin with, and some from outside."""
    job_id = service.submit(source=TINY_TASK, name="killed", origins=["human"], start_from=CORRECT)
    for source in EXTERNAL:
        assert service.post(f"/jobs/{job_id}/candidates", {"candidate": source}).status_code == 202
    return job_id


def is_over(service: Service, job_id: str) -> bool:
    """Whether the job has ended and every candidate is judged."""
    job = service.job(job_id)
    return job["state"] in ("succeeded", "failed", "cancelled") and job["counts"]["pending"] == 0


def verdicts(service: Service, job_id: str) -> set[tuple[str, str, str]]:
    """What the referee said: (candidate, phase, word)."""
    return {
        (view["sha256"], phase, view[phase]["verdict"])
        for view in service.candidates(job_id)
        for phase in ("screen", "validation", "held_out")
        if view[phase] is not None
    }


def words(service: Service, job_id: str) -> set[tuple[str, str]]:
    """The set that must not depend on being killed: (candidate, verdict word)."""
    return {(view["sha256"], view["verdict"]) for view in service.candidates(job_id)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_killed_at_twenty_random_instants_ends_with_the_same_verdicts(tmp_path: Path) -> None:
    seed = int(os.environ.get("KERNELWRIGHT_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"KERNELWRIGHT_TEST_SEED={seed}")
    chance = random.Random(seed)

    with Service(tmp_path / "undisturbed") as undisturbed:
        undisturbed.wait_until_ready()
        begin = time.monotonic()
        job_id = submit(undisturbed)
        wait_until(lambda: is_over(undisturbed, job_id), 120, undisturbed.log_tail)
        whole_s = time.monotonic() - begin
        expected = words(undisturbed, job_id)
        assert undisturbed.job(job_id)["state"] == "succeeded"
    assert len(expected) == len(EXTERNAL) + 1

    # Attempts may be killed before they stored anything, several in a row; that cap has a test of its own.
    killed = Service(tmp_path / "killed", environment={"KERNELWRIGHT_MAX_ATTEMPTS": "1000"})
    remaining, jobs, stored = KILLS, [], set()
    while remaining:
        killed.start()
        if not jobs or is_over(killed, jobs[-1]):
            jobs.append(submit(killed))
        # from the first moment after the start to about the end of the job
        time.sleep(chance.uniform(0.0, whole_s * 0.6))
        before = verdicts(killed, jobs[-1])
        below = killed.kill()
        remaining -= 1
        wait_until(
            lambda pids=below: not any(map(is_alive, pids)), 3, lambda pids=below: f"orphans of {pids}"
        )
        stored |= {(jobs[-1], *verdict) for verdict in before}
    with killed:
        for job_id in jobs:
            wait_until(lambda job=job_id: is_over(killed, job), 120, killed.log_tail)
            job = killed.job(job_id)
            assert job["state"] == "succeeded", job
            assert words(killed, job_id) == expected
            now = verdicts(killed, job_id)
            assert {(job_id, *verdict) for verdict in now} >= {
                entry for entry in stored if entry[0] == job_id
            }
            told = Counter(
                (event["data"]["sha256"], event["data"]["phase"])
                for event in killed.events(job_id)
                if event["name"] == "candidate.judged"
            )
            assert set(told.values()) == {1}, "a verdict was told twice"
            assert set(told) >= {(sha256, phase) for sha256, phase, _ in now}, "a verdict was never told"
            ends = [event["name"] for event in killed.events(job_id) if event["name"] == "job.finished"]
            assert ends == ["job.finished"]
        attempts = [killed.job(job_id)["attempt"] for job_id in jobs]
    print(f"{KILLS} kills over {len(jobs)} jobs, attempts {attempts}, one undisturbed run {whole_s:.1f} s")
    assert max(attempts) > 1
