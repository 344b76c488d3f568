"""A stopped process uses no CPU time, and one that goes on without the referee's leave is noticed."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest

from evaluator.referee.core import RefereeCore
from evaluator.roles import runner
from evaluator.roles.arena import sealed_text
from evaluator.sandbox.limits import Limits

_SPINS = b'{"program": "while True:\\n    pass", "files": {}}'

pytestmark = pytest.mark.attacks


def test_time_used_while_stopped_is_seen(tmp_path: Path) -> None:
    core = RefereeCore("cpu", tmp_path, "landlock")
    try:
        process = core.fleet.server("candidate").fork(role="tool", limits=Limits())
        text, sink = sealed_text(_SPINS), os.open(tmp_path / "sink", os.O_RDWR | os.O_CREAT)
        process.send(runner.TOOL, {}, (text, sink))
        time.sleep(0.2)
        for _ in range(20):
            process.freeze()
            time.sleep(0.005)
            assert process.check_rest() == 0
            process.thaw()
        process.freeze()
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.05)
        assert process.check_rest() > 5_000_000
        process.close()
    finally:
        core.close()


_LEAVES_A_CHILD = b"""{"program": "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0:\\n        time.sleep(60)\\n", "files": {}}"""


def test_a_process_has_ended_when_everybody_in_its_namespace_has(tmp_path: Path) -> None:
    core = RefereeCore("cpu", tmp_path, "landlock")
    try:
        if core.fleet.tier != "namespaces":
            pytest.skip("only a namespace has a last process")
        process = core.fleet.server("candidate").fork(role="tool", limits=Limits())
        text, sink = sealed_text(_LEAVES_A_CHILD), os.open(tmp_path / "sink", os.O_RDWR | os.O_CREAT)
        process.send(runner.TOOL, {}, (text, sink))
        time.sleep(0.2)
        assert process.stop_others() >= 1
        ended = process.watch_end()
        assert not select.select([ended], [], [], 0.2)[0]
        process.close()
        assert select.select([ended], [], [], 5.0)[0]
        os.close(ended)
        # A candidate may leave at any moment; to ask after it then must not be an error of ours.
        until = time.monotonic() + 5.0
        while (late := process.watch_end()) >= 0 and time.monotonic() < until:
            os.close(late)
        assert late == -1
    finally:
        core.close()
