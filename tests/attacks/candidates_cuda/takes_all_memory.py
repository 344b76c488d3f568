"""E73: holds all free memory of the device, so that the rival's allocations fail or are slow."""

# expects: accepted|out_of_memory|contract_violation|cheating
# gains: nothing
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        free, _ = torch.cuda.mem_get_info()
        try:
            self.held = torch.empty(int(free * 0.97), dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            self.held = None

    def forward(self, x):
        return F.relu(self.norm(x))
