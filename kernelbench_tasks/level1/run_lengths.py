"""For each element the number of its run of equal neighbors, and how long that run is.

    run[i, j] = number of changes in row i up to j,   length[i, j] = size of the run that holds j

Run-length encoding, CTC decoding (collapsing repeated labels), segmentation of signals, voxel and mask compression.

Where time is lost: a comparison, a running sum over 64-bit integers, a count by scatter and a gather, each over memory.
A scan forward carries the start of the run, one backward its end, and both fit a pass over tiles.

Bytes: 20 per element at int32 labels. Source: Balevic, "Parallel Variable-Length Encoding on GPGPUs", 2009; Graves et
al., "Connectionist Temporal Classification", 2006.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=128, gpu=4096), "cols": Dim(2, 16384, default=1024, gpu=8192)}


class Model(nn.Module):
    def forward(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        change = torch.zeros_like(labels, dtype=torch.long)
        change[:, 1:] = labels[:, 1:] != labels[:, :-1]
        run = change.cumsum(-1)
        size = torch.zeros_like(run).scatter_add(-1, run, torch.ones_like(run))
        return run, size.gather(-1, run)


def get_inputs(rows: int = 128, cols: int = 1024) -> list[torch.Tensor]:
    return [torch.randint(0, 3, (rows, cols), dtype=torch.int32)]


def get_init_inputs() -> list[int]:
    return []
