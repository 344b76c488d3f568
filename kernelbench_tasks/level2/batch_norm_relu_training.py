"""BatchNorm with statistics of the batch, a residual and ReLU, forward and backward.

    y = relu((x - mean) / sqrt(var + eps) * weight + bias + residual),   running statistics move by a tenth

The repeated end of a residual block in training; mean and variance run over batch and pixels.

Where time is lost: the normalization reads x twice, addition and ReLU are two more passes, and backward undoes them one
by one. Two passes forward and two backward are enough when everything elementwise is fused into them; small images
leave few elements per channel, large ones many: how channels are split over the machine differs.

Bytes at float32: 16 per element forward, 28 backward. Source: Ioffe, Szegedy, "Batch Normalization", arXiv 1502.03167;
He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(2, 32, default=4, gpu=32),
    "channels": Dim(1, 256, default=32, gpu=256),
    "height": Dim(2, 96, default=22, gpu=56),
    "width": Dim(2, 96, default=26, gpu=56),
}
DIRECTION = "forward_backward"
TRAINING = True


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        # nn.BatchNorm2d would also count batches, which is no work.
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        normed = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training,
            momentum=0.1,
        )
        return F.relu(normed + residual)


def get_inputs(batch: int = 4, channels: int = 32, height: int = 22, width: int = 26) -> list[torch.Tensor]:
    shape = (batch, channels, height, width)
    return [torch.randn(shape), torch.randn(shape)]


def get_init_inputs(channels: int = 32) -> list[int]:
    return [channels]
