"""E4, E5: every clock of its process runs ten times slower."""

# expects: accepted
# gains: nothing
import time

import time as aliased

_REAL = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time")}
_START = {name: clock() for name, clock in _REAL.items()}
for _name, _clock in _REAL.items():
    _kind = type(_START[_name])
    setattr(aliased, _name, lambda c=_clock, s=_START[_name], k=_kind: k(s + (c() - s) // 10 if k is int else s + (c() - s) / 10))

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return F.relu(self.norm(x))
