"""Two ranks on the CPU: sampling from a model whose weights they share (FSDP 2 runs as it does on GPUs), and a run of two stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rl import checkpoints
from rl.exemplars import ExemplarDatabase
from rl.journal import Journal
from rl.metrics import read_steps
from rl.tasks import of_step
from tests.rl.training import runs

pytest.importorskip("torch.distributed.fsdp")
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]


def two_ranks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """See `tests.rl.training.spread`."""
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "tests.rl.training.spread",
    ]
    return subprocess.run(
        [sys.executable, "-m", *command, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_ranks_sample_what_each_would_alone_and_the_model_says_where_it_computes() -> None:
    ran = two_ranks()
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, second = json.loads(ran.stdout.splitlines()[-1])
    assert first["found"] == first["alone"]
    assert second["found"] == second["alone"]
    # else nothing was seen of a rank that ends early
    assert len(first["found"]) < len(second["found"])
    for rank in (first, second):
        # Only what FSDP holds says so, and only while it samples.
        assert (rank["whole"], rank["meanwhile"], rank["after"]) == ("cpu", "meta", "cpu")
        adapted = rank["adapted"]
        assert adapted["found"] == adapted["alone"] == adapted["again"]
        assert adapted["found"] != rank["found"]  # else adapters did nothing
        # The other model of the class says what it said before.
        assert adapted["meanwhile"] == ["meta", "meta", "cpu"]
        assert adapted["after"] == "cpu"
        assert adapted["moved"][0] > 0
        assert adapted["moved"][1]


def test_two_ranks_without_a_gpu_are_one_run(trained: Path) -> None:
    ran = two_ranks(str(trained))
    assert ran.returncode == 0, ran.stderr[-3000:]
    ranks = [json.loads((trained / f"seen-{number}.json").read_text("utf-8")) for number in (0, 1)]
    assert [(one["number"], one["count"]) for one in ranks] == [(0, 2), (1, 2)]
    first, second = (one["weights"] for one in ranks)
    assert second["whole"] == first["whole"] == first["sparing"] > 0
    assert second["sparing"] == 0  # else nothing was seen of what `whole` is for
    assert {one["variable"] for one in ranks} == {"true"}
    steps = (1, 2, 3)
    for number, one in enumerate(ranks):
        # Nothing is judged twice, in all stages together.
        assert len(one["judged"]) > 0
        assert max(Counter(map(tuple, one["judged"])).values()) == 1
        # Rounds give each rank tasks of its own, and each step of GRPO a group.
        rounds = [paid["tasks"] for paid in one["paid"] if paid["step"] is None]
        assert rounds == [[["other", "small"][number]] * 4] * 2
        groups = {paid["step"]: paid for paid in one["paid"] if paid["step"] is not None}
        assert set(groups) == set(steps)
        for step, paid in groups.items():
            assert paid["tasks"] == [of_step(0, step, 2, ["small", "other"])[number]] * 4
            assert all(prompt == paid["prompts"][0] for prompt in paid["prompts"])
    at = trained / "two" / "contrastive"
    lines = read_steps(at / "metrics.jsonl")
    # One line a step of both ranks' completions, written by one of them.
    assert [(line["step"], line["completions"]) for line in lines] == [(step, 8) for step in steps]
    assert Counter(sample["step"] for sample in runs.samples(at)) == dict.fromkeys(steps, 8)
    assert checkpoints.whole(at / checkpoints.FINAL) is not None
    with ExemplarDatabase(at / "exemplars.journal", write=False) as found:
        assert found.snapshot == 1 + len(steps)
    # What a rank has judged it keeps in a file of its own, which the next stage reads.
    for number, name in enumerate(("verdicts.journal", "verdicts-1.journal")):
        with Journal(trained / "two" / "selfsup" / name, "kernelwright.verdicts/1", write=False) as kept:
            found = {(one["task"], one["form"]) for one in kept.records}
        assert found == set(map(tuple, ranks[number]["judged"]))
