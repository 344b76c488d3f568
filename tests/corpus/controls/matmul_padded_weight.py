# task: matmul_bias_relu
# style: packed weights
"""Weight padded to a multiple of 64 and transposed once, by from_reference."""

import torch
from torch import nn


class ModelNew(nn.Module):
    @classmethod
    def from_reference(cls, reference):
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        weight, bias = reference.linear.weight.detach(), reference.linear.bias.detach()
        model.cols = weight.shape[0]
        padding = -model.cols % 64
        model.register_buffer("weight", torch.nn.functional.pad(weight, (0, 0, 0, padding)).t().contiguous())
        model.register_buffer("bias", torch.nn.functional.pad(bias, (0, padding)))
        return model

    def forward(self, x):
        y = torch.relu_(torch.addmm(self.bias, x, self.weight))
        return y[:, : self.cols].contiguous()
