"""Cross entropy over a large vocabulary with smoothed labels, forward and backward.

    y[i] = (1 - a) * (lse(x[i]) - x[i, target[i]]) + a * (lse(x[i]) - mean(x[i])),   dx[i] = dy[i] * (softmax(x[i]) - t[i])

The last layer in training a language model: logits of 32 to 150 thousand classes are the largest tensor of the step.

Where time is lost: forward writes all log-probabilities, of which the loss reads few, and backward reads them to write
a gradient of the same size. The gradient needs the logits and two numbers a row; a forward pass that keeps only those
saves a third of the traffic and half of the memory.

Bytes: 12 per logit at float32. Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision",
arXiv 1512.00567; Hsu et al., "Liger Kernel", arXiv 2410.10989.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 4096, default=64, gpu=4096),
    "classes": Dim(8, 151936, default=4096, gpu=32000),
    "dtype": Choice("float32", "bfloat16"),
}
DIRECTION = "forward_backward"
SMOOTHING = 0.1


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), target, reduction="none", label_smoothing=SMOOTHING)


def get_inputs(rows: int = 64, classes: int = 4096, dtype: str = "float32") -> list[torch.Tensor]:
    logits = 2.0 * torch.randn(rows, classes, dtype=getattr(torch, dtype))
    return [logits, torch.randint(0, classes, (rows,))]


def get_init_inputs() -> list[int]:
    return []
