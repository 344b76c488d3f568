"""Running logsumexp along the rows.

    y[i, j] = log(sum over k <= j of exp(x[i, k]))

Cumulative probabilities in the log domain: ordinal regression, the partial likelihood of Cox models, hidden Markov
models, ranking losses (ListMLE).

Where time is lost: the operator is associative but its library form is a general scan with two transcendental functions
a step, and compilers have no code of their own for it. A pair (maximum, scaled sum) per tile needs an exponential an
element and a logarithm for the output, in one pass.

Bytes: 8 per element at float32. Source: PyTorch documentation of torch.logcumsumexp; Cao et al., "Learning to Rank:
From Pairwise Approach to Listwise Approach", 2007.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=128, gpu=4096), "length": Dim(2, 16384, default=1024, gpu=8192)}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(x, dim=-1)


def get_inputs(rows: int = 128, length: int = 1024) -> list[torch.Tensor]:
    return [2.0 * torch.randn(rows, length)]


def get_init_inputs() -> list[int]:
    return []
