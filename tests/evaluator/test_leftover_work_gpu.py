"""Work that another referee's stopped compiler left on the GPU is not the candidate's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource
from tests.evaluator.judging import task
from tests.evaluator.test_turns_of_referees import TASK

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: Holds the device's lock shared, as compilers do, and gives way as soon as it is wanted, with SECONDS of work queued.
BESIDE = """
import sys, time
import torch
from evaluator.timing.exclusive import Hold, DeviceLock
lock = DeviceLock(sys.argv[1])
seconds = float(sys.argv[2])
clock_hz = 1.4e9
torch.cuda._sleep(1000)
torch.cuda.synchronize()
with lock.shared() as hold:
    print("ready", flush=True)
    while True:
        if hold.wanted():
            torch.cuda._sleep(int(seconds * clock_hz))
            hold.give_way()
            torch.cuda.synchronize()
        time.sleep(0.001)
"""
CANDIDATE = (
    "from torch import nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    core = RefereeCore("cuda", tmp_path_factory.mktemp("referee-cuda"), "landlock")
    try:
        yield core
    finally:
        core.close()


def test_it_is_waited_for(core: RefereeCore) -> None:
    uuid = core.fleet.device.facts()["gpu_uuid"]
    given = [sys.executable, "-c", BESIDE, str(uuid), "0.6"]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as beside:
        try:
            assert beside.stdout is not None
            assert beside.stdout.readline() == "ready\n"
            candidate = CandidateSource(CANDIDATE, "external", "inline")
            request = Request(task(TASK), candidate, "screen", ("visible",), None, 120.0)
            verdict = core.evaluate(request, lambda *_: None)
        finally:
            beside.kill()
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
