"""Cross entropy of each row against its class.

    y[i] = log(sum over j of exp(x[i, j])) - x[i, target[i]]

The loss of classifiers and language models, before averaging.

Where time is lost: one number a row comes out, so the logits should be read once and nothing else moved. Composed of
log_softmax and a lookup, the log-probabilities of all classes are written to memory, although one of them per row is used.

Bytes: 4 per element at float32, plus 12 per row. Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM
Training", arXiv 2410.10989, section 3.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Choice, Dim

DIMS = {
    "rows": Dim(1, 16384, default=512, gpu=4096),
    "classes": Dim(8, 32000, default=1024, gpu=32000),
    "dtype": Choice("float32"),
}


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, reduction="none")


def get_inputs(rows: int = 512, classes: int = 1024, dtype: str = "float32") -> list[torch.Tensor]:
    logits = torch.randn(rows, classes, dtype=getattr(torch, dtype))
    return [logits, torch.randint(0, classes, (rows,))]


def get_init_inputs() -> list[int]:
    return []
