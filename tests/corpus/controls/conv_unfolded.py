# task: conv_relu
# style: packed weights
"""The convolution as a matrix product, with the weight packed once at construction."""

import torch
from torch import nn


class ModelNew(nn.Module):
    @classmethod
    def from_reference(cls, reference):
        model = cls()
        nn.Module.__init__(model)
        model.register_buffer("weight", reference.conv.weight.detach().flatten(1).contiguous())
        model.register_buffer("bias", reference.conv.bias.detach().clone()[:, None])
        return model

    def forward(self, x):
        columns = torch.nn.functional.unfold(x, 3, padding=1)
        y = torch.relu(self.weight @ columns + self.bias)
        return y.view(x.shape[0], -1, *x.shape[2:])
