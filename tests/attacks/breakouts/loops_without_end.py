"""Never comes back from its first call."""

# expects: timeout
import torch.nn.functional as F
from torch import nn


def attack():
    while True:
        pass


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
