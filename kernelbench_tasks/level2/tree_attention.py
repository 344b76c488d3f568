"""Attention of the nodes of a tree of guesses over a common context and over each other.

    node i sees all of the context, itself, and node j where bit j of mask[b, i] is set

Verification in speculative decoding: several continuations are checked by one pass, each node sees its ancestors alone.

Where time is lost: SDPA wants the mask as a dense matrix over context and nodes, although only the corner over the
nodes holds any information, 64 bits a row; and a mask keeps it from its fastest kernels. Bits tested in registers,
context without any mask, and a split of the context when the batch is small.

Bytes: 8 per key lane and 8 per node at float32. Source: Miao et al., "SpecInfer", arXiv 2305.09781; Cai et al.,
"Medusa", arXiv 2401.10774.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 16, default=2, gpu=8),
    "context": Dim(1, 4096, default=500, gpu=4096),
    "nodes": Dim(1, 62, default=26, gpu=60),
    "heads": Dim(1, 16, default=4, gpu=16),
    "lanes": Dim(16, 128, multiple_of=8, default=64, gpu=128),
}


class Model(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        nodes = query.shape[2]
        number = torch.arange(nodes, device=query.device)
        sees = ((mask.unsqueeze(-1) >> number) & 1).bool() | (number == number.unsqueeze(1))
        context = sees.new_ones(1, 1, 1).expand(query.shape[0], nodes, key.shape[2] - nodes)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=torch.cat([context, sees], dim=-1).unsqueeze(1)
        )


def get_inputs(
    batch: int = 2, context: int = 500, nodes: int = 26, heads: int = 4, lanes: int = 64
) -> list[torch.Tensor]:
    cached = (batch, heads, context + nodes, lanes)
    return [
        torch.randn(batch, heads, nodes, lanes),
        torch.randn(cached),
        torch.randn(cached),
        torch.randint(0, 2**62, (batch, nodes)),
    ]


def get_init_inputs() -> list[int]:
    return []
