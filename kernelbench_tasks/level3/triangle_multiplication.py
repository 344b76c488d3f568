"""Triangular update of a pair representation with outgoing edges.

    n = layer_norm(z);   a = sigmoid(n @ ga.T) * (n @ pa.T), b likewise;   t[i, j] = sum over k of a[i, k] * b[j, k] / sqrt(length)
    y = z + sigmoid(n @ g.T) * (layer_norm(t) @ out.T)

AlphaFold 2 and its successors predict structures with dozens of these over tensors of length x length x channels.

Where time is lost: five projections of the largest tensor of the model, each followed by its own elementwise passes,
then a product that wants channels outermost: two transposed copies in and one out, with a norm over channels behind it.
Gates and projections belong together, and the orders can be chosen so that nothing is copied.

Operations: 2 * length^3 * middle + 10 * length^2 * channels * middle. Bytes at float32: about 60 per pair and channel
in eager. Source: Jumper et al., "Highly accurate protein structure prediction with AlphaFold", 2021, supplementary
algorithm 11.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "length": Dim(1, 320, default=48, gpu=256),
    "channels": Dim(4, 128, default=32, gpu=128),
    "middle": Dim(4, 128, default=32, gpu=128),
}
PRECISION = "tf32"


class Model(nn.Module):
    def __init__(self, channels: int, middle: int):
        super().__init__()
        self.first_norm = nn.LayerNorm(channels)
        self.gates = nn.Linear(channels, 2 * middle)
        self.projections = nn.Linear(channels, 2 * middle)
        self.second_norm = nn.LayerNorm(middle)
        self.out_gate = nn.Linear(channels, channels)
        self.out = nn.Linear(middle, channels)
        for linear in (self.gates, self.projections, self.out_gate, self.out):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        normed = self.first_norm(z)
        a, b = (torch.sigmoid(self.gates(normed)) * self.projections(normed)).chunk(2, dim=-1)
        together = torch.einsum("ikc,jkc->ijc", a, b) * z.shape[0] ** -0.5
        return z + torch.sigmoid(self.out_gate(normed)) * self.out(self.second_norm(together))


def get_inputs(length: int = 48, channels: int = 32) -> list[torch.Tensor]:
    return [torch.randn(length, length, channels)]


def get_init_inputs(channels: int = 32, middle: int = 32) -> list[int]:
    return [channels, middle]
