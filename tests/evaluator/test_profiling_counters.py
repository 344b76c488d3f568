"""What ncu's rules say is read strictly, and collected inside the sandbox or not at all."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from evaluator.commands.profile import show
from evaluator.profiling import counters
from evaluator.profiling.counted_call import MOST_TEXT
from evaluator.profiling.counters import Counters, count, find_ncu, parse, read, refusal, short_name
from evaluator.profiling.diagnosis import diagnose
from evaluator.referee.judging.core import RefereeCore
from evaluator.roles.tool_run import ToolResult
from tests.evaluator.test_profiling import GPU, measured

COLUMNS = [
    "ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
    "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
]  # fmt: skip
VECTOR = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel, char *[2]>(int, T2, T3)"


def row(*cells: str) -> str:
    """Cells as ncu quotes them."""
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def table(*launches: tuple[str, str, tuple[str, ...]]) -> str:
    """What ``ncu --csv --page details`` writes of launches: name, duration in ns, what the rules advise."""
    lines = ["==PROF== Connected to process 4711 (/usr/bin/python3.12)", row(*COLUMNS)]
    for number, (name, duration, rules) in enumerate(launches):
        first = (str(number), "4711", name, "GPU Speed Of Light Throughput")
        lines.append(row(*first, "Duration", "ns", duration) + ",")
        lines.append(row(*first, "", "", "", "SOLInfo", "INF", "For your information.", "", ""))
        lines += [row(*first, "", "", "", "Bottleneck", "OPT", rule, "global", "34.6") for rule in rules]
    return "\n".join(lines) + "\n"


def launch(name: str = VECTOR, duration: str = "12,345", *rules: str) -> tuple[str, str, tuple[str, ...]]:
    return name, duration, rules


def test_kernels_are_grouped_by_name_and_the_longest_launch_s_rules_speak() -> None:
    launches = [
        launch("a", "100", "short"), launch("b", "150"), launch("a", "200", 'say "so"', "and so"), launch("c", "0"),
    ]  # fmt: skip
    (first, second, third), count = parse(table(*launches))
    assert (first.name, first.launches, first.share) == ("a", 2, pytest.approx(2 / 3, abs=1e-3))
    assert first.seconds == pytest.approx(300e-9)
    assert first.rules == ('say "so"', "and so")
    assert (second.name, second.rules, third.name, count) == ("b", ("For your information.",), "c", 4)
    scaled = table(*launches).replace('"ns"', '"usecond"')
    assert parse(scaled)[0][0].seconds == pytest.approx(300e-6)


def test_a_long_name_is_said_in_short() -> None:
    assert short_name(VECTOR) == "vectorized_elementwise_kernel"
    assert short_name("void (anonymous namespace)::row<int, 4>(float *)") == "row"
    assert short_name("<<<") == "kernel"


HOSTILE = {
    "long": ("x" * (MOST_TEXT + 1), "too long"),
    "empty": ("", "does not name"),
    "words": ("Traceback (most recent call last)", "does not name"),
    "other columns": (table(launch()).replace("Kernel Name", "Name"), "does not name"),
    "a column twice": (table(launch()).replace("Process ID", "ID"), "does not name"),
    "a long row": (table(launch()).rstrip("\n") + ',"1"\n', "more cells"),
    "an open quote": (table(launch()) + '"1,2', "no CSV"),
    "text after a quote": (table(launch()).replace('"12,345"', '"12,345"x'), "no CSV"),
    "a huge cell": (table(launch("x" * (1 << 18))), "no CSV"),
    "too many launches": (table(*[launch()] * 33), "more launches"),
    "an unknown unit": (table(launch()).replace('"ns"', '"fortnight"'), "unknown unit"),
    **{
        f"the number {value!r}": (table(launch(VECTOR, value)), "no plain number")
        for value in (
            "-1",
            "inf",
            "0x10",
            "1_0",
            "1,2",
            "1 2",
            "1;2",
            "\u0663",
            "9" * 41,
            "True",
            "1.",
            "1e999",
            "",
        )
    },
}


@pytest.mark.parametrize(("text", "rule"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_does_not_keep_the_form_is_refused_whole(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as refused:
        parse(text)
    assert len(str(refused.value)) < 100


# -- finding it, and whether it may count ----------------------------------------------------------------------------------


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """A program that lies there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_ncu_is_found_on_the_path_in_the_toolkit_and_in_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(counters, "_TOOLKIT", tmp_path / "none")
    monkeypatch.setattr(counters, "_PACKAGED", tmp_path / "opt")
    assert find_ncu() is None
    places = [
        tmp_path / "opt" / "2024.3.2" / "ncu",
        tmp_path / "opt" / "2024.10.1" / "ncu",
        tmp_path / "cuda" / "nsight-compute-2025.1" / "ncu",
        tmp_path / "cuda" / "bin" / "ncu",
        tmp_path / "bin" / "ncu",
    ]
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text("not a program")
        before = find_ncu()
        executable(place)
        assert find_ncu() == str(place) != before


