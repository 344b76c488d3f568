"""The table of origins: sums by hand, and real jobs of every origin at one shape a split."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import origins, origins_summary
from evaluator.devices import open_device
from evaluator.keeping import keep_json
from evaluator.profiling.ceilings import SCHEMA, kept_path
from evaluator.verdict import from_json
from kernelbench_tasks import catalog

RATES = {
    "dram_bytes_per_s": 1e10,
    "cache_bytes": 1 << 22,
    "float32_flops_per_s": 5e10,
    "vector_flops_per_s": 5e10,
    "exp_per_s": 1e9,
    "operation_s": 2e-6,
}
#: What a model would answer for row_sum.
CANDIDATE = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.ops.aten.sum.dim_IntList(x, [-1], False)
"""


def shape(
    speedup: float, least_us: float | None, candidate_us: float, captured_us: float | None
) -> dict[str, Any]:
    captured = None if captured_us is None else {"candidate_us": captured_us, "speedup": 2 * speedup}
    return {
        "dims": {"rows": round(100 * speedup)},
        "speedup": speedup,
        "candidate_us": candidate_us,
        "captured": captured,
        "least_us": least_us,
    }


def row(task: str, speedups: list[float], low: float = 1.1, **more: Any) -> dict[str, Any]:
    figure = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else None
    return {
        "task": task,
        "origin": "human",
        "state": "succeeded",
        "cut": "",
        "winner": "w",
        "judged": 2,
        "accepted": 1,
        "candidates": [
            {"validation": {"geomean_speedup": 0.5}},
            {"validation": {"geomean_speedup": 0.25}},
            {"validation": None},
        ],
        "held_out": figure
        and {"geomean_speedup": figure, "geomean_ci95": [low, 9.0], "worst_speedup": min(speedups)},
        "shapes": [shape(one, 2.0, 10.0, None) for one in speedups],
        "usd": 0.25,
        "tokens": 100,
        "device_s": 30.0,
        "baselines_s": 10.0,
        **more,
    }


def test_totals_of_an_origin_are_what_a_hand_finds() -> None:
    rows = [
        row("a", [1.0, 4.0]),  # 2x
        row("b", [8.0], low=0.99),  # the interval holds 1
        row("c", [], state="failed"),  # nothing was delivered
        row("d", [100.0], state="cancelled"),
    ]
    (total,) = origins_summary.summarize(rows)
    assert (total["tasks"], total["delivered"], total["not_ended"]) == (3, 2, ["d"])
    assert (total["judged"], total["accepted"], total["share_accepted"]) == (6, 3, 0.5)
    assert (total["improved"], total["share_improved"]) == (1, pytest.approx(1 / 3))
    # sqrt(2 * 8); logs 0.6931 and 2.0794: standard deviation 0.9803, over sqrt(2) times t(1) = 12.706: 8.8071
    assert total["geomean_speedup"] == pytest.approx(4.0)
    assert total["geomean_ci95"] == pytest.approx([4 * math.exp(-8.8071), 4 * math.exp(8.8071)], rel=1e-3)
    assert total["shapes"] == 3
    assert total["worst"] == {"speedup": 1.0, "task": "a", "dims": {"rows": 100}}
    assert (total["roofline"], total["roofline_tasks"]) == (pytest.approx(0.2), 2)
    assert (total["validated_geomean_speedup"], total["validated_tasks"]) == (pytest.approx(0.5), 3)
    assert (total["captured_geomean_speedup"], total["captured_tasks"]) == (None, 0)
    assert (total["usd"], total["tokens"], total["device_s"], total["baselines_s"]) == (0.75, 300, 90.0, 30.0)


