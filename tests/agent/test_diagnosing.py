"""A job's reference is profiled once, by the real referee, and a job that cannot be profiled goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.diagnosing import DESCRIBE_STEP, PROFILE_STEP, diagnose, roofline_share
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.profiling.bottleneck import LABELS
from evaluator.profiling.profile import profile_task
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json
from tests.agent import small_job
from tests.agent.strategy.judging import accepted, row

pytestmark = pytest.mark.alone

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
    assert told[0]["data"]["ceilings"]["memory_bytes_per_s"] == RATES["dram_bytes_per_s"]
    failed = broken.step(PROFILE_STEP)
    assert isinstance(failed, dict)
    assert "problem" in failed
    diagnose(spec, store, None, lambda _: pytest.fail("it was profiled already"))  # type: ignore[arg-type]


def share(store: FolderStore, screen: Verdict | None) -> float | None:
    return roofline_share(store.step(PROFILE_STEP), store.step(DESCRIBE_STEP), screen)


def test_without_measured_ceilings_there_is_no_diagnosis(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    diagnose(small_job.spec(), store, None, lambda _: None)  # type: ignore[arg-type]
    assert "kernelwright device" in str(store.step(PROFILE_STEP))


def test_a_candidate_is_held_against_the_roofline_at_the_default_sizes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    rows = [row({"rows": 4}, 1.0), row({"rows": 64}, 2.0), row({"rows": 64}, 4.0, "validation")]
    screen = accepted() | {"shapes": rows}
    assert share(store, from_json(screen)) is None
    store.finish_step(DESCRIBE_STEP, {"ok": True, "dims": {"rows": {"min": 1, "max": 99, "default": 64}}})
    store.finish_step(PROFILE_STEP, {"least_s": 4.8e-6})
    assert share(store, from_json(screen)) == pytest.approx(0.96), "4.8 of 5 microseconds"
    assert share(store, from_json(accepted() | {"shapes": rows[:1]})) is None
    assert share(store, None) is None


def test_without_ceilings_there_is_no_roofline(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.finish_step(DESCRIBE_STEP, {"ok": True, "dims": {"rows": {"default": 64}}})
    store.finish_step(PROFILE_STEP, {"problem": "the ceilings of this device have not been measured"})
    assert share(store, from_json(accepted() | {"shapes": [row({"rows": 64}, 2.0)]})) is None
