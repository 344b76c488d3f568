# task: cross_entropy
# slip: mean over the wrong count
"""Returns the average, broadcast to all rows."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target).expand(logits.shape[0]).clone()
