"""Asks for a user namespace of its own, in which it would be root."""

# expects: accepted
import ctypes
import os

import torch.nn.functional as F
from torch import nn

FACTS = {}


libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NEW_USER = 0x10000000


def by_unshare():
    if libc.unshare(NEW_USER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def by_clone():
    end_child(libc.syscall(56, ctypes.c_ulong(NEW_USER | 17), None, None, None, None))


def by_clone3():
    request = (ctypes.c_uint64 * 11)(NEW_USER, 0, 0, 0, 17)
    end_child(libc.syscall(435, ctypes.byref(request), ctypes.c_size_t(88)))


def end_child(child):
    if child == 0:
        os._exit(0)
    if child < 0:
        raise OSError(ctypes.get_errno(), "clone")
    os.waitpid(child, 0)


def by_joining():
    with open("/proc/1/ns/user") as file:
        if libc.setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


WAYS = [by_unshare, by_clone, by_clone3, by_joining]


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
