"""The devices on which modules are run and timed: one folder per back end, listed here."""

from __future__ import annotations

from typing import Literal, cast

from evaluator.devices.base import Backend, Device
from evaluator.devices.cpu import CPU
from evaluator.devices.cpu.device import CpuDevice
from evaluator.devices.cuda import CUDA
from evaluator.devices.cuda.device import CudaDevice
from evaluator.errors import EvaluatorError

#: Every back end by its name; :data:`DeviceName` lists the same names for annotations.
BACKENDS = {one.name: one for one in (CPU, CUDA)}
DeviceName = Literal["cpu", "cuda"]


def backend_of(name: str) -> Backend:
    """The back end of this name.

    Raises:
        evaluator.errors.EvaluatorError: there is none.
    """
    if name not in BACKENDS:
        raise EvaluatorError(f"unknown device {name!r}; known: {', '.join(BACKENDS)}")
    return BACKENDS[name]


def is_accelerator(name: str) -> bool:
    """Whether the back end of this name is for accelerators; False for an unknown name."""
    return name in BACKENDS and BACKENDS[name].is_accelerator


def open_device(name: str, visible_gpu: str | None = None) -> Device:
    """A device of the back end of this name (the first of ``visible_gpu``, see :class:`CudaDevice`).

    Raises:
        evaluator.errors.EvaluatorError: it is unknown or does not exist.
    """
    return backend_of(name).open(visible_gpu)


def usual_device() -> DeviceName:
    """The default device: an accelerator if there is one that torch can use, otherwise the CPU."""
    usable = [name for name, one in BACKENDS.items() if one.is_accelerator and one.is_usable()]
    return cast(DeviceName, (*usable, CPU.name)[0])


__all__ = [
    "BACKENDS", "CPU", "Backend", "CpuDevice", "CudaDevice", "Device", "DeviceName", "backend_of", "is_accelerator", "open_device",
    "usual_device",
]  # fmt: skip
