# task: layernorm_relu_add
# style: CUDA graph done right
# only: cuda
"""Three kernels in one launch; inputs copied in, output copied out."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(cols, eps=eps)
        self.graphs = {}

    def forward(self, x, residual):
        key = tuple(x.shape)
        if key not in self.graphs:
            held = x.clone(), residual.clone()
            torch.relu(self.norm(held[0])) + held[1]
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = torch.relu(self.norm(held[0])) + held[1]
            self.graphs[key] = graph, held, result
        graph, held, result = self.graphs[key]
        held[0].copy_(x)
        held[1].copy_(residual)
        graph.replay()
        return result.clone()
