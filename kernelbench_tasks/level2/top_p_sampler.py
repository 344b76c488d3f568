"""Samples a token from the most probable ones: at most k, and no more than make up a share of the probability.

    tokens in order of their logits, the first of equals first; a token is kept while fewer than k are, and the probability of
    those before it is below p; the answer is the first kept one whose running sum exceeds u times the sum of all kept

The last step of generating text, for each sequence and token.

Where time is lost: sorting a vocabulary of 150 thousand for a choice among forty takes five to ten passes, and the
chain behind it another eight small kernels. A threshold by bisection or by a histogram of the bits of the logits needs
two passes and sorts nothing but the survivors.

Bytes: 4 per logit at float32. Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", arXiv
1904.09751; FlashInfer documentation on sampling without sorting.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "rows": Dim(1, 256, default=16, gpu=256),
    "vocabulary": Dim(64, 151936, default=8192, gpu=128256),
    "k": Dim(2, 64, default=40, gpu=50),
}
SHARE = 0.9


class Model(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        ordered, token = torch.sort(logits, dim=-1, descending=True, stable=True)
        probability = torch.softmax(ordered, dim=-1)[:, : self.k]
        before = probability.cumsum(-1) - probability
        kept = torch.where(before < SHARE, probability, 0.0)
        running = kept.cumsum(-1)
        beyond = running > u.unsqueeze(-1) * running[:, -1:]
        # argmax gives the first of those that are true.
        return token.gather(-1, beyond.int().argmax(-1, keepdim=True)).squeeze(-1)


def get_inputs(rows: int = 16, vocabulary: int = 8192) -> list[torch.Tensor]:
    return [3.0 * torch.randn(rows, vocabulary), torch.rand(rows)]


def get_init_inputs(k: int = 40) -> list[int]:
    return [k]
