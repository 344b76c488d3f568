"""Writes wherever the operating system would run or believe it."""

# expects: accepted
import ctypes
import os

import torch.nn.functional as F
from torch import nn

FACTS = {}


def beside_the_secret():
    with open(FACTS["secret"] + ".planted", "w") as file:
        file.write("planted")


def over_the_secret():
    with open(FACTS["secret"], "r+") as file:
        file.write("planted")


def into_the_store():
    with open(os.path.join(FACTS["other_candidate"], "planted.py"), "w") as file:
        file.write("planted")


def into_the_verdicts():
    os.makedirs(FACTS["verdicts"], exist_ok=True)
    with open(os.path.join(FACTS["verdicts"], "planted.json"), "w") as file:
        file.write("{}")


def into_the_library():
    with open(os.path.join(os.path.dirname(ctypes.__file__), "planted.pth"), "w") as file:
        file.write("import os")


def into_the_root():
    with open("/planted", "w") as file:
        file.write("planted")


def over_the_interpreter():
    import sys

    os.chmod(sys.executable, 0o777)


def through_the_parents_root():
    with open("/proc/1/root" + FACTS["secret"], "r+") as file:
        file.write("planted")


WAYS = [
    beside_the_secret, over_the_secret, into_the_store, into_the_verdicts, into_the_library, into_the_root,
    over_the_interpreter, through_the_parents_root,
]


def attack():
    worked = []
    for way in WAYS:
        try:
            way()
        except (OSError, ValueError, MemoryError):
            continue
        worked.append(way.__name__)
    if worked:
        raise RuntimeError(f"these worked: {worked}")


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
