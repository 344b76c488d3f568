"""A step of the optimizer Muon on one matrix: momentum, five steps of Newton-Schulz, decay and update.

    m' = beta m + (1 - beta) g;   n = (1 - beta) g + beta m';   x = n / |n|
    five times x = a x + (b s + c s @ s) @ x, s = x @ x.T;   w' = w (1 - rate * decay) - rate * sqrt(max(rows, cols)) * x

Training of recent language models; each matrix of a layer takes this step.

Where time is lost: s is symmetric, so half of two products is redundant; the polynomial in s is an elementwise pass
between products; fifteen products of small matrices are a chain of launches. Matrices of the same shape could go
together.

Operations: 5 * (4 * r^2 * c + 2 * r^3) with r the smaller side. Bytes at float32: 4 * 5 * rows * cols at best. Source:
Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is Scalable for LLM
Training", arXiv 2502.16982.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(2, 1024, default=192, gpu=1024), "cols": Dim(2, 2048, default=256, gpu=2048)}
PRECISION = "tf32"
BETA, RATE, DECAY, STEPS = 0.9, 0.2, 0.1, 5
A, B, C = 3.4445, -4.7750, 2.0315


class Model(nn.Module):
    def forward(
        self, weight: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        momentum = torch.lerp(momentum, gradient, 1 - BETA)
        x = torch.lerp(gradient, momentum, BETA)
        upright = x.shape[0] > x.shape[1]
        if upright:
            x = x.t()
        x = x / (x.norm() + 1e-7)
        for _ in range(STEPS):
            s = x @ x.t()
            x = A * x + torch.addmm(B * s, s, s, alpha=C) @ x
        if upright:
            x = x.t()
        size = RATE * max(weight.shape) ** 0.5
        return weight * (1 - RATE * DECAY) - size * x, momentum


def get_inputs(rows: int = 192, cols: int = 256) -> list[torch.Tensor]:
    return [torch.randn(rows, cols), torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return []
