"""Enters a user namespace of its own, where it would be root."""

# expects: runtime_error
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x10000000) != 0:
            raise PermissionError(ctypes.get_errno(), "no namespace inside")
        return torch.zeros_like(x)
