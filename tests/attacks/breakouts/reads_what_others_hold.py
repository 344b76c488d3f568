"""Reads another candidate's files and the memory of its parents."""

# expects: accepted
import ctypes
import os

import torch.nn.functional as F
from torch import nn

FACTS = {}


def the_secret():
    open(FACTS["secret"]).close()


def another_candidate():
    open(os.path.join(FACTS["other_candidate"], "source.py")).close()


def another_candidate_by_the_mount():
    if not os.listdir("/.kernelwright/store"):
        raise OSError("nothing to see")


def the_verdicts():
    os.listdir(FACTS["verdicts"])


def memory_of_the_parent():
    with open(f"/proc/{os.getppid() or 1}/mem", "rb") as file:
        file.seek(1 << 16)


def memory_of_the_first_process():
    with open("/proc/1/mem", "rb") as file:
        file.seek(1 << 16)


def memory_of_the_referee():
    open(f"/proc/{FACTS['referee']}/mem", "rb").close()


def by_process_vm_readv():
    libc = ctypes.CDLL(None, use_errno=True)
    target = ctypes.create_string_buffer(16)
    pair = (ctypes.c_void_p * 2)(ctypes.addressof(target), 16)
    pages = (ctypes.c_void_p * 2)(0x400000, 16)
    for pid in (FACTS["referee"], os.getppid() or 1):
        if libc.process_vm_readv(pid, pair, 1, pages, 1, 0) >= 0 or ctypes.get_errno() not in (1, 3):
            return
    raise OSError(1, "refused")


WAYS = [
    the_secret, another_candidate, another_candidate_by_the_mount, the_verdicts, memory_of_the_parent,
    memory_of_the_first_process, memory_of_the_referee, by_process_vm_readv,
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
