"""Attention over the edges of a graph, forward and backward.

    s[e] = leaky_relu(a[h] . x[source[e], h] + b[h] . x[target[e], h]),   w = softmax of s over the edges into a target
    y[t, h] = x[t, h] + sum over edges e into t of w[e, h] * x[source[e], h]

Graph attention networks: molecules, citations, roads, social graphs.

Where time is lost: per edge and head, features are gathered into memory, scaled and scattered by atomics; softmax takes
three more scatters, and all of it is saved and walked back. Grouped by target, each node gathers its sources, keeps
maximum and sum in registers and writes once; backward recomputes the weights from two numbers per node.

Bytes at float32: about 12 * edges * heads * lanes gathered, best from a cache. Source: Veličković et al., "Graph
Attention Networks", arXiv 1710.10903; Rahman, Sujon, Azad, "FusedMM", arXiv 2011.06391.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "nodes": Dim(1, 32768, default=300, gpu=32768),
    "edges": Dim(1, 262144, default=2000, gpu=262144),
    "heads": Dim(1, 8, default=4, gpu=8),
    "lanes": Dim(1, 64, default=16, gpu=64),
}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self, heads: int, lanes: int):
        super().__init__()
        self.a = nn.Parameter(torch.randn(heads, lanes) * lanes**-0.5)
        self.b = nn.Parameter(torch.randn(heads, lanes) * lanes**-0.5)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nodes, heads, _ = x.shape
        score = F.leaky_relu((x * self.a).sum(-1)[source] + (x * self.b).sum(-1)[target], 0.2)
        where = target.unsqueeze(1).expand_as(score)
        # The maximum only keeps the exponential in range; its derivative cancels.
        largest = score.detach().new_full((nodes, heads), -torch.inf)
        largest = largest.scatter_reduce(0, where, score.detach(), "amax")
        weight = torch.exp(score - largest[target])
        total = torch.zeros_like(largest).index_add(0, target, weight)
        weight = weight / total[target]
        return x.index_add(0, target, weight.unsqueeze(-1) * x[source])


def get_inputs(nodes: int = 300, edges: int = 2000, heads: int = 4, lanes: int = 16) -> list[torch.Tensor]:
    # Few nodes have most of the edges.
    target = (torch.rand(edges).pow(2) * nodes).long().clamp(max=nodes - 1)
    return [torch.randn(nodes, heads, lanes), torch.randint(0, nodes, (edges,)), target]


def get_init_inputs(heads: int = 4, lanes: int = 16) -> list[int]:
    return [heads, lanes]
