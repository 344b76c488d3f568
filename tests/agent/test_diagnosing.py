"""A job's reference is profiled once, by the real referee, and a job that cannot be profiled goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.diagnosing import PROFILE_STEP, diagnose
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.profiling.diagnosis import LABELS
from evaluator.profiling.profile import profile_task
from evaluator.sources import TaskSource
from tests.agent import small_job

RATES = {
    "dram_bytes_per_s": 1e10,
    "l2_bytes_per_s": 4e10,
    "cache_bytes": 1 << 22,
    "float32_flops_per_s": 5e10,
    "vector_flops_per_s": 5e10,
    "operation_s": 2e-6,
}


@pytest.mark.slow
def test_a_reference_is_profiled_once_and_a_broken_one_stops_nothing(tmp_path: Path) -> None:
    store, broken = FolderStore(tmp_path / "job"), FolderStore(tmp_path / "broken")
    spec = small_job.spec()
    with Referee("cpu", work_dir=tmp_path / "referee") as referee:

        def profile(text: str) -> dict[str, Any]:
            return profile_task(referee, text, RATES, device="cpu").as_json()

        diagnose(spec, store, referee, profile)
        task = TaskSource("broken", small_job.TASK.replace("torch.sort(", "torch.no_such_thing("))
        diagnose(small_job.spec(task=task), broken, referee, profile)
    found = store.step(PROFILE_STEP)
    assert isinstance(found, dict)
    assert found["label"] in LABELS
    assert found["sentences"]
    told = [event for event in store.events() if event["name"] == "task.profiled"]
    assert len(told) == 1
    failed = broken.step(PROFILE_STEP)
    assert isinstance(failed, dict)
    assert "problem" in failed
    diagnose(spec, store, None, lambda _: pytest.fail("it was profiled already"))  # type: ignore[arg-type]


def test_without_measured_ceilings_there_is_no_diagnosis(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    diagnose(small_job.spec(), store, None, lambda _: None)  # type: ignore[arg-type]
    assert "kernelwright device" in str(store.step(PROFILE_STEP))
