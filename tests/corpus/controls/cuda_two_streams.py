# task: matmul_bias_relu
# style: streams used properly
# only: cuda
"""Two halves of the rows on two streams, joined by events before it returns."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, cols):
        super().__init__()
        self.linear = nn.Linear(inner, cols)
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def forward(self, x):
        caller = torch.cuda.current_stream()
        y = torch.empty(x.shape[0], self.linear.out_features, device=x.device, dtype=x.dtype)
        begin = caller.record_event()
        half = (x.shape[0] + 1) // 2
        for stream, part, out in zip(self.streams, x.split(half), y.split(half)):
            with torch.cuda.stream(stream):
                stream.wait_event(begin)
                torch.addmm(self.linear.bias, part, self.linear.weight.t(), out=out)
                out.relu_()
                caller.wait_event(stream.record_event())
        return y
