"""Figures of two machines are not put in one order, and a worker that is not what it says takes no work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.devices import open_device
from evaluator.environment import measured_on
from evaluator.folders import default_work_dir
from evaluator.profiling import ceilings
from services.dashboard.ranking import leaderboard
from services.db.models import Worker
from services.worker.presence import Presence
from services.worker.referee_queue import RefereeQueue
from tests.services.databases import new_sqlite

HERE = {"device": "cuda", "device_name": "NVIDIA H200", "driver": "580"}


def candidate(name: str, speedup: float, environment: dict[str, Any]) -> dict[str, Any]:
    summary = {"geomean_speedup": speedup, "geomean_ci95": [speedup * 0.99, speedup * 1.01]}
    verdict = {"verdict": "accepted", "summary": summary, "environment": environment}
    return {"sha256": name, "label": name, "verdict": "accepted", "validation": verdict, "source": "x\n"}


def test_a_job_that_went_on_elsewhere_ranks_one_machine_s_figures_alone() -> None:
    faster_there = candidate("there", 9.0, {**HERE, "device_name": "NVIDIA H100"})
    first, second = candidate("first", 2.0, HERE), candidate("second", 1.5, {**HERE, "gpu_uuid": "GPU-2"})
    rows = leaderboard([faster_there, second, first], None)
    assert [(row.rank, row.candidate["label"], row.elsewhere) for row in rows] == [
        (1, "first", ""),
        (2, "second", ""),
        (None, "there", "NVIDIA H100"),
    ]
    won = leaderboard([faster_there, second, first], "there")
    assert (won[0].rank, won[0].candidate["label"]) == (1, "there")
    assert [row.rank for row in leaderboard([first, second], None)] == [1, 2]


RATES = {"dram_bytes_per_s": 1e10, "float32_flops_per_s": 1e11}


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "refused"), [(1.5, False), (20.0, True)])
def test_a_worker_that_reaches_something_else_than_its_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, refused: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = ceilings.kept_path(default_work_dir(), open_device("cpu"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": ceilings.SCHEMA, "rates": RATES}))
    base = new_sqlite(tmp_path)
    other = {
        "tier": "landlock",
        "attacks": [],
        "device": measured_on(open_device("cpu")),
        "ceilings": {name: rate * factor for name, rate in RATES.items()},
    }
    with base.write() as session:
        session.add(Worker(id="another", device="cpu", tier="landlock", self_check=other, seen_at=4e9))
    queue = RefereeQueue("cpu", tmp_path / "bench", "landlock")
    presence = Presence(base, queue, "me")
    try:
        problem = presence._check_once()
        if not refused:
            assert problem is None
            return
        assert problem is not None
        assert "it says that it is" in problem
        with base.write() as session:  # whoever was not believed is no measure for others
            row = session.get(Worker, "another")
            assert row is not None
            row.problem = "not believed"
        assert presence._check_once() is None
    finally:
        left = queue._referee
        queue.close()
        if left is not None:
            left.close()
