"""Every way out of the sandbox is tried by a planted candidate, and the next candidates are judged as if nothing had been.

The files of ``breakouts`` do what they say when they are called. Those that try several ways raise when one of them
worked; what can be looked at from outside is looked at from outside.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.folders import verdicts_folder
from evaluator.sources import CandidateSource
from evaluator.verdict import Verdict
from tests.attacks.test_candidates import HERE, TASK, expectation

BREAKOUTS = sorted((HERE / "breakouts").glob("*.py"))
#: Untimed, so that a verdict takes a tenth of a second.
SHAPES = {"adversarial": [{"rows": 3, "cols": 17}, {"rows": 1, "cols": 8}]}
_KEY = "sk-planted-for-the-breakouts"
# Here, since the session's referee may start before any fixture of this file.
os.environ["KERNELWRIGHT_PLANTED_KEY"] = _KEY
#: Of those that never answer; the others have longer, for a busy machine.
_SHORT_S, _LONG_S = 1.5, 60.0

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240)]


@dataclass
class Outside:
    """What lies beyond the sandbox: things to be read, written, killed or connected to."""

    referee: Referee
    facts: dict[str, Any]
    victim: subprocess.Popen[bytes]
    listeners: list[socket.socket]
    watched: dict[Path, bytes] = field(default_factory=dict)

    def check(self) -> None:
        """Nothing was read from, written to, killed or left behind."""
        assert self.victim.poll() is None, "the process outside was killed"
        assert self.referee.alive, "the referee was killed"
        for path, content in self.watched.items():
            assert path.read_bytes() == content
            assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]
        for listener in self.listeners:
            with pytest.raises(BlockingIOError):
                listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(1)
        assert not list(verdicts_folder(Path(self.facts["work_dir"])).rglob("planted*"))
        limit = time.monotonic() + 10
        while survivors() and time.monotonic() < limit:
            time.sleep(0.05)
        assert survivors() == []


def survivors() -> list[int]:
    """Processes that go by the name which the planted daemons give themselves."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "kw-survivor":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, referee: Referee) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    work_dir = referee._work_dir
    with ExitStack() as stack:
        listeners = []
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream.sock")),
            (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagrams.sock")),
        ):
            listener = stack.enter_context(socket.socket(family, kind))
            listener.bind(address)
            listener.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listener.listen()
            listeners.append(listener)
        secret = folder / "secrets" / "secret"
        other = work_dir / "store" / "candidate-of-somebody-else" / "source.py"
        for path in (secret, other):
            path.parent.mkdir(parents=True)
            path.write_text("a secret")
            os.chmod(path.parent, 0o755)
        victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        facts = {
            "secret": str(secret),
            "other_candidate": str(other.parent),
            "verdicts": str(verdicts_folder(work_dir)),
            "work_dir": str(work_dir),
            "referee": referee._process.pid,
            "victim": victim.pid,
            "port": listeners[0].getsockname()[1],
            "unix_socket": str(folder / "stream.sock"),
            "unix_datagrams": str(folder / "datagrams.sock"),
            "key": _KEY,
        }
        watched = {path: path.read_bytes() for path in (secret, other)}
        try:
            yield Outside(referee, facts, victim, listeners, watched)
        finally:
            victim.kill()
            victim.wait()


def judge(referee: Referee, source: str, label: str, deadline_s: float = _LONG_S) -> Verdict:
    candidate = CandidateSource(source, "external", label)
    return referee.evaluate(TASK, candidate, splits=["adversarial"], shapes=SHAPES, deadline_s=deadline_s)


def check_the_next(referee: Referee) -> None:
    """What a fresh machine says of these two is known: the reference's own formula, and zeros."""
    for label, word, rules in (("honest", "accepted", []), ("zeros", "incorrect", ["constant_output"])):
        verdict = judge(referee, (HERE / "candidates" / f"{label}.py").read_text(), label)
        found = [finding.rule for finding in verdict.findings if finding.severity != "info"]
        assert (verdict.verdict, found) == (word, rules), verdict.reason


def test_a_fresh_machine_says_what_the_next_ones_are_compared_with(outside: Outside) -> None:
    check_the_next(outside.referee)


@pytest.mark.parametrize("path", BREAKOUTS, ids=lambda path: path.stem)
def test_no_way_out_and_no_trace(path: Path, outside: Outside) -> None:
    source = path.read_text(encoding="utf-8")
    words, _ = expectation(source)
    source = source.replace("FACTS = {}", f"FACTS = {outside.facts!r}")
    deadline_s = _SHORT_S if "timeout" in words else _LONG_S
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        judging = pool.submit(judge, outside.referee, source, path.stem, deadline_s)
        if path.stem == "survives_by_double_fork":
            # Or nothing would have to be killed.
            while not survivors():
                assert not judging.done()
                time.sleep(0.02)
        verdict = judging.result()
    assert verdict.verdict in words, (verdict.reason, verdict.detail)
    assert time.monotonic() - started < deadline_s + 10
    outside.check()
    check_the_next(outside.referee)


def test_secrets_do_not_reach_the_referee(outside: Outside) -> None:
    environment = Path(f"/proc/{outside.facts['referee']}/environ").read_bytes()
    result = outside.referee.run_tool("import os\nprint(sorted(os.environ.items()))", {})
    assert environment and _KEY.encode() not in environment
    assert result.status == "ok"
    assert "PATH" in result.stdout and _KEY not in result.stdout


def test_a_way_that_works_is_seen(outside: Outside) -> None:
    """The check of the checks: a candidate that finds an open door is not taken for one that found none."""
    source = (HERE / "breakouts" / "writes_outside.py").read_text()
    source = source.replace(
        "WAYS = [", "def in_its_own_folder():\n    open('mine', 'w').close()\n\n\nWAYS = [in_its_own_folder, "
    )
    verdict = judge(outside.referee, source.replace("FACTS = {}", f"FACTS = {outside.facts!r}"), "planted")
    assert verdict.verdict == "runtime_error"
    assert "these worked: ['in_its_own_folder']" in verdict.reason


def test_a_survivor_is_seen() -> None:
    program = (
        "import time; open('/proc/self/comm', 'w').write('kw-survivor'); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert survivors() == [process.pid]
    finally:
        process.kill()
        process.communicate()
