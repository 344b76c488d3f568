# task: cross_entropy
# slip: overflow
"""log(sum(exp)) without the maximum."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return logits.exp().sum(-1).log() - logits.gather(1, target[:, None])[:, 0]
