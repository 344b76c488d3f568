"""Profiling at the bench, beside others who need the device."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaluator.devices import open_device
from evaluator.folders import default_work_dir
from evaluator.profiling import ceilings
from evaluator.profiling.profile import ProfileFailed
from evaluator.sources import CandidateSource, TaskSource
from services.worker.referee_queue import RefereeQueue
from tests.agent.test_diagnosing import RATES
from tests.services.service import CORRECT, FEW_SHAPES, TINY_TASK


@pytest.mark.slow
def test_a_profile_takes_its_turn_and_a_failed_one_costs_no_referee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    queue = RefereeQueue("cpu", tmp_path / "bench", "landlock")
    used: list[float] = []
    try:
        assert queue.for_job().profile(TINY_TASK) is None, "nobody measured the ceilings"
        path = ceilings.kept_path(default_work_dir(), open_device("cpu"))
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"schema": ceilings.SCHEMA, "rates": RATES}))
        with ThreadPoolExecutor(2) as pool:  # the bench is cold, and somebody else times there
            task, candidate = TaskSource("tiny", TINY_TASK), CandidateSource(CORRECT)
            judged = pool.submit(queue.for_job(used.append).evaluate, task, candidate, shapes=FEW_SHAPES)
            found = pool.submit(queue.for_job().profile, TINY_TASK).result(200)
            assert judged.result(200).verdict in ("accepted", "not_judged")
        assert len(used) == 1, "one turn of that seat's, in seconds"
        assert used[0] > 0.1
        assert found is not None
        assert found["sentences"]
        referee = queue._referee
        assert referee is not None
        with pytest.raises(ProfileFailed):
            queue.for_job().profile("import torch\n")
        assert queue._referee is referee
    finally:
        left = queue._referee
        queue.close()
        if left is not None:
            left.close()  # a worker's process ends with its bench; this one goes on
