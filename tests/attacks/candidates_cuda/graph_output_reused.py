"""E28, E30: returns the graph's own output, which the next replay overwrites."""

# expects: cheating|incorrect|contract_violation
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
            held = x.clone()
            F.relu(self.norm(held))
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = F.relu(self.norm(held))
            self.graphs[key] = graph, held, y
        graph, held, y = self.graphs[key]
        held.copy_(x)
        graph.replay()
        return y
