# task: conv_relu
# style: channels-last conversion
"""Converts to channels last for the convolution and back for the caller."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1)


    def forward(self, x):
        y = torch.relu(self.conv(x.contiguous(memory_format=torch.channels_last)))
        return y.contiguous()
