# task: masked_softmax
# slip: Inf handling
"""Online softmax whose first block is all masked: -inf minus -inf is NaN."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, scores, mask):
        x = scores + mask
        top = torch.full((x.shape[0], 1), float("-inf"), device=x.device)
        total = torch.zeros(x.shape[0], 1, device=x.device)
        for part in x.split(4, dim=-1):
            new_top = torch.maximum(top, part.amax(-1, keepdim=True))
            total = total * (top - new_top).exp() + (part - new_top).exp().sum(-1, keepdim=True)
            top = new_top
        return (x - top).exp() / total
