"""The whole pipeline without a GPU, as a user starts it: C++ candidates that a model of some thousand weights writes, timed by the referee."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.messages import Message
from agent.providers.policy import LocalPolicy
from agent.spec import ModelChoice
from kernelbench_tasks import catalog
from rl.config import FleetPart
from rl.exemplars import ExemplarDatabase
from rl.judges import machine_of
from rl.metrics import read_steps
from rl.rows import Row, ShownRow, prompt_of, read_rows, write_rows
from tests.rl.training import runs
from tests.rl.training.softmax_programs import PROGRAMS

CONFIG = Path(__file__).parents[3] / "rl" / "configs" / "cpu.yaml"


def pairs(path: Path) -> None:
    """Rows of the catalogue's softmax, right at every size."""
    task = catalog.load("softmax")
    programs = list(PROGRAMS.values())
    rows = []
    for number, (name, source) in enumerate(PROGRAMS.items()):
        for turn in range(3):
            # Two rows of three show others with scores (invented: the referee's come later), as prompts of GRPO will.
            others = (programs[(number + turn) % 4], programs[(number + turn + 1) % 4]) if turn else ()
            shown = tuple(ShownRow(source=other, speedup=0.2 + place) for place, other in enumerate(others))
            row = Row(
                id=f"{name}/{turn}",
                task=task.name,
                source=task.source,
                device="cpu",
                candidate=source,
                shown=shown,
            )
            rows.append(row)
    write_rows(path, rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_stages_from_rows_to_a_policy_with_rewards_of_the_referee(tmp_path: Path) -> None:
    pairs(tmp_path / "runs" / "cpu" / "pairs.jsonl")
    ended = subprocess.run(
        [sys.executable, "-m", "rl.train", str(CONFIG)],
        cwd=tmp_path,
        # A model this small is slower on two cores than on one, and much slower where they are shared.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=840,
        capture_output=True,
        text=True,
        check=False,
    )
    told = ended.stdout + ended.stderr
    folder = tmp_path / "runs" / "cpu"
    assert ended.returncode == 0, told[-4000:]
    assert [line["step"] for line in read_steps(folder / "sft" / "metrics.jsonl")] == list(range(1, 161))
    assert [line["step"] for line in read_steps(folder / "selfsup" / "metrics.jsonl")] == [1, 2, 3, 4]
    lines = read_steps(folder / "contrastive" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    machine = machine_of(FleetPart(device="cpu"))
    rows = read_rows(folder / "selfsup" / "successes.jsonl")
    assert {(row.task, row.origin, row.machine) for row in rows} == {("softmax", "policy", machine)}
    assert all("load_inline" in row.candidate and row.speedup for row in rows)
    # Every completion was judged, or says why not; what was known was not judged again.
    samples = runs.samples(folder / "contrastive")
    assert len(samples) == 12
    assert all(one["score"] is not None or one["why"] for one in samples)
    judged = sum(
        line["judged"]
        for line in [*lines, *read_steps(folder / "selfsup" / "metrics.jsonl")]
        if line["judged"]
    )
    assert judged >= 1
    with ExemplarDatabase(folder / "contrastive" / "exemplars.journal", write=False) as found:
        assert found.snapshot == 4
        begun = found.members(catalog.load("softmax").sha256, machine or "", 1)
        assert {one.source for one in begun} == {row.candidate for row in rows}
    for stage in ("sft", "contrastive"):
        runs.same_curves(folder / stage)
    policy = LocalPolicy(ModelChoice(str(folder / "contrastive" / "checkpoint"), provider="policy"))
    reply = policy.complete([Message("user", prompt_of(rows[0]))], max_tokens=256)
    assert "class ModelNew" in reply.text
