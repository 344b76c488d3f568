"""Who waits to time does not wait for a compiler: an evaluation stops in the middle of a call."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource
from evaluator.timing.exclusive import DeviceLock
from tests.evaluator import judging
from tests.evaluator.test_turns_of_referees import TASK

pytestmark = pytest.mark.alone

#: Its first call computes for SECONDS of its own CPU time, here or in a program that it starts, as Triton's assembler.
COMPILES = """
import subprocess
import sys
import time
from torch import nn

SPIN = "import time; until = time.process_time() + {seconds}\\nwhile time.process_time() < until: pass"
compiled = []


class ModelNew(nn.Module):
    def forward(self, x):
        if not compiled:
            {where}
            compiled.append(True)
        return x * 2
"""
HERE = "exec(SPIN)"
IN_A_PROGRAM = 'subprocess.run([sys.executable, "-I", "-S", "-c", SPIN], check=True)'
SECONDS = 1.0


@pytest.mark.parametrize("where", [HERE, IN_A_PROGRAM], ids=["in the process", "in a program"])
def test_a_call_that_compiles_is_stopped_for_others_and_goes_on(
    core: RefereeCore, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # Where nobody else on this machine looks, who might be timing just now.
        patch.setattr("tempfile.tempdir", str(tmp_path))
        core.fleet.device_lock = DeviceLock("giving-way")
    source = COMPILES.format(seconds=SECONDS, where=where)
    waited_s: list[float] = []
    ran_s: list[float] = []

    def times() -> None:
        time.sleep(0.3)  # the call has begun
        began = time.monotonic()
        with core.fleet.device_lock.exclusive():
            waited_s.append(time.monotonic() - began)
            before_s = used_s()
            time.sleep(0.5)
            ran_s.append(used_s() - before_s)

    other = threading.Thread(target=times)

    def progress(stage: str, done: int, total: int, text: str) -> None:
        if stage == "correctness" and done == 0:
            other.start()

    task = judging.task(TASK)
    candidate = CandidateSource(source, "external", "inline")
    shapes = {"adversarial": [{"rows": 3}]}
    verdict = core.evaluate(Request(task, candidate, "screen", ("adversarial",), shapes, 60.0), progress)
    other.join(10)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert waited_s[0] < 0.5, "it waited for the call"
    assert ran_s[0] < 0.1, "the call went on while somebody timed"
    # What it was stopped for is not the call's time.
    assert SECONDS <= verdict.first_call_s < verdict.stages_s["correctness"] - 0.45


def used_s() -> float:
    """CPU seconds of all processes below this one."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split() if path.name.isdigit() else []
        except OSError:
            continue
        if fields:
            found[int(path.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
        below |= more
    ticks = sum(found[pid][1] for pid in below - {os.getpid()})
    return ticks / os.sysconf("SC_CLK_TCK")
