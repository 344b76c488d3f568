"""Mean, variance, skewness and kurtosis of each row.

    y[i] = (m, v, mean((x - m)^3) / v^1.5, mean((x - m)^4) / v^2),   m = mean(x[i]), v = mean((x - m)^2) + eps

Monitoring of activations and gradients, features of time series and images, tests for normality.

Where time is lost: eager goes over the rows for each power and keeps the centered rows and their powers in memory,
eight transfers or more where one would do. A single pass has to merge partial moments with care: sums of raw powers
cancel.

Bytes: 4 per element at float32, plus 16 per row. Source: Pébay, "Formulas for Robust, One-Pass Parallel Computation of
Covariances and Arbitrary-Order Statistical Moments", Sandia report SAND2008-6212.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 16384, default=512, gpu=8192), "cols": Dim(8, 16384, default=1024, gpu=4096)}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        centered = x - mean
        squares = centered * centered
        variance = squares.mean(-1, keepdim=True) + self.eps
        skewness = (squares * centered).mean(-1, keepdim=True) / variance.pow(1.5)
        kurtosis = (squares * squares).mean(-1, keepdim=True) / variance.square()
        return torch.cat([mean, variance, skewness, kurtosis], dim=-1)


def get_inputs(rows: int = 512, cols: int = 1024) -> list[torch.Tensor]:
    # Skewed, or the third moment would be nothing but noise around zero.
    x = torch.randn(rows, cols)
    return [x + 0.4 * x * x]


def get_init_inputs() -> list[int]:
    return []
