"""A step of AdamW over all tensors of a model, with a clipped global norm and a running average of the weights.

    g' = g * min(1, c / |all g|),   m' = b1 m + (1 - b1) g',   v' = b2 v + (1 - b2) g'^2
    p' = p - lr * (wd * p + m' / (1 - b1^t) / (sqrt(v' / (1 - b2^t)) + eps)),   a' = a + (1 - b3) (p' - a)

Without waiting for the norm on the host, and with new tensors as results, so that steps can be undone.

Where time is lost: a norm over all gradients, then a dozen passes over lists of tensors of very different size, each
with its own launches. The update needs every number once: five reads and four writes an element in a launch over a
table of pointers, after one that forms the norm.

Bytes: 36 per element at float32. Source: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101;
PyTorch documentation of torch.optim.AdamW (fused).
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"count": Dim(1, 48, default=24, gpu=48), "width": Dim(4, 512, multiple_of=4, default=96, gpu=512)}
RATE, DECAY, BETA1, BETA2, AVERAGE, EPS, STEP = 0.05, 0.1, 0.9, 0.95, 0.99, 1e-8, 20

Tensors = list[torch.Tensor]


class Model(nn.Module):
    def forward(
        self, weights: Tensors, gradients: Tensors, first: Tensors, second: Tensors, averages: Tensors
    ) -> tuple[Tensors, Tensors, Tensors, Tensors]:
        # The optimizers of torch.optim work in place; these are the operations that they are made of.
        norm = torch.nn.utils.get_total_norm(gradients)
        most = 0.8 * sum(gradient.numel() for gradient in gradients) ** 0.5
        clipped = torch._foreach_mul(gradients, torch.clamp(most / norm, max=1.0))
        first = torch._foreach_lerp(first, clipped, 1 - BETA1)
        second = torch._foreach_mul(second, BETA2)
        second = torch._foreach_addcmul(second, clipped, clipped, 1 - BETA2)
        root = torch._foreach_sqrt(torch._foreach_div(second, 1 - BETA2**STEP))
        root = torch._foreach_add(root, EPS)
        weights = torch._foreach_mul(weights, 1 - RATE * DECAY)
        weights = torch._foreach_addcdiv(weights, first, root, -RATE / (1 - BETA1**STEP))
        averages = torch._foreach_lerp(averages, weights, 1 - AVERAGE)
        return weights, first, second, averages


def get_inputs(count: int = 24, width: int = 96) -> list[Tensors]:
    layer = [(width,), (3 * width, width), (width,), (width, width), (4 * width,), (4 * width, width)]
    shapes = [layer[index % len(layer)] for index in range(count)]
    normal = [[torch.randn(shape) for shape in shapes] for _ in range(4)]
    squares = [0.1 + torch.rand(shape) for shape in shapes]
    return [normal[0], normal[1], normal[2], squares, normal[3]]


def get_init_inputs() -> list[int]:
    return []
