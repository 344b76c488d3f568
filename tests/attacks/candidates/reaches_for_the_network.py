"""Opens a connection."""

# expects: runtime_error
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        import socket

        socket.create_connection(("127.0.0.1", 80), timeout=1)
        return F.relu(self.norm(x))
