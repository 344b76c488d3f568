# task: softmax
# style: CUDA graph done right
# only: cuda
"""Captured once per shape; each call copies its input in and a fresh output out."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def capture(self, x):
        held = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.softmax(held, dim=-1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.softmax(held, dim=-1)
        return graph, held, result

    def forward(self, x):
        key = (tuple(x.shape), x.dtype)
        if key not in self.graphs:
            self.graphs[key] = self.capture(x)
        graph, held, result = self.graphs[key]
        held.copy_(x)
        graph.replay()
        return result.clone()
