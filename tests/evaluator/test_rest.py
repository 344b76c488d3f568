"""A stopped process uses no CPU time, and one that goes on without the referee's leave is noticed."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.roles import protocol
from evaluator.roles.arena import sealed_text
from evaluator.roles.kernel_view import Threads
from evaluator.roles.tool_run import run_tool
from evaluator.sandbox.limits import Limits

_SPINS = b'{"program": "while True:\\n    pass", "files": {}}'

pytestmark = [pytest.mark.attacks, pytest.mark.alone]


def test_time_used_while_stopped_is_seen(core: RefereeCore, tmp_path: Path) -> None:
    process = core.fleet.server("candidate").fork(role="tool", limits=Limits())
    text, sink = sealed_text(_SPINS), os.open(tmp_path / "sink", os.O_RDWR | os.O_CREAT)
    process.send(protocol.TOOL, {}, (text, sink))
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


def test_what_can_wait_and_all_that_it_starts_computes_after_everything_else(core: RefereeCore) -> None:
    process = core.fleet.server("candidate").fork(role="tool", limits=Limits())
    process.take_lowest_priority()
    program = "import os, threading\n"
    program += "def say():\n    print(os.getpriority(os.PRIO_PROCESS, 0))\n"
    program += "thread = threading.Thread(target=say)\nthread.start()\nthread.join()"
    assert run_tool(process, program, {}, 30.0).stdout.strip() == "19"


@pytest.fixture
def spinning() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        yield child.pid
        child.kill()


def _stop(pid: int) -> Threads:
    threads = Threads(pid)
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    while not threads.all_stopped():
        pass
    return threads


def test_bookkeeping_of_a_stopped_process_is_not_its_time(
    spinning: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its core was taken away in the moment between the look that found it stopped and its leaving."""
    threads, clock_ns = _stop(spinning), itertools.count(0, 1_000_000)
    monkeypatch.setattr(threads, "_cpu_ns", lambda: next(clock_ns))
    threads.begin_rest()
    assert threads.ran_ns() == 0 and next(clock_ns) >= 2_000_000
    os.kill(spinning, signal.SIGCONT)
    time.sleep(0.02)
    assert threads.ran_ns() > 0, "it runs"
    os.kill(spinning, signal.SIGSTOP)
    while not threads.all_stopped():
        pass
    threads.begin_rest()
    os.kill(spinning, signal.SIGCONT)
    time.sleep(0.02)
    os.kill(spinning, signal.SIGSTOP)
    while not threads.all_stopped():
        pass
    assert threads.ran_ns() > 0, "it is stopped again, but has run"
    threads.close()


@pytest.mark.parametrize("text", [None, b"0 0 0\n", b"12 34\n"])
def test_without_the_kernels_count_all_time_counts(
    spinning: int, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    threads, clock_ns = _stop(spinning), itertools.count(0, 1_000_000)
    read = threads._read

    def other(thread: str, name: str) -> bytes:
        if name != "schedstat":
            return read(thread, name)
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(threads, "_cpu_ns", lambda: next(clock_ns))
    monkeypatch.setattr(threads, "_read", other)
    threads.begin_rest()
    assert threads.ran_ns() == 1_000_000
    threads.close()


@pytest.mark.parametrize("after", [{"1": 23}, {"1": 13, "2": 10}, {"1": 10, "3": 13}])
def test_a_thread_that_ends_does_not_make_up_for_one_that_ran(
    monkeypatch: pytest.MonkeyPatch, after: dict[str, int]
) -> None:
    """A process sees its own counts, and could end just the threads whose turns add up to those that others had."""
    turns, clock_ns = {"1": 10, "2": 13}, itertools.count(0, 1_000_000)
    threads = Threads(0)

    def told(thread: str, name: str) -> bytes:
        return b"5 6 %d\n" % turns[thread] if name == "schedstat" else b"1 (python) T 1"

    monkeypatch.setattr(threads, "_cpu_ns", lambda: next(clock_ns))
    monkeypatch.setattr(threads, "_every", lambda: list(turns))
    monkeypatch.setattr(threads, "_read", told)
    threads.begin_rest()
    assert threads.ran_ns() == 0
    turns = after
    assert threads.ran_ns() > 0


_LEAVES_A_CHILD = b"""{"program": "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0:\\n        time.sleep(60)\\n", "files": {}}"""


def test_a_process_has_ended_when_everybody_in_its_namespace_has(core: RefereeCore, tmp_path: Path) -> None:
    if core.fleet.tier != "namespaces":
        pytest.skip("only a namespace has a last process")
    process = core.fleet.server("candidate").fork(role="tool", limits=Limits())
    text, sink = sealed_text(_LEAVES_A_CHILD), os.open(tmp_path / "sink", os.O_RDWR | os.O_CREAT)
    process.send(protocol.TOOL, {}, (text, sink))
    # The first of a new referee takes 0.2 s to begin two processes, and longer where others run.
    time.sleep(2.0)
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
