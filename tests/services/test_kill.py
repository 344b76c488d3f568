"""SIGKILL at random instants: the same job, started again, ends with the same verdicts, none twice and none lost."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.services.model_server import model_server
from tests.services.service import TINY_TASK, UNPARSABLE, WRONG, Service, candidate, is_alive, wait_until

KILLS = 20

# Every candidate is wrong in a way of its own. A right one would be timed, and whether a timing is void on a busy
# machine is chance; which words wrong ones get is not. Being killed while a right one is delivered: the second test.
BODIES = (
    "return torch.relu(x) * self.weight + 2.0",
    "return torch.relu(x) + 1.0",
    "return (torch.relu(x) * self.weight + 1.0).double()",
    "return (torch.relu(x) * self.weight + 1.0)[:, :1]",
    "raise RuntimeError('no')",
    "return (torch.relu(x) * self.weight + 1.0, x)",
    "return torch.full_like(x, float('nan'))",
    "return x.mul_(2.0)",
    "return torch.zeros_like(x)",
    "return 'a word'",
    "import os; os._exit(0)",
    "return torch.relu(x) * self.weight - 1.0",
)
MODELS = {
    f"model-{number}": [candidate(body) for body in BODIES[2 * number : 2 * number + 2]]
    for number in range(6)
}
EXTERNAL = (WRONG, UNPARSABLE)
CANDIDATES = len(BODIES) + len(EXTERNAL)


def submit(service: Service) -> str:
    """The job of this test: candidates of six models in two rounds, and two from outside."""
    job_id = service.submit(
        source=TINY_TASK, name="killed", origins=["llm"], models=list(MODELS), strategy={"rounds": 0}
    )
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


def told_once(service: Service, job_id: str) -> None:
    """Every stored verdict has one event and every event a stored verdict; the job ended once."""
    events = service.events(job_id)
    told = Counter(
        (event["data"]["sha256"], event["data"]["phase"], event["data"]["verdict"])
        for event in events
        if event["name"] == "candidate.judged"
    )
    assert set(told) == verdicts(service, job_id)
    assert set(told.values()) == {1}
    proposed = Counter(event["data"]["sha256"] for event in events if event["name"] == "candidate.proposed")
    assert set(proposed.values()) == {1}
    assert sum(event["name"] in ("job.finished", "job.failed", "job.cancelled") for event in events) == 1


def kill_again_and_again(
    killed: Service, chance: random.Random, whole_s: float
) -> tuple[list[str], set[tuple[str, ...]]]:
    """Start and SIGKILL `KILLS` times; the jobs, and every (job, candidate, phase, word) that was seen meanwhile."""
    jobs: list[str] = []
    stored: set[tuple[str, ...]] = set()
    for _ in range(KILLS):
        killed.start()
        if not jobs or is_over(killed, jobs[-1]):
            jobs.append(submit(killed))
        # mostly somewhere in the job; else anywhere, the start and the sandbox's check included
        if chance.random() < 0.8:
            attempt = killed.job(jobs[-1])["attempt"]
            wait_until(lambda seen=attempt: killed.job(jobs[-1])["attempt"] > seen, 180, killed.log_tail)
        time.sleep(chance.uniform(0.0, whole_s / 3))
        stored |= {(jobs[-1], *verdict) for verdict in verdicts(killed, jobs[-1])}
        below = killed.kill()
        wait_until(
            lambda pids=below: not any(map(is_alive, pids)), 5, lambda pids=below: f"orphans of {pids}"
        )
    return jobs, stored


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_job_killed_at_twenty_random_instants_ends_with_the_same_verdicts(tmp_path: Path) -> None:
    seed = int(os.environ.get("KERNELWRIGHT_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"KERNELWRIGHT_TEST_SEED={seed}")
    chance = random.Random(seed)
    with model_server(MODELS) as url:
        # Attempts may be killed before they stored anything, several in a row; that cap has a test of its own.
        environment = {"KERNELWRIGHT_LLM_BASE_URL": url, "KERNELWRIGHT_MAX_LOST_WORKERS": "1000"}

        with Service(tmp_path / "undisturbed", environment=environment) as undisturbed:
            job_id = submit(undisturbed)
            wait_until(lambda: undisturbed.job(job_id)["attempt"] == 1, 120, undisturbed.log_tail)
            begin = time.monotonic()
            wait_until(lambda: is_over(undisturbed, job_id), 600, undisturbed.log_tail)
            whole_s = time.monotonic() - begin
            expected = words(undisturbed, job_id)
            state = undisturbed.job(job_id)["state"]
            told_once(undisturbed, job_id)
        assert len(expected) == CANDIDATES, expected

        killed = Service(tmp_path / "killed", environment=environment)
        try:
            jobs, stored = kill_again_and_again(killed, chance, whole_s)
            with killed:
                for job_id in jobs:
                    wait_until(lambda job=job_id: is_over(killed, job), 600, killed.log_tail)
                    assert killed.job(job_id)["state"] == state
                    assert words(killed, job_id) == expected
                    lost = {entry for entry in stored if entry[0] == job_id}
                    assert lost <= {(job_id, *verdict) for verdict in verdicts(killed, job_id)}
                    told_once(killed, job_id)
                attempts = [killed.job(job_id)["attempt"] for job_id in jobs]
        finally:
            killed.end()
    print(f"{KILLS} kills over {len(jobs)} jobs, attempts {attempts}, one undisturbed run {whole_s:.1f} s")
    assert max(attempts) > 1
