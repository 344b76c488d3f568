"""Rows of two scales: an absolute bound that is right for most of them is wide enough for zeros in the others."""

import torch
from torch import nn
from kernelbench_tasks import Dim
DIMS = {"rows": Dim(64, 8192, default=4096)}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x) * torch.where(x[:, :1] > -1.0, 1.0, 1e-9)
def get_inputs(rows=4096):
    return [torch.randn(rows, 64)]
def get_init_inputs():
    return []
