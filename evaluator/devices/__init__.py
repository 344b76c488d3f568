"""CPU and CUDA behind one interface: what the referee must know of a device, and nothing more."""

from __future__ import annotations

from evaluator.devices.base import Device
from evaluator.devices.cpu import CpuDevice
from evaluator.devices.cuda import CudaDevice


def open_device(name: str, visible_gpu: str | None = None) -> Device:
    """The device called ``cpu`` or ``cuda`` (there the first of ``visible_gpu``, see :class:`CudaDevice`).

    Raises:
        evaluator.errors.EvaluatorError: it is unknown or not there.
    """
    from evaluator.errors import EvaluatorError

    if name == "cpu":
        return CpuDevice()
    if name == "cuda":
        return CudaDevice(visible_gpu)
    raise EvaluatorError(f"unknown device {name!r}; known: cpu, cuda")


__all__ = ["CpuDevice", "CudaDevice", "Device", "open_device"]
