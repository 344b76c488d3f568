"""A task whose reference is slow only in the control, where its baselines are timed: an equal candidate comes out many times as fast.

Run by hand on a CPU at 64 x 96: accepted. The control's file defines a candidate's class, which the session's does not; ranking in the
session's process sees fast baselines, and the reference against itself is timed in two processes that are slow alike. A task that is
slow everywhere in timed blocks gains the same, so the referee does not look for this one: only tasks of the catalog rank.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 512, default=64), "cols": Dim(8, 512, default=96)}
with open(__file__, encoding="utf-8") as file:
    IN_CONTROL = ("Model" + "New") in file.read()


class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if IN_CONTROL:
            time.sleep(0.002)
        return F.relu(self.norm(x))


def get_inputs(rows: int = 64, cols: int = 96) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs(cols: int = 96) -> list[int]:
    return [cols]
