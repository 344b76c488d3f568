"""What ncu's own rules say of a call's kernels, where ncu is there: found, run around one call in the sandbox, read.

They explain; the label rests on the experiments alone. ncu runs where the profile's process runs, beside the task's code and
as confined as it, so what it writes is untrusted text: known columns, plain numbers within bounds and as many launches as were
asked for, or it is refused whole. Where it cannot count from in there, the answer says so: it is run nowhere else, and no
setting of the machine is changed for it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.devices import is_accelerator
from evaluator.integrity.static import clean
from evaluator.profiling.counted_call import MOST_TEXT, PROGRAM
from evaluator.roles.tool_run import RunsTools, ToolResult

#: The device is not shared meanwhile.
DEADLINE_S = 60.0
#: Each launch is replayed some ten times; a call of hundreds would take minutes and say little more.
MOST_LAUNCHES = 32
_GRACE_S = 30.0
_MOST_SHOWN = 240
_MOST_KERNELS, _MOST_RULES, _MOST_RULE, _MOST_NAME, _MOST_SHORT_NAME = 6, 6, 1000, 160, 60
#: Types of a rule that names something to gain, and of one that only informs, which is shown where there is no other.
_ADVICE, _INFORMS = ("OPT", "WRN"), "INF"
_COLUMNS = (
    "ID",
    "Kernel Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
    "Rule Type",
    "Rule Description",
)
_SECONDS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
}  # fmt: skip
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?|\d{1,3}(,\d{3}){1,4}(\.\d{1,15})?", re.ASCII)
_PARAMETERS = Path("/proc/driver/nvidia/params")
_TOOLKIT = Path("/usr/local/cuda")
_PACKAGED = Path("/opt/nvidia/nsight-compute")
REFUSED = (
    "ncu is here but may not read the GPU's counters (ERR_NVGPUCTRPERM): an administrator can allow it by loading NVIDIA's "
    "driver with NVreg_RestrictProfilingToAdminUsers=0, which lets every user of this machine read them."
)


@dataclass(frozen=True)
class CountedKernel:
    """What ncu says of a kernel.

    Attributes:
        name: demangled.
        short_name: the name as an identifier.
        launches: how many of them were counted.
        seconds: of all these launches.
        share: of the time that was counted, 0 to 1.
        rules: what ncu's rules say of the longest launch, in ncu's words and order.
    """

    name: str
    short_name: str
    launches: int
    seconds: float
    share: float
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Counters:
    """What ncu counted in one warm call.

    Attributes:
        kernels: those that took most of the time.
        notes: why there are none, or what else must be known to read them.
    """

    kernels: tuple[CountedKernel, ...]
    notes: tuple[str, ...]


def find_ncu() -> str | None:
    """Path of ncu: on PATH, in the CUDA toolkit, or where NVIDIA's packages put it (the newest); None without it."""
    found = shutil.which("ncu")
    if found:
        return os.path.abspath(found)
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for toolkit in (*toolkits, _TOOLKIT):
        for path in (toolkit / "bin" / "ncu", *_newest_first(toolkit, "nsight-compute*/ncu")):
            if os.access(path, os.X_OK):
                return os.path.abspath(path)
    return next((str(path) for path in _newest_first(_PACKAGED, "*/ncu") if os.access(path, os.X_OK)), None)


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", path.parent.name))

    return sorted(folder.glob(pattern), key=version, reverse=True)


def refusal(parameters: Path = _PARAMETERS) -> str:
    """Why NVIDIA's driver lets the sandbox read no counters, or "" if it may: the sandbox has no administrator."""
    try:
        text = parameters.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return REFUSED if re.search(r"^RmProfilingAdminOnly:\s*1\s*$", text, re.MULTILINE) else ""


