"""What only a GPU shows of timing: warm replays, the clock, the rate of writing, autocast as a baseline, and work that others left."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from evaluator.errors import RoleReported
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.ceiling import write_rate
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Rejected
from evaluator.request import Request
from evaluator.shapes.space import defaults
from evaluator.sources import CandidateSource
from tests.attacks.test_candidates import TASK
from tests.evaluator.judging import task
from tests.evaluator.test_turns_of_referees import TASK as TWICE
from tests.evaluator.test_warm import SHORTCUTS, attacker, timed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

#: Holds the device's lock shared, as compilers do, and gives way as soon as it is wanted, with SECONDS of work queued.
BESIDE = """
import sys, time
import torch
from evaluator.timing.exclusive import DeviceLock
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


def test_the_reference_against_itself_gets_a_figure(core: RefereeCore) -> None:
    started = time.monotonic()
    cold, found = timed(core, TASK, twin(TASK))
    print(
        f"both regimes in {time.monotonic() - started:.2f} s; cold {cold.candidate_us:.2f} us, warm {found}"
    )
    assert found["launch"] == "captured"
    assert 0.8 < found["speedup"] < 1.25
    assert cold.clock is not None


@pytest.mark.attacks
@pytest.mark.parametrize("shortcut", SHORTCUTS.values(), ids=SHORTCUTS)
def test_results_of_the_call_before_are_refused(core: RefereeCore, shortcut: str) -> None:
    # One that reads what an earlier capture allocated may come to an illegal address.
    with pytest.raises((Rejected, RoleReported)) as rejected:
        timed(core, TASK, attacker(shortcut))
    assert rejected.value.word in ("incorrect", "cheating", "runtime_error")


def test_the_device_writes_as_fast_as_one_of_its_kind(core: RefereeCore) -> None:
    rates = [write_rate(core.fleet)]
    started = time.monotonic()
    rates += [core.fleet.keeper.write_rate() for _ in range(5)] if core.fleet.keeper else []
    print(
        f"{(time.monotonic() - started) / 5 * 1e3:.1f} ms each; {[round(rate / 1e9) for rate in rates]} GB/s"
    )
    assert 1e11 < min(rates) <= max(rates) < 1.25 * statistics.median(rates)


def test_the_clock_can_be_read(core: RefereeCore) -> None:
    took_us = []
    for _ in range(50):
        started = time.perf_counter_ns()
        clock = core.fleet.device.clock()
        took_us.append((time.perf_counter_ns() - started) / 1e3)
    print(f"median {statistics.median(took_us):.1f} us, longest {max(took_us):.1f} us: {clock}")
    assert clock is not None
    assert clock.sm_mhz > 0


def test_autocast_is_a_baseline_where_products_may_be_in_16_bits(core: RefereeCore) -> None:
    source = task("""
        PRECISION = "bf16"

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4096, 4096)

            def forward(self, x):
                return self.linear(x)

        def get_inputs():
            return [torch.randn(4096, 4096)]

        def get_init_inputs():
            return []
    """)
    session = core.session(source)
    shape = session.open(defaults(session.space))
    with core.fleet.device_lock.shared():
        session.compile_baselines([shape], lambda *_: None)
    with core.fleet.device_lock.exclusive():
        session.rank_baselines([shape], lambda *_: None)
    print({baseline.name: baseline.failure or round(baseline.median_us, 1) for baseline in shape.baselines})
    assert shape.best.mode in core.fleet.device.autocast_modes


def test_work_that_a_stopped_compiler_left_is_waited_for(core: RefereeCore) -> None:
    """It is not the candidate's."""
    uuid = core.fleet.device.facts()["gpu_uuid"]
    given = [sys.executable, "-c", BESIDE, str(uuid), "0.6"]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as beside:
        try:
            assert beside.stdout is not None
            assert beside.stdout.readline() == "ready\n"
            candidate = CandidateSource(CANDIDATE, "external", "inline")
            request = Request(task(TWICE), candidate, "screen", ("visible",), None, 120.0)
            verdict = core.evaluate(request, lambda *_: None)
        finally:
            beside.kill()
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
