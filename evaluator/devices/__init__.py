"""CPU and CUDA behind one interface: only what the referee needs to know about a device."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from evaluator.devices.base import Device
from evaluator.devices.cpu import CpuDevice
from evaluator.devices.cuda import CudaDevice


def open_device(name: str, visible_gpu: str | None = None) -> Device:
    """The device called ``cpu`` or ``cuda`` (the first of ``visible_gpu``, see :class:`CudaDevice`).

    Raises:
        evaluator.errors.EvaluatorError: it is unknown or does not exist.
    """
    from evaluator.errors import EvaluatorError

    if name == "cpu":
        return CpuDevice()
    if name == "cuda":
        return CudaDevice(visible_gpu)
    raise EvaluatorError(f"unknown device {name!r}; known: cpu, cuda")


def usual_device() -> Literal["cpu", "cuda"]:
    """The default device: ``cuda`` if there is an NVIDIA GPU and a torch that was built for one."""
    import pynvml

    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "cpu"
    try:
        pynvml.nvmlInit()
        there = pynvml.nvmlDeviceGetCount() > 0 and "+cpu" not in version("torch")
    except (pynvml.NVMLError, PackageNotFoundError):
        return "cpu"
    return "cuda" if there else "cpu"


__all__ = ["CpuDevice", "CudaDevice", "Device", "open_device", "usual_device"]
