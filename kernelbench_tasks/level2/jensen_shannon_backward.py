"""Jensen-Shannon divergence between two sets of logits, forward and backward.

    y[i] = (KL(p || m) + KL(q || m)) / 2,   p = softmax(x[i]), q = softmax(z[i]), m = (p + q) / 2

On-policy distillation of language models, mutual learning of two networks, consistency under augmentation.

Where time is lost: two log-softmaxes, their exponentials, the mixture and its logarithm, two weighted sums: ten tensors
of rows x classes forward, and again backward. The gradient of either side follows from its own logits, the two
normalizers of the row and the loss, so two passes over the logits are enough.

Bytes: 32 per logit pair at float32. Source: Lin, "Divergence measures based on the Shannon entropy", 1991; Agarwal et
al., "On-Policy Distillation of Language Models", arXiv 2306.13649.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 1024, default=64, gpu=1024), "classes": Dim(8, 65536, default=2000, gpu=32000)}
DIRECTION = "forward_backward"


class Model(nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        log_p, log_q = F.log_softmax(x, dim=-1), F.log_softmax(z, dim=-1)
        log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
        both = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
        return both.sum(-1) / 2


def get_inputs(rows: int = 64, classes: int = 2000) -> list[torch.Tensor]:
    return [2.0 * torch.randn(rows, classes), 2.0 * torch.randn(rows, classes)]


def get_init_inputs() -> list[int]:
    return []
