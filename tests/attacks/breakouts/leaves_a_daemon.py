"""Leaves a grandchild behind and answers honestly."""

# expects: accepted
import ctypes
import os
import time

import torch.nn.functional as F
from torch import nn

LEFT = []


def attack():
    if LEFT:
        return
    LEFT.append(True)
    if os.fork() == 0:
        try:
            os.setsid()
        except OSError:
            pass
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"kw-survivor", 0, 0, 0)
            time.sleep(600)
        os._exit(0)
    os.wait()


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
