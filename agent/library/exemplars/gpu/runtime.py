"""What every Triton exemplar shares: what it accepts and how rows are cut into tiles."""

from __future__ import annotations

import torch
import triton

LONGEST_ROW = 32 * 1024  # elements that one program keeps in registers; longer rows are left to the reference


def computable(*tensors: torch.Tensor) -> bool:
    """Whether all lie on one GPU, share one floating dtype, and none needs a gradient, which the kernels do not compute."""
    first, recording = tensors[0], torch.is_grad_enabled()
    if first.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not first.is_cuda:
        return False
    for tensor in tensors:
        if (
            tensor.dtype is not first.dtype
            or tensor.device != first.device
            or (recording and tensor.requires_grad)
        ):
            return False
    return True


def row_tile(rows: int, cols: int) -> tuple[int, int, int]:
    """Rows a program, columns a tile (a power of two) and warps, for kernels that keep whole rows in registers.

    Short rows share a program, so that its threads have some 8 elements each; one program per short row would spend
    its time on starting.
    """
    tile_cols = triton.next_power_of_2(cols)
    tile_rows = min(max(1, 1024 // tile_cols), triton.next_power_of_2(rows))
    warps = min(max(tile_rows * tile_cols // 512, 1), 16)
    return tile_rows, tile_cols, warps
