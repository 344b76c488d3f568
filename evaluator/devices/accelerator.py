"""The accelerator of this process. Torch is built for one kind, so a process uses one back end, chosen here.

Only code that needs torch imports this module; everything else asks :data:`evaluator.devices.BACKENDS`.
"""

from __future__ import annotations

import torch

# PyTorch's API of its GPUs. ROCm builds of torch have it under the same name.
import torch.cuda as torch_gpu

from evaluator.devices.cuda import CUDA as BACKEND
from evaluator.devices.cuda import chain as device_chain
from evaluator.devices.cuda import driver as device_driver
from evaluator.devices.cuda import gate as device_gate
from evaluator.devices.cuda import memory as device_memory

#: Torch's name of the device, which is "cuda" in ROCm builds, too.
GPU_TYPE = "cuda"
#: What a timed block passes through on it, see :mod:`evaluator.roles.landmarks`.
TIMED_PATH = (device_chain, device_driver, device_gate, device_memory)


def on_gpu(device: torch.device) -> bool:
    """Whether this is an accelerator, not the CPU."""
    return device.type == GPU_TYPE


__all__ = [
    "BACKEND", "GPU_TYPE", "TIMED_PATH", "device_chain", "device_gate", "device_memory", "on_gpu", "torch_gpu",
]  # fmt: skip
