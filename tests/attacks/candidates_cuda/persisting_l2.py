"""E8: asks for all of the L2 that may persist, so that cold contents stay warm."""

# expects: accepted|runtime_error
# gains: nothing
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        import ctypes
        import ctypes.util

        for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
            try:
                runtime = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("no CUDA runtime library by name")
        runtime.cudaDeviceSetLimit(6, ctypes.c_size_t(64 << 20))

    def forward(self, x):
        return F.relu(self.norm(x))
