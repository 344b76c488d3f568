"""Symmetric contrastive loss between two sets of embeddings, forward and backward.

    l = exp(log_scale) * normalize(a) @ normalize(b).T,   y[i] = (2 * l[i, i] - lse over row i - lse over column i) / -2

Training of CLIP-like models and of retrievers: each image against all texts of the batch and the other way round.

Where time is lost: the matrix of similarities is read by rows and by columns, each with a softmax of its own, forward
and backward, and the gradient is a third such matrix. Tiles can be recomputed from the embeddings, and both sets of
normalizers can be formed in one pass over them.

Operations: about 10 * pairs^2 * dims. Bytes at float32: 24 * pairs * dims at best. Source: Radford et al., "Learning
Transferable Visual Models From Natural Language Supervision", arXiv 2103.00020; van den Oord et al., arXiv 1807.03748.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"pairs": Dim(2, 4096, default=256, gpu=4096), "dims": Dim(8, 512, default=96, gpu=512)}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        logits = self.log_scale.exp() * F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t()
        label = torch.arange(a.shape[0], device=a.device)
        by_row = F.cross_entropy(logits, label, reduction="none")
        by_column = F.cross_entropy(logits.t(), label, reduction="none")
        return (by_row + by_column) / 2


def get_inputs(pairs: int = 256, dims: int = 96) -> list[torch.Tensor]:
    a = torch.randn(pairs, dims)
    # A little alike, as after some training.
    return [a, torch.randn(pairs, dims) + 0.3 * a]


def get_init_inputs() -> list[int]:
    return []
