"""A layer of a graph network over a batch of graphs of different sizes, with a readout per graph.

    m[e] = silu((x[source[e]] @ a.T + x[target[e]] @ b.T + f[e] @ c.T) + bias)
    x'[n] = x[n] + (mean over edges e into n of m[e]) @ d.T,   y[g] = mean over nodes n of graph g of x'[n]

Molecules, meshes of simulations, programs: many small graphs side by side.

Where time is lost: two gathers, a product per edge, a scatter and a count by atomics, and a ragged mean: a dozen
kernels, all bound by memory, over tensors of edges x width that exist for nothing else. Edges grouped by target would
let a node sum its messages in registers; graphs are small enough to live in shared memory.

Bytes at float32: 8 * edges * width gathered and 16 * nodes * width. Source: Gilmer et al., "Neural Message Passing for
Quantum Chemistry", arXiv 1704.01212; Pfaff et al., "Learning Mesh-Based Simulation with Graph Networks", arXiv
2010.03409.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "graphs": Dim(1, 1024, default=32, gpu=1024),
    "mean_nodes": Dim(1, 32, default=12, gpu=32),
    "mean_edges": Dim(1, 8, default=4, gpu=8),
    "width": Dim(1, 256, default=48, gpu=256),
}
EDGE_FEATURES = 6


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.from_source = nn.Linear(width, width, bias=False)
        self.from_target = nn.Linear(width, width, bias=False)
        self.from_edge = nn.Linear(EDGE_FEATURES, width)
        self.update = nn.Linear(width, width, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)

    def forward(
        self,
        x: torch.Tensor,
        features: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
        offsets: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Products over nodes, of which there are fewer than edges, come before the gathering.
        message = self.from_source(x)[source] + self.from_target(x)[target] + self.from_edge(features)
        message = F.silu(message)
        received = torch.zeros_like(x).index_add(0, target, message)
        degree = x.new_zeros(x.shape[0]).index_add(0, target, torch.ones_like(message[:, 0]))
        x = x + self.update(received / degree.clamp(min=1.0).unsqueeze(1))
        place = torch.arange(x.shape[0], device=x.device)
        graph = torch.searchsorted(offsets, place, right=True) - 1
        total = x.new_zeros(offsets.shape[0] - 1, x.shape[1]).index_add(0, graph, x)
        return x, total / offsets.diff().clamp(min=1).unsqueeze(1)


def get_inputs(
    graphs: int = 32, mean_nodes: int = 12, mean_edges: int = 4, width: int = 48
) -> list[torch.Tensor]:
    nodes = graphs * mean_nodes
    edges = nodes * mean_edges
    inner = torch.randint(0, nodes + 1, (graphs - 1,)).sort().values
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), inner, torch.full((1,), nodes)])
    return [
        torch.randn(nodes, width),
        torch.randn(edges, EDGE_FEATURES),
        torch.randint(0, nodes, (edges,)),
        torch.randint(0, nodes, (edges,)),
        offsets,
    ]


def get_init_inputs(width: int = 48) -> list[int]:
    return [width]