def test_a_driver_that_keeps_counters_for_administrators_is_asked_first(tmp_path: Path) -> None:
    parameters = tmp_path / "params"
    assert refusal(parameters) == ""
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 0\nDmaRemapPeerMmio: 1\n")
    assert refusal(parameters) == ""
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\nDmaRemapPeerMmio: 1\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refusal(parameters)


# -- the whole way, through the sandbox ------------------------------------------------------------------------------------

#: ncu's protocol: it takes its documented options, runs the program, and writes what was counted to the log file.
STAND_IN = """#!{python}
import os, subprocess, sys, time
mode, text = {mode!r}, {text!r}
valued = ("--config-file --page --print-units --log-file --replay-mode --clock-control --cache-control --target-processes "
          "--profile-from-start --launch-count --apply-rules --section").split()
given, left = {{}}, sys.argv[1:]
while left[0].startswith("--"):
    name = left.pop(0)
    if name not in (*valued, "--csv"):
        print("==ERROR== unrecognised option", name)
        sys.exit(1)
    given[name] = left.pop(0) if name in valued else ""
def log(line):
    with open(given["--log-file"], "a") as file:
        file.write(line)
if mode == "refused":
    log("==PROF== Connected to process 7\\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
        "Performance Counters on the target device 0.\\n")
    sys.exit(1)
if mode == "late":
    # It hangs, and so does a program of it that holds its output.
    subprocess.run(["sleep", "60"])
if mode == "broken":
    print("==ERROR== Failed to connect to the target process.")
    sys.exit(1)
if mode == "spoils":
    # It is as confined as the task that it runs.
    os.makedirs("out/counters.json")
    sys.exit(0)
if mode == "silent":
    sys.exit(subprocess.run(left).returncode)
assert given["--page"] == "details"
assert os.environ["NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE"] == "uds"
code = subprocess.run(left).returncode
log(text if code == 0 else "==ERROR== The application returned an error code (%d).\\n" % code)
"""
TASK = """
import os, torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        {line}
        return torch.exp(x)


def get_inputs(rows=64):
    return [torch.randn(rows, 32)]


def get_init_inputs():
    return []
"""
GOOD = table(launch(VECTOR, "4,000", "DRAM is busy."), launch("reduce", "1,000", "Occupancy is low."))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that behave as ncu does, by what comes of them."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)
    for mode in ("good", "refused", "late", "broken", "spoils", "silent"):
        text = STAND_IN.format(python=sys.executable, mode=mode, text=GOOD)
        executable(folder / mode / "ncu", text)
    return folder


