"""When a job stops looking: its decision from what its store holds, without a referee."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.candidates import Candidate
from agent.clock import Clock
from agent.diagnosing import DESCRIBE_STEP, PROFILE_STEP
from agent.job import _Job
from agent.spec import Budget, JobSpec
from agent.stores.folder import FolderStore
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from tests.agent.strategy.judging import accepted, row

SPEC = JobSpec("job", "twice", TaskSource("twice", "x"), budget=Budget(plateau=40))


class CountingStore(FolderStore):
    """A folder that counts how often a verdict is read."""

    reads = 0

    def verdict(self, sha256: str, phase: str) -> Verdict | None:
        """See `JobStore.verdict`."""
        self.reads += 1
        return super().verdict(sha256, phase)


def job(store: FolderStore, folder: Path) -> _Job:
    return _Job(SPEC, store, None, folder, None, lambda _: None, Clock(None))  # type: ignore[arg-type]


def judged(store: FolderStore, name: str, speedup: float) -> None:
    candidate = Candidate(f"class ModelNew: '{name}'", "llm", name)
    store.add_candidate(candidate)
    summary = {"geomean_speedup": speedup, "geomean_ci95": [speedup * 0.99, speedup * 1.01]}
    rows = [row({"rows": 64}, speedup)]  # 10 us over the speedup
    for phase in ("screen", "validation"):
        store.add_verdict(
            candidate.sha256, phase, from_json(accepted() | {"shapes": rows, "summary": summary})
        )


@pytest.mark.parametrize(("least_us", "ends"), [(4.9, True), (4.0, False), (20.0, False)])
def test_a_job_ends_when_its_best_candidate_is_near_the_measured_roofline(
    tmp_path: Path, least_us: float, ends: bool
) -> None:
    store = FolderStore(tmp_path)
    store.finish_step(DESCRIBE_STEP, {"ok": True, "dims": {"rows": {"default": 64}}})
    judged(store, "slow", 1.1)
    judged(store, "fast", 2.0)
    found = job(store, tmp_path)
    assert found._exhausted() == "", "nothing was profiled"
    store.finish_step(PROFILE_STEP, {"least_s": least_us * 1e-6})
    assert ("roofline" in found._exhausted()) == ends


def test_a_verdict_is_read_once_however_often_the_budget_is_asked_for(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    for number in range(20):
        judged(store, str(number), 1.0 + number / 10)
    found = job(store, tmp_path)
    found._exhausted()
    before = store.reads
    for _ in range(5):
        found._exhausted()
        found._tell_leader()
    assert store.reads - before <= 5, "the best one's rows alone"
