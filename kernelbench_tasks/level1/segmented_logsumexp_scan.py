"""Running logsumexp along the rows that starts anew at each flag.

    y[i, j] = log(exp(x[i, j]) + (0 if reset[i, j] or j = 0 else exp(y[i, j - 1])))

Forward probabilities over packed sequences, discounted log-returns per episode, alignment scores per word.

Where time is lost: torch's running logsumexp has no resets; by doubling, as here, log2(length) passes compute an
exponential and a logarithm per element each. A scan that carries maximum, scaled sum and flag takes one exponential an
element, a logarithm at the end, and one pass.

Bytes: 9 per element at float32. Source: Blelloch, "Prefix Sums and Their Applications", CMU-CS-90-190; Heinsen,
"Efficient Parallelization of a Ubiquitous Sequential Computation", arXiv 2311.06281.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 2048, default=64, gpu=2048), "length": Dim(2, 8192, default=600, gpu=8192)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
        total, stopped = x, reset
        length, step = x.shape[-1], 1
        while step < length:
            before = F.pad(total, (step, 0), value=-torch.inf)[:, :length]
            total = torch.logaddexp(total, before.masked_fill(stopped, -torch.inf))
            stopped = stopped | F.pad(stopped, (step, 0), value=True)[:, :length]
            step *= 2
        return total


def get_inputs(rows: int = 64, length: int = 600) -> list[torch.Tensor]:
    return [2.0 * torch.randn(rows, length), torch.rand(rows, length) < 0.05]


def get_init_inputs() -> list[int]:
    return []
