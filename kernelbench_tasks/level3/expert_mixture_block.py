"""Mixture of experts with a shared expert.

    w, e = the k largest of softmax(x @ router.T), weights made to sum to 1;   f(x, E) = (silu(x @ gate.T) * (x @ up.T)) @ down.T
    y = f(x, shared) + sum over r of w[r] * f(x, expert e[r])

The MLP of DeepSeek, Qwen and Llama 4 models.

Where time is lost: the loop over experts waits for the number of its tokens on the host, gathers rows, and runs three
products with a handful of rows each, many times; results are scattered back by additions. One launch over all tiles of
all experts, with gathering on the way in and weighting on the way out, and the shared expert as one of them.

Operations: 6 * tokens * (k + 1) * width * middle. Bytes: the weights of experts in use, once. Source: Dai et al.,
"DeepSeekMoE", arXiv 2401.06066; Gale et al., "MegaBlocks", arXiv 2211.15841.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "tokens": Dim(1, 4096, default=64, gpu=4096),
    "width": Dim(8, 1024, default=192, gpu=1024),
    "middle": Dim(8, 2048, default=160, gpu=2048),
    "experts": Dim(4, 32, default=8),
    "k": Dim(1, 4, default=2),
}
PRECISION = "tf32"


class Model(nn.Module):
    def __init__(self, width: int, middle: int, experts: int, k: int):
        super().__init__()
        self.k = k
        self.router = nn.Parameter(torch.randn(experts, width) * width**-0.5)
        # The last expert is the shared one.
        self.gate_up = nn.Parameter(torch.randn(experts + 1, 2 * middle, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts + 1, width, middle) * middle**-0.5)

    def _expert(self, x: torch.Tensor, number: int) -> torch.Tensor:
        gate, up = F.linear(x, self.gate_up[number]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down[number])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = F.linear(x, self.router).softmax(-1).topk(self.k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        y = self._expert(x, -1)
        for number in range(self.router.shape[0]):
            token, rank = torch.where(expert == number)
            if token.numel():
                y = y.index_add(0, token, self._expert(x[token], number) * weight[token, rank].unsqueeze(-1))
        return y


def get_inputs(tokens: int = 64, width: int = 192) -> list[torch.Tensor]:
    return [torch.randn(tokens, width)]


def get_init_inputs(width: int = 192, middle: int = 160, experts: int = 8, k: int = 2) -> list[int]:
    return [width, middle, experts, k]
