"""One NVIDIA GPU, seen through NVML: the referee itself never opens a CUDA context."""

from __future__ import annotations

import os
import platform
from typing import Any

from evaluator.errors import EvaluatorError


class CudaDevice:
    """The first visible GPU. Its settings are read, never changed."""

    kind = "cuda"
    baseline_modes = (
        "eager",
        "compile_default",
        "compile_max_autotune",
        "compile_reduce_overhead",
        "cuda_graph",
    )
    input_cap_bytes = 512 << 20
    block_target_us = 2000.0

    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
            index = int(visible) if visible.isdigit() else 0
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # noqa: BLE001 - NVML raises its own kinds, import fails with another
            raise EvaluatorError(f"no usable NVIDIA GPU here: {error}") from None
        self.memory_limit_bytes = 64 << 30
        self.architecture = "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(self._handle))

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
