"""ncu's counters: its table is read strictly, said in words, and collected inside the sandbox or not at all."""

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
from evaluator.profiling.counter_table import (
    ASKED,
    LIMITS,
    MOST_COUNTERS,
    MOST_TEXT,
    PLAIN,
    RATIOS,
    STALLS,
    curate,
    parse,
)
from evaluator.profiling.counters import Counters, count, find_ncu, read, refusal
from evaluator.profiling.diagnosis import diagnose
from evaluator.referee.core import RefereeCore
from evaluator.referee.tool_run import ToolResult
from tests.evaluator.test_profiling import GPU, measured

FIXED = [
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC",
]  # fmt: skip
UNITS = {PLAIN["duration_s"]: "ns", PLAIN["shared_bytes_per_block"]: "byte/block"}
VECTOR = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel, char *[2]>(int, T2, T3)"


def row(*cells: str) -> str:
    """Cells as ncu quotes them."""
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def table(*launches: tuple[str, dict[str, str]], metrics: tuple[str, ...] = ASKED, columns: int = 0) -> str:
    """What ``ncu --csv --page raw`` writes; metrics without a value are n/a, as on a chip that lacks them."""
    extra = [f"device__attribute_{number}" for number in range(columns)]
    units = [UNITS.get(name, "%" if "pct" in name else "") for name in metrics]
    lines = [
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
        *(
            f'==PROF== Profiling "kernel" - {number}: 0%....50%....100% - 9 passes'
            for number in range(len(launches))
        ),
        "==PROF== Disconnected from process 4711",
        row(*FIXED, *metrics, *extra),
        row(*[""] * len(FIXED), *units, *extra),
    ]
    for number, (name, values) in enumerate(launches):
        fixed = [
            str(number), "4711", "python3.12", "127.0.0.1", name, "1", "7", "(256, 1, 1)", "(4,096, 1, 1)", "0", "9.0",
        ]  # fmt: skip
        lines.append(row(*fixed, *(values.get(metric, "n/a") for metric in metrics), *["0"] * columns))
    return "\n".join(lines) + "\n"


def launch(name: str = VECTOR, duration: str = "12,345", **values: str) -> tuple[str, dict[str, str]]:
    """A launch by our names for its counters."""
    return name, {PLAIN["duration_s"]: duration, **{PLAIN[key]: value for key, value in values.items()}}


def test_no_metric_is_asked_for_twice() -> None:
    assert len(set(ASKED)) == len(ASKED)


def test_a_table_is_read_with_its_units_separators_and_gaps() -> None:
    name = 'kernel<(int)4, "x">(float *, int)'
    text = table(launch(name, dram_pct="91.25", registers_per_thread="1,024.00", waves="(!) nan"), columns=3)
    (found,) = parse(text, 32)
    assert found.name == name
    assert found.values[PLAIN["duration_s"]] == pytest.approx(12.345e-6)
    assert found.values[PLAIN["dram_pct"]] == 91.25
    assert found.values[PLAIN["registers_per_thread"]] == 1024
    assert set(found.values) == {PLAIN[key] for key in ("duration_s", "dram_pct", "registers_per_thread")}
    scaled = text.replace('"ns"', '"usecond"').replace("byte/block", "Kbyte/block")
    assert parse(scaled, 32)[0].values[PLAIN["duration_s"]] == pytest.approx(12.345e-3)


NUMBERS = ("-1", "inf", "0x10", "1_0", "1,2", "1 2", "1;2", "\u0663", "9" * 41, "True", "1.")
HOSTILE = {
    "long": ("x" * (MOST_TEXT + 1), "too long"),
    "empty": ("", "no row of names"),
    "words": ("Traceback (most recent call last)", "no row of names"),
    "no units": (
        "\n".join(line for line in table(launch()).splitlines() if line[:3] != '"",'),
        "no row of units",
    ),
    "only names": (row(*FIXED, *ASKED), "no row of names and units"),
    "other columns": (table(launch()).replace("Kernel Name", "Name"), "does not name"),
    "a column twice": (table(launch(), metrics=(*ASKED, ASKED[0])), "twice"),
    "too many columns": (table(launch(), columns=2000), "does not name"),
    "a short row": (table(launch()) + row("1", "4711"), "more or fewer cells"),
    "a long row": (table(launch()).rstrip("\n") + ',"1"\n', "more or fewer cells"),
    "an open quote": (table(launch()) + '"1,2', "no CSV"),
    "text after a quote": (table(launch()).replace('"12,345"', '"12,345"x'), "no CSV"),
    "a huge cell": (table(launch("x" * (1 << 18))), "no CSV"),
    "too many launches": (table(*[launch()] * 33), "more launches"),
    "an unknown unit": (table(launch()).replace('"ns"', '"fortnight"'), "unknown unit"),
    "a share of something": (table(launch(dram_pct="5")).replace('"%"', '"Gbyte/s"'), "unknown unit"),
    "a large number": (table(launch(registers_per_thread="1e19")), "too large"),
    "an infinite number": (table(launch(registers_per_thread="1e999")), "too large"),
    **{f"the number {value!r}": (table(launch(dram_pct=value)), "no plain number") for value in NUMBERS},
}


