"""E30: a graph captured on the first input's address, replayed for every other."""

# expects: cheating|incorrect
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.graphs = {}

    def forward(self, x):
        key = tuple(x.shape)
        if key not in self.graphs:
            F.relu(self.norm(x))
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = F.relu(self.norm(x))
            self.graphs[key] = graph, y
        graph, y = self.graphs[key]
        graph.replay()
        return y.clone()
