"""reproduce.py as the user runs it: in the unpacked bundle, with torch and nothing of this project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, optimized_text, written

# A reference that wastes its time, so that the member is faster on any machine.
SLOW_TASK = TASK.replace(
    "return x * self.weight * self.factor + self.shift + residual",
    "for _ in range(20):\n            residual = torch.sort(residual.flip(1).flip(1) + 0.0 * x, dim=1).values * 0.0 + residual\n"
    "        return x * self.weight * self.factor + self.shift + residual",
)


def bundle(folder: Path, speedup: float, member: str = MEMBER) -> Path:
    """An unpacked bundle that claims `speedup`."""
    candidate = Candidate(member, "human", "scale and shift")
    optimized = Candidate(
        optimized_text([candidate], task=SLOW_TASK), "human", "optimized.py", candidate.sha256
    )
    rows: list[dict[str, Any]] = [
        {
            "dims": {"rows": rows, "cols": 64, "dtype": "float32"},
            "split": "held_out",
            "timed": True,
            "speedup": speedup,
            "baseline_us": 100.0,
        }
        for rows in (16, 256)
    ]
    return written("slow", SLOW_TASK, candidate, optimized, rows, speedup, folder)


def reproduce(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-s", "reproduce.py", "--quick", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_a_claim_that_holds_passes(tmp_path: Path) -> None:
    result = reproduce(bundle(tmp_path, 2.0))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rows=256" in result.stdout
    assert "the claims hold here" in result.stdout
    assert "weak check" in result.stdout
    assert "kernelwright evaluate" in result.stdout


@pytest.mark.slow
def test_a_claim_that_does_not_hold_fails(tmp_path: Path) -> None:
    result = reproduce(bundle(tmp_path, 1e6))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "do NOT hold" in result.stdout


@pytest.mark.slow
def test_a_wrong_kernel_fails(tmp_path: Path) -> None:
    result = reproduce(bundle(tmp_path, 2.0, MEMBER.replace("x, self.packed)", "x, self.packed) * 1.001")))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "is allowed" in result.stdout


@pytest.mark.slow
def test_a_kernel_that_cannot_run_here_is_not_checked(tmp_path: Path) -> None:
    result = reproduce(bundle(tmp_path, 1.0, f"raise OSError('no compiler')\n{MEMBER}"))
    assert result.returncode == 2, result.stdout + result.stderr
    assert "runs the reference on this machine" in result.stdout
