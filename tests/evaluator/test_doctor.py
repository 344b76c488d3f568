"""The doctor says what can be judged here, and works where nothing can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator.doctor import machine
from evaluator.doctor.findings import BAD, DOUBTFUL, GOOD, Line
from evaluator.referee.processes.fleet import TIERS
from evaluator.sandbox.attacks import ATTACKS

pytestmark = pytest.mark.timeout(180)

#: The referee's own filter for candidates, put around the doctor itself: no namespaces, no sockets, no tracing.
CAGED = """
import runpy, sys
from evaluator.sandbox import seccomp
seccomp.install(seccomp.build(unix_sockets=True, new_sessions=True, shared_memory_files=True))
sys.argv = ["evaluator", *sys.argv[1:]]
runpy.run_module("evaluator", run_name="__main__")
"""


def doctor(*prefix: str, work_dir: Path, options: tuple[str, ...] = ("--json",)) -> tuple[int, str]:
    command = [sys.executable, *prefix, "doctor", "--work-dir", str(work_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def lines_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for section in report["sections"] for line in section["lines"]}


@pytest.mark.slow
def test_this_machine_can_judge_and_every_part_is_looked_at(tmp_path: Path) -> None:
    status, text = doctor("-m", "evaluator", work_dir=tmp_path)
    report = json.loads(text)
    lines = lines_of(report)
    assert status == 0, [line for line in lines.values() if line["state"] != GOOD]
    assert "cpu" in report["can_judge"]
    wanted = {
        "torch",
        "triton",
        "cc",
        "c++",
        "g++",
        "nvcc",
        "nvrtc",
        "cpu",
        "steadiness",
        "steal",
        "disk",
        "memory",
    }
    assert wanted | set(TIERS) <= set(lines)
    assert all(line["advice"] for line in lines.values() if line["state"] != GOOD)
    isolation = next(s for s in report["sections"] if s["title"] == "Isolation for cpu")["facts"]
    held = isolation["tiers"][isolation["in_force"]]
    assert len(held["attacks"]) == len(ATTACKS)
    assert all(attack["blocked"] for attack in held["attacks"])
    for tier in isolation["tiers"].values():
        assert tier["holds"] or tier["why_not"]


@pytest.mark.slow
def test_where_nothing_isolates_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    status, text = doctor("-c", CAGED, work_dir=tmp_path)
    report = json.loads(text)
    lines = lines_of(report)
    assert status == 2
    assert report["can_judge"] == []
    assert [lines[tier]["state"] for tier in TIERS] == [BAD, BAD]
    assert "Operation not permitted" in lines["namespaces"]["found"]
    assert "user namespaces must be allowed" in lines["namespaces"]["advice"]
    assert "nothing untrusted runs here" in lines["judging"]["found"]


def test_a_tier_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    status, text = doctor("-m", "evaluator", work_dir=tmp_path, options=("--minimum-tier", "none"))
    assert (status, text) == (2, "")


def test_a_line_that_is_not_good_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="must say what to do"):
        Line("disk", DOUBTFUL, "full")


def test_too_little_of_something_is_told_from_enough(tmp_path: Path) -> None:
    states = [machine._enough("disk", gib << 30, 10, "free", "Free some.").state for gib in (1, 5, 20)]
    assert states == [BAD, DOUBTFUL, GOOD]
    section = machine.examine_resources(tmp_path / "not" / "yet" / "there")
    assert section.facts["free_disk_bytes"] > 0
    assert section.facts["available_memory_bytes"] > 0