def test_a_job_that_delivers_nothing_shows_in_no_geometric_mean_and_breaks_no_table() -> None:
    (total,) = origins_summary.summarize([row("c", [], state="failed", judged=0, accepted=0, candidates=[])])
    assert total["geomean_speedup"] is total["geomean_ci95"] is total["worst"] is total["roofline"] is None
    assert total["share_accepted"] is total["validated_geomean_speedup"] is None
    console = Console(width=200, record=True)
    origins_summary.show([row("c", [], state="failed"), row("a", [2.0])], console)
    assert "2.00x" in console.export_text()


def test_roofline_is_of_the_replayed_graph_and_only_where_every_bound_is_known() -> None:
    shapes = [shape(1.0, 2.0, 10.0, 4.0), shape(1.0, 2.0, 16.0, None)]
    assert origins_summary.roofline(row("a", [1.0], shapes=shapes)) == pytest.approx(0.25)  # sqrt(2/4 * 2/16)
    assert origins_summary.captured_geomean(row("a", [1.0], shapes=shapes)) is None
    assert origins_summary.captured_geomean(row("a", [1.0], shapes=shapes[:1])) == pytest.approx(2.0)
    shapes[1]["least_us"] = None
    assert origins_summary.roofline(row("a", [1.0], shapes=shapes)) is None


def test_seconds_of_a_job_leave_out_the_time_between_its_attempts() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    told = [("job.started", 0), ("candidate.judged", 40), ("job.started", 500), ("job.finished", 507)]
    events = [{"name": name, "time": (begin + timedelta(seconds=at)).isoformat()} for name, at in told]
    assert origins_summary.attempts_s(events) == 47.0
    assert origins_summary.attempts_s([]) == 0.0


def test_what_goes_into_baselines_is_told_apart() -> None:
    stages = {"baseline_compile": 9.0, "integrity": 2.0, "baselines": 1.5, "aa": 0.5, "timing": 7.0}
    assert origins_summary.baselines_s(from_json({"verdict": "accepted", "stages_s": stages})) == 11.0
    assert origins_summary.baselines_s(from_json({"verdict": "accepted"})) == 0.0


def test_a_job_counts_once_and_its_end_counts_more_than_a_later_attempt() -> None:
    rows = [
        row("a", [1.0], state="waiting"),
        row("a", [2.0]),
        row("a", [3.0], state="error"),
        row("b", [4.0]),
    ]
    kept = origins_summary.latest(rows)
    assert [(one["task"], one["shapes"][0]["speedup"]) for one in kept] == [("a", 2.0), ("b", 4.0)]


def piece(path: Path, gpu: str, started_at: str, *rows: dict[str, Any]) -> Path:
    machine = {"device_name": "a GPU", "torch": "2", "harness": "7", "gpu_uuid": gpu, "time": started_at}
    report = {
        "piece": path.stem,
        "settings": {"device": "cuda", "origins": ["human"]},
        "environment": machine,
        "ceilings": {},
        "started_at": started_at,
        "rows": [{**one, "environment": {"gpu_uuid": gpu}} for one in rows],
    }
    path.write_text(json.dumps(report))
    return path


def test_what_was_merged_can_be_merged_with_more(tmp_path: Path) -> None:
    first = piece(tmp_path / "a.json", "A", "2026-01-01", row("a", [1.0]), row("b", [], state="failed"))
    document = json.loads(first.read_text())
    document["rows"][1]["environment"] = {}  # it ended without any verdict
    first.write_text(json.dumps(document))
    second = piece(tmp_path / "b.json", "B", "2026-01-02", row("c", [4.0]))
    third = piece(tmp_path / "c.json", "C", "2026-01-03", row("a", [2.0]), row("d", [8.0]))
    folders = [tmp_path / name for name in ("once", "twice")]
    for folder in folders:
        folder.mkdir()
    origins.merge([first, second], write=True, out=folders[0])
    (merged,) = folders[0].iterdir()
    origins.merge([merged, third], write=True, out=folders[1])
    (whole,) = folders[1].iterdir()
    document = json.loads(whole.read_text())
    told = [(one["task"], one["shapes"][0]["speedup"] if one["shapes"] else None) for one in document["rows"]]
    assert told == [("a", 2.0), ("b", None), ("c", 4.0), ("d", 8.0)]
    assert [one["gpu_uuid"] for one in document["environment"]] == ["A", "B", "C"]
    assert origins.rows_in([merged, third]) == origins.rows_in([first, second, third])


