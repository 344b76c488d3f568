"""Sampling from a model whose weights two ranks share, on the CPU, where FSDP 2 runs as it does on GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).resolve().parents[3]


def test_ranks_sample_what_each_would_alone_and_the_model_says_where_it_computes() -> None:
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "tests.rl.training.spread",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, second = json.loads(ran.stdout.splitlines()[-1])
    assert first["found"] == first["alone"]
    assert second["found"] == second["alone"]
    # else nothing was seen of a rank that ends early
    assert len(first["found"]) < len(second["found"])
    for rank in (first, second):
        # Only what FSDP holds says so, and only while it samples.
        assert (rank["whole"], rank["meanwhile"], rank["after"]) == ("cpu", "meta", "cpu")
