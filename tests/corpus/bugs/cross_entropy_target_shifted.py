# task: cross_entropy
# slip: off-by-one index
"""Classes counted from one."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        picked = logits.gather(1, (target - 1).clamp_min(0)[:, None])[:, 0]
        return torch.logsumexp(logits, -1) - picked
