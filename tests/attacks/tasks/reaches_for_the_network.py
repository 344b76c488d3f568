# expects: task_rejected network
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        import socket

        socket.create_connection(("127.0.0.1", 80), timeout=1)
        return x


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
