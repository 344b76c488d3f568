"""The CPU of this machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from evaluator.baselines import modes_of
from evaluator.devices.base import Caps, Clock, EnergyCounter
from evaluator.devices.cpu.energy import open_counter


class CpuDevice:
    """All cores of this machine. An untrusted process may use half of the memory, at most 16 GiB."""

    kind = "cpu"
    is_accelerator = False
    index = 0
    count = 1
    baseline_modes = modes_of(accelerator=False, autocast=False)
    autocast_modes = modes_of(accelerator=False, autocast=True)
    input_cap_bytes = 32 << 20
    memory_bytes = 0
    share_bytes = 0
    block_target_us = 2500.0
    architecture = ""

    def __init__(self) -> None:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.memory_limit_bytes = min(16 << 30, total // 2)
        # An eighth of what a process may use, and about two cores' rates. The referee shares that memory and
        # keeps, for each output, the expected values, the tolerance, and the result, in float64.
        self.caps = Caps(self.memory_limit_bytes // 8, 1.0, 3e10, 5e9, 5e-6, judging_bytes=4 * 8)

    def clock(self) -> Clock | None:
        """Not read: a virtual machine reports a constant."""
        return None

    def energy_counter(self) -> EnergyCounter | str:
        """RAPL's, if there is one."""
        return open_counter()

    def facts(self) -> dict[str, Any]:
        """Model name and platform."""
        return {
            "device": "cpu",
            "device_name": _model_name(),
            "gpu_uuid": None,
            "driver": None,
            "power_limit_w": None,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }


def core_cache_bytes() -> int:
    """Size of one core's second-level cache; 1 MiB if unknown."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (folder / "level").read_text().strip() == "2":
                return int((folder / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            break
    return 1 << 20


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or platform.machine()
