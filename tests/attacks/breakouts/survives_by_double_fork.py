"""Leaves a grandchild in a session of its own and never comes back."""

# expects: timeout
import ctypes
import os
import time

import torch.nn.functional as F
from torch import nn


def attack():
    if os.fork() == 0:
        try:
            os.setsid()
        except OSError:
            pass
        if os.fork() == 0:
            name_process()
            time.sleep(600)
        os._exit(0)
    while True:
        pass


def name_process():
    ctypes.CDLL(None).prctl(15, b"kw-survivor", 0, 0, 0)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
