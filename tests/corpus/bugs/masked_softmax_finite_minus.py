# task: masked_softmax
# slip: Inf handling
"""Replaces minus infinity by -10000 and forgets that a score may be added to it; masked keys of a row get weight when nothing else has any."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, scores, mask):
        return torch.softmax(scores + mask.clamp_min(-5.0), dim=-1)
