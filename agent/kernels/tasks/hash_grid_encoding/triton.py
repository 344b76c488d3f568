"""A program encodes a block of points at one level: corners, hashes and weights never leave its registers.

Of a hash only the low bits count, since tables have a power of two of entries: products and exclusive ors of 32 bits
give the same places as those of 64. Both features of an entry are read by one load. Blocks of a level run one after
another, so that its table stays in the cache.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

FEATURES, BASE, GROWTH = 2, 8, 1.38
PRIMES = (1, 2654435761, 805459861)


@triton.jit
def _encode(x_ptr, table_ptr, resolution_ptr, y_ptr, points, levels, size, BLOCK: tl.constexpr):
    level = tl.program_id(1)
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < points
    feature = tl.arange(0, 2)[None, :]
    resolution = tl.load(resolution_ptr + level).to(tl.float32)
    table_ptr += level.to(tl.int64) * size * 2
    x = tl.load(x_ptr + point * 3, mask=inside, other=0.0) * resolution
    y = tl.load(x_ptr + point * 3 + 1, mask=inside, other=0.0) * resolution
    z = tl.load(x_ptr + point * 3 + 2, mask=inside, other=0.0) * resolution
    cell_x, cell_y, cell_z = tl.floor(x), tl.floor(y), tl.floor(z)
    part_x, part_y, part_z = x - cell_x, y - cell_y, z - cell_z
    # 2654435761 as a signed number of 32 bits.
    hash_x = cell_x.to(tl.int32)
    hash_y = cell_y.to(tl.int32) * -1640531535
    hash_z = cell_z.to(tl.int32) * 805459861
    total = tl.zeros((BLOCK, 2), tl.float32)
    for corner in tl.static_range(8):
        # The first coordinate has the highest bit of a corner's number.
        index = hash_x + corner // 4
        index ^= hash_y + (corner // 2 % 2) * -1640531535
        index ^= hash_z + (corner % 2) * 805459861
        index = index & (size - 1)
        weight = part_x if corner // 4 == 1 else 1.0 - part_x
        weight *= part_y if corner // 2 % 2 == 1 else 1.0 - part_y
        weight *= part_z if corner % 2 == 1 else 1.0 - part_z
        entry = tl.load(table_ptr + index[:, None] * 2 + feature, mask=inside[:, None], other=0.0)
        total += weight[:, None] * entry
    place = (point * levels + level)[:, None] * 2 + feature
    tl.store(y_ptr + place, total, mask=inside[:, None])


class ModelNew(nn.Module):
    def __init__(self, levels: int, log_table: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(levels, 2**log_table, FEATURES))
        self.register_buffer(
            "resolution", torch.tensor([int(BASE * GROWTH**level) for level in range(levels)])
        )
        corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)])
        self.register_buffer("corners", corners)
        self.register_buffer("primes", torch.tensor(PRIMES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        points = x.shape[0]
        levels, size, features = self.table.shape
        y = torch.empty(points, levels * features, dtype=x.dtype, device=x.device)
        block = 128
        grid = (triton.cdiv(points, block), levels)
        _encode[grid](x, self.table, self.resolution, y, points, levels, size, BLOCK=block, num_warps=4)
        return y
