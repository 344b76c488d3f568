"""Attention of one new token per sequence over a paged cache in int8.

    k[j] = key[page(j), j mod 16] * key_scale[page(j), j mod 16],   v likewise,   page(j) = table[b, j div 16]
    y[b, h] = softmax over j < length[b] of (q . k[j] / sqrt(d)) times v

Serving of language models: the cache is allocated in pages, and 8 bits halve what a token has to read.

Where time is lost: pages are gathered and widened in memory first, which moves nine bytes for each that is stored, for
the longest sequence of the batch. Read in place, page by page, widened in registers, and only up to each sequence's
length, the traffic is that of the bytes themselves; short and long sequences must share the machine.

Bytes: 2 per cached number, plus 8 per cached token and head. Source: Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention", arXiv 2309.06180; Hooper et al., "KVQuant", arXiv 2401.18079.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "batch": Dim(1, 32, default=4, gpu=32),
    "pages": Dim(1, 256, default=24, gpu=256),
    "key_heads": Dim(1, 8, default=2, gpu=8),
    "group": Dim(1, 8, default=4),
    "lanes": Dim(16, 128, multiple_of=8, default=64, gpu=128),
}
PAGE = 16


class Model(nn.Module):
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        key_scale: torch.Tensor,
        value: torch.Tensor,
        value_scale: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        # (batch, pages, PAGE, heads, lanes) to (batch, heads, positions, lanes)
        keys = (key[table] * key_scale[table].unsqueeze(-1)).flatten(1, 2).transpose(1, 2)
        values = (value[table] * value_scale[table].unsqueeze(-1)).flatten(1, 2).transpose(1, 2)
        position = torch.arange(keys.shape[2], device=keys.device)
        mask = (position < lengths.unsqueeze(1)).view(-1, 1, 1, keys.shape[2])
        return F.scaled_dot_product_attention(
            query.unsqueeze(2), keys, values, attn_mask=mask, enable_gqa=True
        ).squeeze(2)


def get_inputs(
    batch: int = 4, pages: int = 24, key_heads: int = 2, group: int = 4, lanes: int = 64
) -> list[torch.Tensor]:
    stored = batch * pages + 3
    shape = (stored, PAGE, key_heads, lanes)
    return [
        torch.randn(batch, key_heads * group, lanes),
        torch.randint(-127, 128, shape, dtype=torch.int8),
        0.01 + 0.02 * torch.rand(shape[:3]),
        torch.randint(-127, 128, shape, dtype=torch.int8),
        0.01 + 0.02 * torch.rand(shape[:3]),
        torch.randint(0, stored, (batch, pages)),
        torch.randint(1, pages * PAGE + 1, (batch,)),
    ]


def get_init_inputs() -> list[int]:
    return []