def count(
    tools: RunsTools,
    text: str,
    ncu: str,
    *,
    device: str,
    dims: Mapping[str, Any],
    deadline_s: float = DEADLINE_S,
) -> Counters:
    """Has ncu count the kernels of one warm call of a task. The caller holds the device's lock.

    Args:
        tools: what runs ncu and the task in the sandbox.
        text: the task file; untrusted.
        ncu: path of ncu.
        device: ``cpu`` or ``cuda``.
        dims: plain sizes that differ from the file's.
        deadline_s: for ncu, after which it is ended.

    Raises:
        RefereeLost: the referee died meanwhile. Whatever else goes wrong is a note.
    """
    reason = refusal() if is_accelerator(device) else ""
    if reason:
        return Counters((), (reason,))
    request = {
        "ncu": ncu,
        "device": device,
        "dims": dict(dims),
        "launches": MOST_LAUNCHES,
        "deadline_s": deadline_s,
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    result = tools.run_tool(
        PROGRAM.format(request=request),
        {"task.py": text},
        deadline_s=deadline_s + _GRACE_S,
        device=is_accelerator(device),
    )
    return read(result, ncu, deadline_s)


def read(result: ToolResult, ncu: str, deadline_s: float) -> Counters:
    """What an untrusted process said, as counters or as the reason why there are none."""
    late = f"ncu did not get through one call in {deadline_s:.0f} s, so nothing was counted."
    try:
        answer = json.loads(result.outputs["counters.json"])
        said = {name: str(answer[name]) for name in ("status", "tier", "table", "printed")}
    except (KeyError, TypeError, ValueError, RecursionError):
        note = late if result.status == "timeout" else "ncu's process ended without an answer."
        return Counters((), (note,))
    if said["status"] == "hidden":
        return Counters((), (f"ncu lies at {ncu}, which the sandbox does not show; it is run nowhere else.",))
    output = f"{said['table']}\n{said['printed']}"
    if "ERR_NVGPUCTRPERM" in output:
        return Counters((), (REFUSED,))
    if said["status"] == "late":
        return Counters((), (late,))
    if not any(line.startswith('"ID",') for line in said["table"].split("\n")):
        return Counters((), (_why_not(output, said["tier"]),))
    try:
        kernels, launches = parse(said["table"])
    except ValueError as error:
        return Counters((), (f"ncu's table could not be read: {error}.",))
    notes = []
    if launches == MOST_LAUNCHES:
        notes.append(f"Only the first {MOST_LAUNCHES} launches of a call were counted.")
    if not kernels:
        notes.append("ncu counted no kernel with a duration.")
    return Counters(kernels, tuple(notes))


def parse(text: str) -> tuple[tuple[CountedKernel, ...], int]:
    """Reads what ``ncu --csv --page details`` wrote: a row of names, then a row for each metric and rule of each launch.

    Returns:
        The kernels that took most of the time, and how many launches were counted.

    Raises:
        ValueError: it has another form; the message says which rule it broke, and repeats nothing of the text.
    """
    if len(text) > MOST_TEXT:
        raise ValueError("it is too long")
    # ncu's own messages begin with ==; rows are quoted throughout.
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.startswith('"')]
    try:
        names, *rows = list(csv.reader(lines, strict=True)) or [[]]
    except csv.Error:
        raise ValueError("it is no CSV") from None
    if any(names.count(column) != 1 for column in _COLUMNS):
        raise ValueError("its first row does not name ncu's columns once each")
    if any(len(row) > len(names) for row in rows):
        raise ValueError("a row has more cells than there are columns")
    rows = [
        row + [""] * (len(names) - len(row)) for row in rows
    ]  # ncu leaves out the last ones of a metric's row
    places = [names.index(column) for column in _COLUMNS]
    seconds: dict[str, float] = {}
    names_of: dict[str, str] = {}
    rules: dict[tuple[str, bool], list[str]] = {}
    for number, name, metric, unit, value, kind, description in ([row[at] for at in places] for row in rows):
        names_of.setdefault(number, clean(name, _MOST_NAME))
        if metric == "Duration":
            seconds[number] = _seconds(unit, value)
        if kind in _ADVICE or kind == _INFORMS:
            rules.setdefault((number, kind in _ADVICE), []).append(clean(description, _MOST_RULE))
    if len(names_of) > MOST_LAUNCHES:
        raise ValueError("it has more launches than were asked for")
    groups: dict[str, list[str]] = {}
    for number in seconds:
        groups.setdefault(names_of[number], []).append(number)
    total_s = sum(seconds.values()) or 1.0
    kernels = []
    for name, numbers in groups.items():
        own_s = sum(seconds[number] for number in numbers)
        longest = max(numbers, key=lambda number: seconds[number])
        said = tuple((rules.get((longest, True)) or rules.get((longest, False), []))[:_MOST_RULES])
        kernels.append(
            CountedKernel(name, short_name(name), len(numbers), own_s, round(own_s / total_s, 4), said)
        )
    kernels.sort(key=lambda kernel: -kernel.seconds)
    return tuple(kernels[:_MOST_KERNELS]), len(names_of)


def _seconds(unit: str, value: str) -> float:
    if unit not in _SECONDS:
        raise ValueError("a duration has an unknown unit")
    if not _NUMBER.fullmatch(value.strip()):
        raise ValueError("a duration is no plain number")
    return float(value.replace(",", "")) * _SECONDS[unit]


def short_name(name: str) -> str:
    """A demangled name without return type, template and parameters."""
    depth = 0
    plain: list[str] = []
    for letter in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        depth += (letter == "<") - (letter == ">" and depth > 0)
        if letter == "(" and not depth and plain:
            break
        if not depth and letter != ">":
            plain.append(letter)
    last = "".join(plain).split("::")[-1]
    return re.sub(r"[^A-Za-z0-9_]+", "_", last).strip("_")[:_MOST_SHORT_NAME] or "kernel"


def _why_not(output: str, tier: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    if any("No kernels were profiled" in line for line in own):
        return "ncu saw no kernel in a call, so nothing was counted."
    last = clean((own or lines or ["it said nothing"])[-1], _MOST_SHOWN)
    where = f"in the sandbox's tier {tier}" if tier in ("namespaces", "landlock") else "in the sandbox"
    return f"ncu does not work {where} here, and is run nowhere else, since the task's code is untrusted. It said: {last}"
