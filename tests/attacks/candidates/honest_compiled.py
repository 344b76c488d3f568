"""No attack: the compiler's own code, which needs its caches and headers inside the sandbox."""

# expects: accepted
# shows: when timed
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self._compiled = None

    def _forward(self, x):
        return F.relu(self.norm(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._compiled is None:
            self._compiled = torch.compile(self._forward, dynamic=False)
        return self._compiled(x)