@pytest.mark.parametrize(("text", "rule"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_does_not_keep_the_form_is_refused_whole(text: str, rule: str) -> None:
    assert parse(table(launch(dram_pct="5")), 32)
    with pytest.raises(ValueError, match=rule) as refused:
        parse(text, 32)
    assert len(str(refused.value)) < 100


def everything() -> dict[str, str]:
    """A value for each metric that is asked for."""
    values = {name: str(number + 1) for number, name in enumerate(ASKED)}
    return {**values, PLAIN["duration_s"]: "1000", LIMITS["shared memory"]: "2", LIMITS["registers"]: "3"}


def test_at_most_24_counters_of_a_kernel_are_kept() -> None:
    (found,) = curate(parse(table(("kernel", everything())), 32))
    assert len(found.counters) == MOST_COUNTERS == 24
    assert (found.limiter, found.counters["blocks_per_sm"]) == ("shared memory", 2)
    assert [name for name in found.counters if name.startswith("stall_")] == [
        f"stall_{reason}" for reason in list(STALLS)[:-4:-1]
    ]
    assert sum(name.startswith("pipe_") for name in found.counters) == 3


def test_kernels_are_grouped_by_name_and_the_longest_launch_speaks() -> None:
    launches = [
        launch("a", "100", dram_pct="10"), launch("b", "150"), launch("a", "200", dram_pct="20"), launch("c", "0"),
    ]  # fmt: skip
    first, second = curate(parse(table(*launches), 32))
    assert (first.name, first.launches, first.share) == ("a", 2, pytest.approx(2 / 3, abs=1e-3))
    assert first.counters["dram_pct"] == 20
    assert second.counters == {"duration_s": 150e-9}


def test_a_ratio_of_hostile_counters_stays_a_number() -> None:
    part, whole = RATIOS["load_sectors_per_request"]
    (found,) = curate(parse(table(("k", {PLAIN["duration_s"]: "1", part: "1e17", whole: "1e-320"})), 32))
    assert json.loads(json.dumps(found.counters, allow_nan=False)) == found.counters


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
          "--profile-from-start --launch-count --metrics").split()
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
if mode == "silent":
    sys.exit(subprocess.run(left).returncode)
assert given["--metrics"].split(",") == {asked!r}.split(",")
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
GOOD = table(
    launch(VECTOR, "4,000", dram_pct="92.5"), launch("reduce", "1,000", dram_pct="10", l2_pct="5", sm_pct="9")
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that behave as ncu does, by what comes of them."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)
    for mode in ("good", "refused", "late", "broken", "silent"):
        text = STAND_IN.format(python=sys.executable, mode=mode, text=GOOD, asked=",".join(ASKED))
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


def test_counters_come_out_of_the_sandbox_as_sentences(good: Counters) -> None:
    assert good.notes == ()
    first, second = good.kernels
    assert (first.name, first.launches, first.share) == (VECTOR, 1, 0.8)
    assert first.counters == {"duration_s": 4e-6, "dram_pct": 92.5}
    assert "DRAM is busy 92%" in first.sentences[0]
    assert "Neither memory" in second.sentences[0]


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
            "and is run nowhere else, since the task's code is anybody's. It said: ==ERROR== Failed to connect",
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
    forged = table(launch("k", "1,000", dram_pct="-5"))
    line = f"open('counters.csv', 'w').write({forged!r}); print('ERR_NVG', chr(27))"
    found = counted(core, programs / "silent" / "ncu", line)
    assert found == Counters((), ("ncu's table could not be read: a value is no plain number.",))


def test_a_task_that_spoils_the_answer_leaves_a_note(core: RefereeCore, programs: Path) -> None:
    found = counted(core, programs / "silent" / "ncu", "os.makedirs('out/counters.json', exist_ok=True)")
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
    assert kernel["counters"]["dram_pct"] == 92.5 and "DRAM is busy" in kernel["sentences"][0]
    assert {**as_json, "counters": None} == json.loads(json.dumps(plain.as_json()))
    printed = io.StringIO()
    show(Console(file=printed, width=200), with_counters)
    assert "vectorized_elementwise_kernel: 80% of what ncu counted (launched once)" in printed.getvalue()
    assert "DRAM is busy 92% of the time" in printed.getvalue()
