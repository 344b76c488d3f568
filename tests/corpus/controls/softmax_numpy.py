# task: softmax
# style: another library
# only: cpu
"""Computed by numpy on the tensor's own memory, into fresh memory."""

import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values = x.numpy()
        powers = np.exp(values - values.max(-1, keepdims=True))
        return torch.from_numpy(powers / powers.sum(-1, keepdims=True))
