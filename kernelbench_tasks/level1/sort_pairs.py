"""Sorts each row by integer keys and carries values along.

    order = stable sorting order of key[i],   y[i] = key[i, order],   v[i] = value[i, order]

Grouping tokens by expert, edges by target node, particles by cell, events by time.

Where time is lost: a general sort of 32-bit keys with 64-bit places, then a gather at random places. Keys here have
twelve bits: two passes of a radix sort that carries the values with the keys, in shared memory where a row fits.

Bytes: 16 per element at int32 keys and float32 values, and pass. Source: Merrill, Grimshaw, "High Performance and
Scalable Radix Sorting", 2011; Satish, Harris, Garland, "Designing Efficient Sorting Algorithms for Manycore GPUs",
2009.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 1024, default=64, gpu=1024), "cols": Dim(2, 65536, default=2048, gpu=16384)}


class Model(nn.Module):
    def forward(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ordered, order = torch.sort(key, dim=-1, stable=True)
        return ordered, value.gather(-1, order)


def get_inputs(rows: int = 64, cols: int = 2048) -> list[torch.Tensor]:
    return [torch.randint(0, 4096, (rows, cols), dtype=torch.int32), torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return []
