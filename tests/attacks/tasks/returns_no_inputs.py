# expects: task_rejected no tensor
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [3]


def get_init_inputs():
    return []
