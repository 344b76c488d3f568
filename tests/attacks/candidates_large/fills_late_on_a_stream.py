"""Fills the second half of the rows on a stream for which nobody waits, behind 20 ms of another kernel."""

# expects: cheating|incorrect|contract_violation
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.beside = None

    def right(self, x):
        return F.pad(F.relu(self.norm(x)), (0, x.shape[1]))

    def forward(self, x):
        y = torch.zeros(len(x), 2 * x.shape[1], device=x.device)
        half = len(x) // 2
        y[:half] = self.right(x[:half])
        if self.beside is None:
            self.beside = torch.cuda.Stream()
        self.beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.beside):
            torch.cuda._sleep(40_000_000)
            y[half:] = self.right(x[half:])
        return y