@pytest.fixture(scope="module")
def core(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    """A referee whose sandbox shows these programs, as it shows every folder that Python's code may come from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(programs), prepend=":")
        core = RefereeCore("cpu", tmp_path_factory.mktemp("referee"), "landlock")
    try:
        yield core
    finally:
        core.close()


def counted(core: RefereeCore, program: Path, line: str = "pass", deadline_s: float = 60.0) -> Counters:
    """What is counted of a task whose forward has this line."""
    return count(
        core, TASK.format(line=line), str(program), device="cpu", dims={"rows": 8}, deadline_s=deadline_s
    )


@pytest.fixture(scope="module")
def good(core: RefereeCore, programs: Path) -> Counters:
    """What comes of a program that counts."""
    return counted(core, programs / "good" / "ncu", "assert x.shape == (8, 32)")


@pytest.mark.slow
def test_ncu_s_rules_come_out_of_the_sandbox(good: Counters) -> None:
    assert good.notes == ()
    first, second = good.kernels
    assert (first.name, first.launches, first.share) == (VECTOR, 1, 0.8)
    assert (first.rules, second.rules) == (("DRAM is busy.",), ("Occupancy is low.",))


@pytest.mark.slow
def test_a_task_that_fails_under_ncu_is_said(core: RefereeCore, programs: Path) -> None:
    found = counted(core, programs / "good" / "ncu", "raise ValueError")
    assert found.kernels == ()
    assert "The application returned an error code (1)" in found.notes[0]


@pytest.mark.parametrize(
    ("mode", "note"),
    [
        ("refused", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("late", "did not get through one call in 1 s"),
        (
            "broken",
            "and is run nowhere else, since the task's code is untrusted. It said: ==ERROR== Failed to connect",
        ),
    ],
)
def test_why_nothing_was_counted_is_one_sentence(
    core: RefereeCore, programs: Path, mode: str, note: str
) -> None:
    found = counted(core, programs / mode / "ncu", deadline_s=1.0 if mode == "late" else 60.0)
    assert found.kernels == ()
    assert len(found.notes) == 1 and note in found.notes[0]
    if mode == "broken":
        assert f"the sandbox's tier {core.fleet.tier}" in found.notes[0]


def test_what_the_sandbox_does_not_show_is_not_run_outside(core: RefereeCore, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    program = executable(tmp_path / "ncu", f"#!/bin/sh\ntouch {trace}\n")
    found = counted(core, program)
    assert found.kernels == () and "which the sandbox does not show" in found.notes[0]
    assert not trace.exists()


def test_a_table_that_the_task_wrote_itself_is_read_as_strictly(core: RefereeCore, programs: Path) -> None:
    forged = table(launch("k", "-5"))
    line = f"open('counters.csv', 'w').write({forged!r}); print('ERR_NVG', chr(27))"
    found = counted(core, programs / "silent" / "ncu", line)
    assert found == Counters((), ("ncu's table could not be read: a duration is no plain number.",))


def test_who_spoils_the_answer_leaves_a_note(core: RefereeCore, programs: Path) -> None:
    found = counted(core, programs / "spoils" / "ncu")
    assert found == Counters((), ("ncu's process ended without an answer.",))


@pytest.mark.parametrize("answer", ["[]", "{}", '{"status": "ran"}', "[" * 100_000, "7", "nonsense", "\xff"])
def test_an_answer_of_another_form_is_a_note(answer: str) -> None:
    found = read(ToolResult("ok", 0, "", "", {"counters.json": answer.encode("latin-1")}), "ncu", 1.0)
    assert found == Counters((), ("ncu's process ended without an answer.",))


def test_no_note_repeats_what_a_terminal_would_obey() -> None:
    said = {"status": "ran", "tier": "\x1b[2J", "table": {}, "printed": "\x1b]0;x\x07\ud800" * 500}
    found = read(ToolResult("ok", 0, "", "", {"counters.json": json.dumps(said).encode()}), "ncu", 1.0)
    assert found.notes[0].isprintable() and len(found.notes[0]) < 400


# -- what is done with it --------------------------------------------------------------------------------------------------


def test_counters_are_printed_and_in_the_json_and_decide_nothing(good: Counters) -> None:
    plain = diagnose(measured(), GPU, gpu=True)
    assert plain.as_json()["counters"] is None
    with_counters = replace(plain, counters=good)
    as_json = json.loads(json.dumps(with_counters.as_json(), allow_nan=False))
    kernel = as_json["counters"]["kernels"][0]
    assert kernel["rules"] == ["DRAM is busy."]
    assert {**as_json, "counters": None} == json.loads(json.dumps(plain.as_json()))
    printed = io.StringIO()
    show(Console(file=printed, width=200), with_counters)
    assert "vectorized_elementwise_kernel: 80% of what ncu counted (launched once)" in printed.getvalue()
    assert "DRAM is busy." in printed.getvalue()
