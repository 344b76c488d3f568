"""What runs beside an untrusted task file to have a call's kernels counted: ncu, and under it one warm call of the task.

Both run in the sandbox of the profile's disposable process; the program under ncu is a child of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import evaluator
import kernelbench_tasks

#: Characters of ncu's table that are read.
MOST_TEXT = 4 << 20
#: Of ncu, with their rules.
_SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats",
    "Occupancy", "SourceCounters",
)  # fmt: skip
_TABLE, _PRINTED = "counters.csv", "printed.txt"
#: A new Python in the sandbox may read our packages but not list the folder they lie in, in which imports would look.
_UNDER_NCU = """
import importlib.util, os, sys
for folder in {packages!r}:
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(os.path.basename(folder), path, submodule_search_locations=[folder])
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
from evaluator.profiling.counted_call import under_ncu
under_ncu({path!r}, {request!r})
"""
_WARM_CALLS = 3
_MOST_PRINTED = 64 << 10


def command(ncu: str, table: str, most_launches: int, program: list[str]) -> list[str]:
    """How ncu is called.

    Kernels are replayed once for each group of counters. Clocks are left as they are, which is a setting of the whole
    machine; caches too, since the call is a warm one. No configuration file adds an option: the task could write one.
    """
    return [
        ncu, "--config-file", "off", "--csv", "--page", "details", "--print-units", "base", "--log-file", table,
        "--replay-mode", "kernel", "--clock-control", "none", "--cache-control", "none",
        "--target-processes", "application-only", "--profile-from-start", "off", "--launch-count", str(most_launches),
        "--apply-rules", "yes", *(part for name in _SECTIONS for part in ("--section", name)), *program,
    ]  # fmt: skip


def main(path: str, target: str, request: dict[str, Any]) -> None:
    """Runs ncu around one call of the task file, and writes what came out as JSON.

    Args:
        path: of the task file.
        target: of the file to write: ``status`` (``ran``, ``late``, or ``hidden`` where the sandbox does not show ncu), ``tier``,
            ``table`` and ``printed``.
        request: ``ncu``, ``device``, ``dims``, ``launches``, ``deadline_s``, ``library_path``.
    """
    answer = {"status": "hidden", "tier": _tier(), "table": "", "printed": ""}
    if os.access(request["ncu"], os.X_OK):
        answer["status"] = _run(os.path.abspath(path), request)
        answer["table"] = _read(_TABLE, MOST_TEXT)
        answer["printed"] = _read(_PRINTED, _MOST_PRINTED)
    with open(target, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _tier() -> str:
    from evaluator.roles import confinement

    return "namespaces" if os.environ.get("TMPDIR") == confinement.TEMPORARY else "landlock"


def _run(path: str, request: dict[str, Any]) -> str:
    packages = [os.path.dirname(str(package.__file__)) for package in (evaluator, kernelbench_tasks)]
    call = _UNDER_NCU.format(packages=packages, path=path, request=request)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # The sandbox has no network, and TCP is one of the ways in which ncu may reach the program.
        "NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE": "uds",
        "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1",
    }
    if request["library_path"]:
        environment["LD_LIBRARY_PATH"] = request["library_path"]
    line = command(request["ncu"], _TABLE, request["launches"], [sys.executable, "-c", call])
    # Into files: a pipe would be waited for as long as any process holds its end, and the task's processes may outlive ncu.
    with open(_PRINTED, "wb") as printed:
        try:
            running = subprocess.Popen(
                line, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
            )
            running.wait(request["deadline_s"])
        except subprocess.TimeoutExpired:
            # Left to the referee, which ends every process in here: in one tier no process may signal another.
            return "late"
        except OSError as error:
            printed.write(f"==ERROR== {error.strerror}\n".encode())
    return "ran"


def _read(path: str, most_letters: int) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most_letters)
    except OSError:
        return ""


def under_ncu(path: str, request: dict[str, Any]) -> None:
    """One call of the task with ncu's counting on, after some with it off."""
    from evaluator.devices import is_accelerator
    from evaluator.devices.accelerator import torch_gpu
    from evaluator.profiling import subject

    one = subject.build(subject.load(path), request["dims"], request["device"])
    for _ in range(_WARM_CALLS):
        one.call()
    if not is_accelerator(request["device"]):
        one.call()
        return
    torch_gpu.synchronize()
    torch_gpu.profiler.start()
    one.call()
    torch_gpu.synchronize()
    torch_gpu.profiler.stop()


#: Run beside the task's text in a disposable process.
PROGRAM = (
    "from evaluator.profiling.counted_call import main\nmain('task.py', 'out/counters.json', {request!r})\n"
)
