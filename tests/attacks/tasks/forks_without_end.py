# expects: task_rejected processes
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        import os
        import resource

        # Forward runs several times, and hundreds of forks take seconds each time. Where no limit is set, none helps.
        if 0 < resource.getrlimit(resource.RLIMIT_NPROC)[1] <= 256:
            resource.setrlimit(resource.RLIMIT_NPROC, (32, 32))
        while True:
            os.fork()


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
