"""Devices, memory, disk, and whether this machine's timing is steady enough to compare two programs."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from evaluator.counting import counted
from evaluator.devices import CpuDevice
from evaluator.doctor.findings import BAD, DOUBTFUL, GOOD, Line, Section
from evaluator.environment import thread_count

_LOOP_SECONDS = 0.4
_LOOP_STEPS = 20_000
#: Above these spreads of a fixed loop, the machine is shared: the referee needs more quads, or gives up with a
#: message.
_STEADY_SPREAD = 1.10
_USABLE_SPREAD = 1.5
_STEAL_SHARE = 0.02
_GIB = 1 << 30
_NEEDED_GIB = 2


def examine_devices() -> Section:
    """The CPU, and every GPU that NVML shows."""
    section = Section("Devices")
    facts = CpuDevice().facts()
    section.lines.append(Line("cpu", GOOD, f"{facts['device_name']}, {counted(thread_count(), 'thread')}"))
    section.facts = {"cpu": facts, "gpus": [], "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")}
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception as error:  # noqa: BLE001 - NVML raises its own kinds, a missing library another
        section.facts["nvml"] = str(error)
        section.lines.append(Line("gpu", GOOD, f"none; the CPU is used ({error})"))
        return section
    for index, handle in enumerate(handles):
        gpu = _gpu(handle)
        section.facts["gpus"].append(gpu)
        section.lines.append(_gpu_line(index, gpu))
    if not handles:
        section.lines.append(Line("gpu", GOOD, "a driver without a GPU; the CPU is used"))
    return section


def _gpu(handle: Any) -> dict[str, Any]:
    import pynvml

    def ask(function: Any, *arguments: Any) -> Any:
        try:
            return function(handle, *arguments)
        except pynvml.NVMLError:
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    power_mw = ask(pynvml.nvmlDeviceGetPowerManagementLimit)
    mig = ask(pynvml.nvmlDeviceGetMigMode)
    return {
        "name": str(ask(pynvml.nvmlDeviceGetName)),
        "uuid": str(ask(pynvml.nvmlDeviceGetUUID)),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "memory_bytes": memory.total if memory else None,
        "free_bytes": memory.free if memory else None,
        "power_limit_w": power_mw / 1000 if power_mw is not None else None,
        "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        "busy_percent": getattr(ask(pynvml.nvmlDeviceGetUtilizationRates), "gpu", None),
        "processes": len(ask(pynvml.nvmlDeviceGetComputeRunningProcesses) or ()),
        "mig": bool(mig and mig[0]),
    }


def _gpu_line(index: int, gpu: dict[str, Any]) -> Line:
    name = f"gpu {index}"
    free = f", {gpu['free_bytes'] / _GIB:.0f} GiB free" if gpu["free_bytes"] is not None else ""
    found = f"{gpu['name']}, driver {gpu['driver']}{free}, {gpu['uuid']}"
    if gpu["processes"] or (gpu["busy_percent"] or 0) > 5:
        found += (
            f"; in use: {counted(gpu['processes'], 'process', 'processes')}, {gpu['busy_percent']} % busy"
        )
        advice = "Wait for the other programs to end, or hide this GPU with CUDA_VISIBLE_DEVICES: they share its clock."
        return Line(name, DOUBTFUL, found, advice)
    if gpu["mig"]:
        return Line(name, DOUBTFUL, f"{found}; split by MIG", "Judge on a GPU that is not split.")
    return Line(name, GOOD, found)


def examine_timing() -> Section:
    """Runs a fixed loop repeatedly: its spread, and the time that the hypervisor took meanwhile."""
    section = Section("Clock")
    before, began = _cpu_ticks(), time.perf_counter()
    times_us: list[float] = []
    while time.perf_counter() - began < _LOOP_SECONDS:
        start_ns = time.perf_counter_ns()
        for _ in range(_LOOP_STEPS):
            pass
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    after = _cpu_ticks()
    median_us = statistics.median(times_us)
    spread = statistics.quantiles(times_us, n=20)[-1] / median_us
    stolen, total = (after[i] - before[i] for i in (0, 1))
    steal = stolen / total if total else 0.0
    load = os.getloadavg()[0]
    section.facts = {
        "loop_median_us": median_us,
        "spread_p95_over_median": spread,
        "steal_share": steal,
        "load_average": load,
    }
    found = f"a fixed loop takes {median_us:.0f} µs, its slowest twentieth {spread:.2f} times as long"
    if spread <= _STEADY_SPREAD:
        section.lines.append(Line("steadiness", GOOD, found))
    else:
        word = "Small differences will stay undecided" if spread <= _USABLE_SPREAD else "Little can be timed"
        advice = f"{word} while other programs run on these cores: stop them, or use a dedicated machine."
        section.lines.append(Line("steadiness", DOUBTFUL, found, advice))
    found = f"{steal:.1%} of the time was given to other machines"
    if steal <= _STEAL_SHARE:
        section.lines.append(Line("steal", GOOD, found))
    else:
        advice = "The host is overcommitted; ask for dedicated cores before you trust a timing."
        section.lines.append(Line("steal", DOUBTFUL, found, advice))
    if load <= thread_count() / 2:
        section.lines.append(Line("load", GOOD, f"{load:.1f} on {counted(thread_count(), 'thread')}"))
    else:
        advice = "Other programs want these cores; verdicts take longer and more shapes stay undecided."
        section.lines.append(
            Line("load", DOUBTFUL, f"{load:.1f} on {counted(thread_count(), 'thread')}", advice)
        )
    return section


def _cpu_ticks() -> tuple[int, int]:
    """(stolen, all) ticks of all processors since boot; zeros without /proc."""
    try:
        fields = [
            int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]
        ]
    except (OSError, ValueError):
        return 0, 0
    return fields[7], sum(fields)


def examine_resources(work_dir: Path) -> Section:
    """Free disk below the work folder, memory, and the limits of this process."""
    section = Section("Memory and disk")
    existing = next(folder for folder in (work_dir, *work_dir.parents) if folder.exists())
    free_disk = shutil.disk_usage(existing).free
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else 0  # noqa: S108
    available = _available_bytes()
    limit = _cgroup_limit("memory.max")
    section.facts = {
        "work_dir": str(work_dir),
        "writable": os.access(existing, os.W_OK),
        "free_disk_bytes": free_disk,
        "free_shared_memory_bytes": shared,
        "available_memory_bytes": available,
        "cgroup_memory_bytes": limit,
        "cgroup_processes": _cgroup_limit("pids.max"),
        "limit_processes": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "limit_address_space_bytes": resource.getrlimit(resource.RLIMIT_AS)[0],
        "limit_open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "role_memory_bytes": CpuDevice().memory_limit_bytes,
    }
    if not section.facts["writable"]:
        advice = "Give --work-dir a folder that you can write to, or set XDG_CACHE_HOME."
        section.lines.append(Line("work folder", BAD, f"{existing} cannot be written", advice))
    section.lines.append(
        _enough(
            "disk", free_disk, 10, f"free below {existing}", "Free some disk, or name another --work-dir."
        )
    )
    usable = min(available, limit) if limit is not None else available
    section.lines.append(
        _enough(
            "memory", usable, 6, "available", "End other programs, or raise this container's memory limit."
        )
    )
    limited = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limited != resource.RLIM_INFINITY:
        advice = "Raise it with ulimit -v unlimited: torch maps more than it uses."
        section.lines.append(Line("address space", DOUBTFUL, f"limited to {limited / _GIB:.1f} GiB", advice))
    for name, least in (("limit_processes", 512), ("limit_open_files", 512), ("cgroup_processes", 512)):
        value = section.facts[name]
        if value is not None and value != resource.RLIM_INFINITY and value < least:
            advice = f"Raise it to {least} or more (ulimit, or the container's limits)."
            section.lines.append(Line(name.replace("_", " "), DOUBTFUL, str(value), advice))
    return section


def _enough(name: str, found: int, wanted_gib: int, words: str, advice: str) -> Line:
    text = f"{found / _GIB:.1f} GiB {words}"
    if found < _NEEDED_GIB * _GIB:
        return Line(name, BAD, text, f"{advice} At least {_NEEDED_GIB} GiB are needed.")
    if found < wanted_gib * _GIB:
        return Line(name, DOUBTFUL, text, f"{advice} {wanted_gib} GiB are comfortable.")
    return Line(name, GOOD, text)


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limit(name: str) -> int | None:
    """The tightest limit of this process's control groups (version 2), None if there is none."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2].strip("/")
    except OSError:
        return None
    root = Path("/sys/fs/cgroup")
    limits = []
    folder = root / own
    while True:
        try:
            limits.append(int((folder / name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            pass  # no such file in the root group; "max" is not a number and means no limit
        if folder == root or root not in folder.parents:
            return min(limits, default=None)
        folder = folder.parent
