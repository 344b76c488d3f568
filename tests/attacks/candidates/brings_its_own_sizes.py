"""E58, E59: redefines the task in its own file, with sizes that suit it."""

# expects: accepted
# gains: nothing
import torch
import torch.nn.functional as F
from torch import nn


DIMS = {}
batch_size = rows = cols = 1


class Model(nn.Module):
    def forward(self, x):
        return x


def get_inputs(rows=1, cols=1):
    return [torch.zeros(1, 1)]


def get_init_inputs(cols=1):
    return [1]


__import__("sys").modules["task_file"] = __import__("sys").modules[__name__]


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return F.relu(self.norm(x))
