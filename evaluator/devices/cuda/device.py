"""One NVIDIA GPU, seen through NVML: the referee itself never opens a CUDA context here."""

from __future__ import annotations

import os
import platform
from typing import Any

from evaluator.baselines import modes_of
from evaluator.devices.base import Caps, Clock, EnergyCounter
from evaluator.devices.cuda.energy import NvmlCounter
from evaluator.errors import EvaluatorError

#: Bits of nvmlDeviceGetCurrentClocksEventReasons that mean throttling under load.
_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


class CudaDevice:
    """The first visible GPU. Its settings are read, never changed.

    Args:
        visible: the ``CUDA_VISIBLE_DEVICES`` of the processes that use it; this process's own by default.
    """

    kind = "cuda"
    is_accelerator = True
    baseline_modes = modes_of(accelerator=True, autocast=False)
    autocast_modes = modes_of(accelerator=True, autocast=True)
    block_target_us = 2000.0

    def __init__(self, visible: str | None = None) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            first = (visible or os.environ.get("CUDA_VISIBLE_DEVICES", "0")).split(",")[0].strip()
            if first.startswith("GPU-"):
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(first)
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
            self.index = int(pynvml.nvmlDeviceGetIndex(self._handle))
            self.count = int(pynvml.nvmlDeviceGetCount())
        except Exception as error:  # noqa: BLE001 - NVML raises its own kinds, import fails with another
            raise EvaluatorError(f"no usable NVIDIA GPU here: {error}") from None
        self.memory_limit_bytes = 64 << 30
        self.architecture = "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(self._handle))
        self.memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).total)
        # 8.8 GiB on an H200; a third of that is 22 calls of 128 MB.
        self.share_bytes = self.memory_bytes // 24
        self.input_cap_bytes = min(512 << 20, self.share_bytes // 8)
        # An eighth of the memory; rates that any current data-center GPU reaches without TF32.
        self.caps = Caps(self.memory_bytes // 8, 0.1, 3e13, 1.5e12, 8e-6)

    def clock(self) -> Clock | None:
        """NVML's current reading: the multiprocessors' clock and why it is throttled."""
        import pynvml

        try:
            mhz = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except pynvml.NVMLError:
            return None
        return Clock(int(mhz), tuple(name for bit, name in _REASONS.items() if bits & bit))

    def energy_counter(self) -> EnergyCounter | str:
        """NVML's."""
        try:
            return NvmlCounter(str(self.facts()["gpu_uuid"]))
        except OSError as error:
            return f"This GPU's driver counts no energy ({error}), so that joules were not measured."

    def facts(self) -> dict[str, Any]:
        """Name, uuid, driver and power limit."""
        import pynvml

        return {
            "device": "cuda",
            "device_name": str(pynvml.nvmlDeviceGetName(self._handle)),
            "gpu_uuid": str(pynvml.nvmlDeviceGetUUID(self._handle)),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(self._handle) / 1000,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
