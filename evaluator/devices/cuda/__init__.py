"""The back end for NVIDIA GPUs.

``device`` and ``nvml`` read a GPU through NVML and open no CUDA context. ``memory``, ``chain``, ``chain.cu``, ``gate`` and
``driver`` are what the referee's timed blocks need of CUDA's driver, ``ceilings`` measures what the GPU reaches at best.
"""

from __future__ import annotations

from typing import Any

from evaluator.devices.base import Backend
from evaluator.devices.cuda.device import CudaDevice
from evaluator.devices.cuda.nvml import is_usable, memory_bytes, visible


def _ceilings() -> dict[str, Any]:
    from evaluator.devices.cuda.ceilings import measure

    return measure()


CUDA = Backend(
    name="cuda",
    is_accelerator=True,
    cores_per_referee=2.5,
    most_referees=6,
    # Opening a task traces every compiled baseline again: 20 to 60 s while others do the same (H200); a candidate takes
    # 3 to 10 s.
    worth_sharing=12,
    open=CudaDevice,
    is_usable=is_usable,
    ceilings=_ceilings,
    visible=visible,
    memory_bytes=memory_bytes,
)
