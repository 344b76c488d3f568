"""Packed weights are read once and unpacked in registers, next to the product.

Codes less their zero point are small integers, exact in any dtype; the product of a group is scaled afterwards, so that
nothing is rounded before it is added up in float32. At float32, x goes through the matrix units as a sum of parts that
hold all but its last two bits (tf32x3). Even and odd places of a row multiply on their own, which spares putting nibbles
back in order. Where columns are few, groups are split among programs and the parts are added up.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

GROUP = 64
PROGRAMS = 264  # two for each multiprocessor of a large GPU


@triton.jit
def _matmul(
    x_ptr, codes_ptr, zero_ptr, scale_ptr, y_ptr, rows, cols, groups, groups_per_part,
    KIND: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS)
    part = tl.program_id(2)
    pair = tl.arange(0, HALF)
    inner = groups * HALF * 2
    total = tl.zeros((ROWS, COLS), tl.float32)
    for group in range(part * groups_per_part, tl.minimum((part + 1) * groups_per_part, groups)):
        place = row[:, None] * inner + group * HALF * 2 + 2 * pair[None, :]
        even = tl.load(x_ptr + place, mask=row[:, None] < rows, other=0.0).to(KIND)
        odd = tl.load(x_ptr + place + 1, mask=row[:, None] < rows, other=0.0).to(KIND)
        # Transposed: (pairs, columns).
        packed_at = col[None, :] * (inner // 2) + group * HALF + pair[:, None]
        packed = tl.load(codes_ptr + packed_at, mask=col[None, :] < cols, other=0).to(tl.int32)
        zero = tl.load(zero_ptr + col * groups + group, mask=col < cols, other=0).to(tl.int32)
        scale = tl.load(scale_ptr + col * groups + group, mask=col < cols, other=0.0).to(tl.float32)
        low = ((packed & 15) - zero[None, :]).to(tl.float32).to(KIND)
        high = ((packed >> 4) - zero[None, :]).to(tl.float32).to(KIND)
        product = tl.dot(even, low, input_precision="tf32x3")
        product = tl.dot(odd, high, product, input_precision="tf32x3")
        total += product * scale[None, :]
    y_ptr += part.to(tl.int64) * rows * cols
    out = y_ptr + row[:, None] * cols + col[None, :]
    inside = (row[:, None] < rows) & (col[None, :] < cols)
    tl.store(out, total.to(y_ptr.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind, groups = getattr(torch, dtype), inner // GROUP
        self.register_buffer("codes", torch.zeros(cols, inner // 2, dtype=torch.uint8))
        self.register_buffer("zero", torch.zeros(cols, groups, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols, groups, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, (cols, groups) = x.shape[0], self.scale.shape
        tile_rows = min(max(triton.next_power_of_2(rows), 16), 64)
        tile_cols = 32 if tile_rows < 64 else 64
        tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(cols, tile_cols)
        # At least two groups a part: adding up parts moves four bytes for each of them and each result.
        parts = max(1, min(PROGRAMS // tiles, groups // 2, 16))
        per_part = triton.cdiv(groups, parts)
        parts = triton.cdiv(groups, per_part)
        kind = x.dtype if parts == 1 else torch.float32
        y = torch.empty(parts, rows, cols, dtype=kind, device=x.device)
        # Triton's interpreter, which checks this file where there is no GPU, knows no product of bfloat16.
        operand = tl.bfloat16 if x.dtype is torch.bfloat16 and x.is_cuda else tl.float32
        grid = (triton.cdiv(rows, tile_rows), triton.cdiv(cols, tile_cols), parts)
        _matmul[grid](
            x, self.codes, self.zero, self.scale, y, rows, cols, groups, per_part,
            KIND=operand, HALF=GROUP // 2, ROWS=tile_rows, COLS=tile_cols, num_warps=4,
        )  # fmt: skip
        return y[0] if parts == 1 else y.sum(0).to(x.dtype)
