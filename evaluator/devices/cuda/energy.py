"""NVIDIA's counter of energy: millijoules since the driver was loaded, brought up to date about every 100 ms."""

from __future__ import annotations


class NvmlCounter:
    """All of one GPU, its memory included.

    Args:
        uuid: of the GPU.

    Raises:
        OSError: it has no such counter.
    """

    name = "NVML total energy of the GPU"
    refresh_s = 0.1

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self.read_mj()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from None

    def read_mj(self) -> float:
        """Millijoules since the driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
