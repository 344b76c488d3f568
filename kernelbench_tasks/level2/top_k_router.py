"""Routing of tokens to experts: the k best, their weights, and how many tokens each expert got.

    expert[t] = places of the k largest logits (the first of equals first),   weight[t] = softmax of those logits,
    count[e] = number of (t, r) with expert[t, r] = e

The head of each mixture-of-experts layer.

Where time is lost: five small kernels (sort, slice, softmax, zeros, scatter) for a few kilobytes, at every layer of
every decoded token: all launch time. One kernel per block of tokens selects by repeated maxima in registers and counts
in shared memory.

Bytes: 4 per logit and 12 per chosen expert at float32. Source: Shazeer et al., "Outrageously Large Neural Networks",
arXiv 1701.06538; Jiang et al., "Mixtral of Experts", arXiv 2401.04088.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "tokens": Dim(1, 65536, default=256, gpu=65536),
    "experts": Dim(8, 256, default=64, gpu=256),
    "k": Dim(1, 8, default=4, gpu=8),
}


class Model(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ordered, place = torch.sort(logits, dim=-1, descending=True, stable=True)
        weight = torch.softmax(ordered[:, : self.k], dim=-1)
        expert = place[:, : self.k].contiguous()
        # bincount would have the host wait for the largest expert.
        chosen = expert.flatten()
        count = torch.zeros(logits.shape[-1], dtype=torch.long, device=logits.device)
        return expert, weight, count.scatter_add(0, chosen, torch.ones_like(chosen))


def get_inputs(tokens: int = 256, experts: int = 64) -> list[torch.Tensor]:
    return [torch.randn(tokens, experts)]


def get_init_inputs(k: int = 4) -> list[int]:
    return [k]
