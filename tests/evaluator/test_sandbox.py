"""The sandbox fails closed: a tier that its own attacks break is not used."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.client import Referee
from evaluator.devices import CpuDevice
from evaluator.errors import SandboxUnavailable
from evaluator.referee.processes import fleet as fleet_module
from evaluator.referee.processes.fleet import Fleet
from evaluator.sandbox import layout, seccomp
from evaluator.sandbox.attacks import ATTACKS

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(180)]


def test_every_attack_is_blocked_in_the_tier_in_force(referee: Referee) -> None:
    check = referee.self_check()
    assert check["tier"] in fleet_module.TIERS
    assert len(check["attacks"]) == len(ATTACKS)
    assert [attack["name"] for attack in check["attacks"] if not attack["blocked"]] == []
    assert check["device"]["sandbox_tier"] == check["tier"]


def test_a_misspelt_tier_is_an_error_and_not_a_weaker_one(tmp_path: Path) -> None:
    for word in ("nmaespaces", "none", ""):
        with pytest.raises(SandboxUnavailable, match="unknown sandbox tier"):
            Fleet(CpuDevice(), tmp_path, word)


def test_a_tier_with_one_open_door_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Fleet) -> list[dict[str, object]]:
        return [{"name": "read_a_file_outside", "blocked": False, "how": "it worked"}]

    monkeypatch.setattr(Fleet, "_attack_ourselves", planted)
    monkeypatch.setattr(Fleet, "_server", lambda *_: SimpleNamespace(close=lambda: None))
    with pytest.raises(SandboxUnavailable, match="read_a_file_outside worked from inside"):
        Fleet(CpuDevice(), tmp_path, "landlock")


@pytest.mark.skipif(os.geteuid() != 0, reason="asks what happens to root")
def test_landlock_alone_does_not_hold_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits on processes do not bind the real root user, so without namespaces root gets no sandbox at all."""
    monkeypatch.setattr(fleet_module, "TIERS", ("landlock",))
    # That one alone: all other attacks must fail on Landlock and the filter.
    with pytest.raises(SandboxUnavailable, match="landlock: fork_without_end worked from inside"):
        Fleet(CpuDevice(), tmp_path, "landlock")


def test_the_folder_of_the_checkout_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where it is on the search path of Python, as it is in the referee's own process."""
    here = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, str(tmp_path)]))
    shown = layout.for_role("/nowhere", gpu=False).read_only
    assert here not in shown
    assert {f"{here}/evaluator", f"{here}/kernelbench_tasks", str(tmp_path)} <= set(shown)


def test_the_filter_is_built_for_this_machine() -> None:
    strict = seccomp.build(unix_sockets=False, new_sessions=False, shared_memory_files=False)
    lenient = seccomp.build(unix_sockets=True, new_sessions=True, shared_memory_files=True)
    assert len(strict) % 8 == 0
    assert len(strict) > 400
    assert strict != lenient


def test_a_fork_server_has_one_thread_when_it_enters_its_namespaces() -> None:
    """The kernel lets an ordinary user's process into a user namespace of its own only while it has one thread."""
    import subprocess
    import sys

    program = "import os, evaluator.roles.forkserver; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_killed_client_leaves_nothing_behind(tmp_path: Path) -> None:
    import subprocess
    import sys
    import time

    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from evaluator.client import Referee\n"
        f"referee = Referee('cpu', work_dir=Path({str(tmp_path)!r}))\n"
        "print(referee._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    referee_pid = int(client.stdout.readline())
    family = _descendants(referee_pid)
    assert len(family) >= 2
    client.kill()
    client.wait()
    client.stdout.close()
    limit = time.monotonic() + 20
    while any(_runs(pid) for pid in (referee_pid, *family)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert [pid for pid in (referee_pid, *family) if _runs(pid)] == []


def _descendants(pid: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [grandchild for child in children for grandchild in _descendants(child)]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
