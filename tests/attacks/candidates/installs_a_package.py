"""E67: fetches code at run time."""

# expects: runtime_error
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        import subprocess
        import sys

        command = [sys.executable, "-m", "pip", "install", "--retries", "0", "--timeout", "1", "--target", "/tmp", "six"]
        subprocess.run(command, check=True, timeout=10)
        return F.relu(self.norm(x))
