"""`kernelwright cost`: bundles of several devices side by side; prices come from settings, and foreign files are refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.services.service import ROOT


def evidence(device: str, candidate_us: float, task: str = "t" * 64) -> dict[str, Any]:
    def verdict(phase: str, sha256: str, n: int, time_us: float) -> dict[str, Any]:
        return {
            "phase": phase,
            "candidate": {"sha256": sha256},
            "environment": {"device_name": device},
            "shapes": [{"dims": {"n": n}, "timed": True, "baseline_us": 100.0, "candidate_us": time_us}],
        }

    return {
        "task": {"sha256": task},
        "environment": {"device_name": device},
        "optimized": {"sha256": "o" * 64},
        "members": [{"sha256": "m" * 64}],
        "verdicts": [
            verdict("screen", "x" * 64, 8, 1.0),  # a loser's time is nobody's
            verdict("screen", "m" * 64, 8, candidate_us),
            verdict("held_out", "o" * 64, 1000 + len(device), 7.0),
        ],
    }


def cost(*paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "cost", *map(str, paths), "--json"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def test_the_cheapest_of_two_bundles(tmp_path: Path) -> None:
    big, small = tmp_path / "big.zip", tmp_path / "small"
    with zipfile.ZipFile(big, "w") as archive:
        archive.writestr("m-kernelwright/evidence.json", json.dumps(evidence("Big", 20.0)))
    small.mkdir()
    (small / "evidence.json").write_text(json.dumps(evidence("Small one", 50.0)))
    ran = cost(big, small, KERNELWRIGHT_GPU_PRICES='{"Big": 4.0, "Small one": 1.0}')
    lines = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert (lines[0]["device"], lines[0]["optimized"], lines[0]["is_cheapest"]) == ("Small one", True, True)
    assert lines[0]["shapes"] == 1 and lines[0]["call_us"] == 50.0
    assert {line["device"]: line["call_us"] for line in lines if line["optimized"]}["Big"] == 20.0
    unpriced = json.loads(cost(big, small).stdout)
    assert [line["usd_per_million"] for line in unpriced] == [None] * 4


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused_in_words(tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(json.dumps(evidence("Big", 20.0)))
    other.write_text(json.dumps(evidence("Big", 20.0, task="u" * 64)))
    ran = cost(one, other)
    assert ran.returncode == 2 and "different modules" in ran.stderr
    for text in ("", "[]", '{"verdicts": 3}', "\x00"):
        other.write_text(text)
        ran = cost(other)
        assert ran.returncode == 2 and "b.json" in ran.stderr and "Traceback" not in ran.stderr
    assert cost(tmp_path / "missing.zip").returncode == 2
