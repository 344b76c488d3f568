"""Projection to a vocabulary with capped logits, cross entropy and a penalty on the normalizer, forward and backward.

    l = cap * tanh(x @ weight.T / cap),   z = logsumexp(l),   y[i] = z[i] - l[i, target[i]] + 0.1 * z[i]^2 / log(V)^2

The end of training a language model (Gemma 2 caps, PaLM penalizes): logits take more memory than all layers together.

Where time is lost: logits, capped logits, probabilities and two gradients of rows x vocabulary numbers go through
memory, gigabytes for a few thousand tokens. In chunks of rows and columns, with the gradients formed while a chunk is
near, nothing of that size need exist.

Operations: 6 * rows * inner * vocabulary. Bytes at float32: 8 * (rows + vocabulary) * inner at best. Source: Wijmans et
al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv 2411.09009; Chowdhery et al., "PaLM", arXiv
2204.02311.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 2048, default=64, gpu=2048),
    "inner": Dim(8, 1024, default=128, gpu=1024),
    "vocabulary": Dim(16, 32768, default=2000, gpu=32000),
}
DIRECTION = "forward_backward"
PRECISION = "tf32"
CAP, PENALTY = 10.0, 0.1


class Model(nn.Module):
    def __init__(self, inner: int, vocabulary: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, inner) * inner**-0.5)
        self.penalty = PENALTY / math.log(vocabulary) ** 2

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = CAP * torch.tanh(F.linear(x, self.weight) / CAP)
        loss = F.cross_entropy(logits, target, reduction="none")
        return loss + self.penalty * logits.logsumexp(-1).square()


def get_inputs(rows: int = 64, inner: int = 128, vocabulary: int = 2000) -> list[torch.Tensor]:
    return [2.0 * torch.randn(rows, inner), torch.randint(0, vocabulary, (rows,))]


def get_init_inputs(inner: int = 128, vocabulary: int = 2000) -> list[int]:
    return [inner, vocabulary]