def test_a_claimed_task_is_nobody_elses_until_it_is_given_back(tmp_path: Path) -> None:
    with origins.claimed(tmp_path, "softmax", "cuda-0") as first:
        with origins.claimed(tmp_path, "softmax", "cuda-1") as second:
            assert (first, second) == (True, False)
        with origins.claimed(tmp_path, "swiglu", "cuda-1") as other:
            assert other
    with origins.claimed(tmp_path, "softmax", "cuda-0") as again:
        assert again
    names = ["row_sum", "softmax", "swiglu"]
    assert origins.own_first(tmp_path, names, "cuda-0") == ["softmax", "row_sum", "swiglu"]
    assert origins.own_first(tmp_path, names, "cuda-1") == ["swiglu", "row_sum", "softmax"]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_every_origin_runs_a_whole_job_at_the_same_shapes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path = kept_path(tmp_path / "referees" / "here", open_device("cpu"))
    path.parent.mkdir(parents=True)
    keep_json(path, {"schema": SCHEMA, "rates": RATES})
    counts = {"visible": 1, "validation": 1, "held_out": 1, "adversarial": 1}
    settings = origins.Settings(
        "cpu", ("compiler", "human", "batch"), counts, candidates=1, model="m", samples=1
    )

    def run() -> dict[str, dict[str, Any]]:
        sources = {"row_sum": catalog.load("row_sum").source}
        ends_at = time.monotonic() + 280
        runs = origins.Runs(settings, sources, tmp_path, "here", (1, 1), ends_at, Console(quiet=True))
        try:
            runs.task("row_sum", 0)
        finally:
            runs.referee.close()
        return {one["origin"]: one for one in runs.rows}

    rows = run()
    assert {name: one["state"] for name, one in rows.items()}["batch"] == "waiting"
    assert rows["compiler"]["words"] == rows["human"]["words"] == {"accepted": 1}, rows
    assert run() == {}  # without answers there is nothing to go on with
    requests = tmp_path / "jobs" / "row_sum.batch" / "batch" / "requests.jsonl"
    body = {"choices": [{"message": {"content": f"```python\n{CANDIDATE}```"}, "finish_reason": "stop"}]}
    body |= {"usage": {"prompt_tokens": 900, "completion_tokens": 100}}
    keys = [json.loads(line)["custom_id"] for line in requests.read_text().splitlines()]
    answers = [
        {"custom_id": key, "response": {"status_code": 200, "body": body}, "error": None} for key in keys
    ]
    told = tmp_path / "answers.jsonl"
    told.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))
    origins.hand_out(told, tmp_path, ["row_sum"])

    later = run()  # the others have come to their end
    assert set(later) == {"batch"}
    assert later["batch"]["words"] == {"accepted": 1}, later
    assert later["batch"]["tokens"] == 1000

    every = origins.rows_in([tmp_path])
    assert {one["origin"] for one in every} == {"compiler", "human", "batch"}
    delivered = [one for one in every if one["held_out"]]
    held_out = json.loads((tmp_path / "shapes" / "row_sum.json").read_text())["shapes"]["held_out"]
    # A sum of rows is as fast as it can be: whether anything beats it at one shape is for the clock to say, and each job tells.
    for one in every:
        assert bool(one["held_out"]) != ("nothing is confidently faster" in one["reason"]), one
    for one in delivered:
        assert [shape["dims"] for shape in one["shapes"]] == held_out
        # 4 bytes of each number at 10 GB/s, or through the cache that the same rates say is no faster.
        dims = held_out[0]
        assert one["shapes"][0]["least_us"] == pytest.approx(dims["rows"] * (dims["cols"] + 1) * 4e-4)
