# task: swiglu
# style: streams used properly
# only: cuda
"""Works on a stream of its own that waits for the caller's and is waited for."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, gate, up):
        caller = torch.cuda.current_stream()
        self.stream.wait_stream(caller)
        with torch.cuda.stream(self.stream):
            y = torch.nn.functional.silu(gate) * up
        caller.wait_stream(self.stream)
        y.record_stream(caller)
        return y
