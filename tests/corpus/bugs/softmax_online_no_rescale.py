# task: softmax
# slip: forgotten rescaling
"""Online softmax that does not rescale the running sum when the maximum grows."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        top = torch.full((x.shape[0], 1), float("-inf"), device=x.device)
        total = torch.zeros(x.shape[0], 1, device=x.device)
        for part in x.split(64, dim=-1):
            top = torch.maximum(top, part.amax(-1, keepdim=True))
            total = total + (part - top).exp().sum(-1, keepdim=True)
        return (x - top).exp() / total
