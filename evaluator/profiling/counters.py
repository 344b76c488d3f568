"""Counters of the GPU through ncu, where that is there: found, run around one call in the sandbox, read, said in words.

They explain; the label rests on the experiments alone. ncu runs where the profile's process runs, beside the task's code and
as confined as it, so what it writes is anybody's text. Where it cannot count from in there, the answer says so: it is run
nowhere else, and no setting of the machine is changed for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evaluator.integrity.static import clean
from evaluator.profiling.counted_call import PROGRAM
from evaluator.profiling.counter_sentences import sentences, short_name
from evaluator.profiling.counter_table import Counted, curate, parse
from evaluator.roles.tool_run import ToolResult

#: The device is nobody else's meanwhile.
DEADLINE_S = 60.0
#: Each launch is replayed some ten times; a call of hundreds would take minutes and say little more.
MOST_LAUNCHES = 32
_GRACE_S = 30.0
_MOST_SHOWN = 240
_PARAMETERS = Path("/proc/driver/nvidia/params")
_TOOLKIT = Path("/usr/local/cuda")
_PACKAGED = Path("/opt/nvidia/nsight-compute")
REFUSED = (
    "ncu is here but may not read the GPU's counters (ERR_NVGPUCTRPERM): an administrator can allow it by loading NVIDIA's "
    "driver with NVreg_RestrictProfilingToAdminUsers=0, which lets every user of this machine read them."
)


@dataclass(frozen=True)
class CountedKernel:
    """A kernel's counters and what they say.

    Attributes:
        name, launches, seconds, share, counters, limiter: see :class:`evaluator.profiling.counter_table.Counted`.
        short_name: the name as an identifier, which is all of a stranger's text that a prompt should bear.
        sentences: a handful, each with a cause and what it suggests.
    """

    name: str
    launches: int
    seconds: float
    share: float
    counters: dict[str, float]
    limiter: str
    short_name: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Counters:
    """What ncu counted in one warm call.

    Attributes:
        kernels: those that took most of the time.
        notes: why there are none, or what else must be known to read them.
    """

    kernels: tuple[CountedKernel, ...]
    notes: tuple[str, ...]


class RunsTools(Protocol):
    """Whatever runs a trusted program beside untrusted files: :class:`evaluator.client.Referee`."""

    def run_tool(
        self,
        program: str,
        files: Mapping[str, str],
        *,
        deadline_s: float = ...,
        memory_bytes: int | None = ...,
        device: bool = ...,
    ) -> ToolResult:
        """See :meth:`evaluator.client.Referee.run_tool`."""
        ...


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
    """Why NVIDIA's driver lets the sandbox read no counters, or "" if it may: nobody is an administrator in there."""
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
    memory_bytes: int | None = None,
) -> Counters:
    """Has ncu count the kernels of one warm call of a task. Whoever calls holds the device's lock.

    Args:
        tools: what runs ncu and the task in the sandbox.
        text: the task file; anybody's.
        ncu: path of ncu.
        device: ``cpu`` or ``cuda``.
        dims: plain sizes that differ from the file's.
        deadline_s: for ncu, after which it is ended.
        memory_bytes: limit of each process; None on a GPU.

    Raises:
        RefereeLost: the referee died meanwhile. Whatever else goes wrong is a note.
    """
    reason = refusal() if device == "cuda" else ""
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
        memory_bytes=memory_bytes,
        device=device == "cuda",
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
        launches = parse(said["table"], MOST_LAUNCHES)
    except ValueError as error:
        return Counters((), (f"ncu's table could not be read: {error}.",))
    notes = []
    if len(launches) == MOST_LAUNCHES:
        notes.append(f"Only the first {MOST_LAUNCHES} launches of a call were counted.")
    kernels = curate(launches)
    if not kernels:
        notes.append("ncu counted no kernel with a duration.")
    return Counters(tuple(_kernel(kernel) for kernel in kernels), tuple(notes))


def _kernel(kernel: Counted) -> CountedKernel:
    return CountedKernel(**vars(kernel), short_name=short_name(kernel.name), sentences=sentences(kernel))


def _why_not(output: str, tier: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    if any("No kernels were profiled" in line for line in own):
        return "ncu saw no kernel in a call, so nothing was counted."
    last = clean((own or lines or ["it said nothing"])[-1], _MOST_SHOWN)
    where = f"in the sandbox's tier {tier}" if tier in ("namespaces", "landlock") else "in the sandbox"
    return f"ncu does not work {where} here, and is run nowhere else, since the task's code is anybody's. It said: {last}"
