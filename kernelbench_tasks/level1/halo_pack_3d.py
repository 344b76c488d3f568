"""Packs the six faces of a 3-D field into one buffer for sending.

    y = concatenation of x[:, :h], x[:, -h:], x[:, :, :h], x[:, :, -h:], x[:, :, :, :h], x[:, :, :, -h:], each made dense

What every step of a domain-decomposed solver does before it exchanges halos with its neighbors, and what an MPI library
does for strided datatypes (subarray, vector); several fields share a message.

Where time is lost: the faces lie at three kinds of strides. Eager makes six copies and then copies them together; the
thin ones along the last dimension use a few bytes of each memory line. One launch that maps each place of the buffer to
its source, with work split by face, moves everything once.

Bytes: 8 per element packed at float32. Source: MPI standard 4.1, chapter 5 (derived datatypes); Pearson et al., "TEMPI:
An Interposed MPI Library with a Canonical Representation of CUDA-aware Datatypes", arXiv 2012.14363.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "fields": Dim(1, 8, default=3, gpu=8),
    "x": Dim(4, 256, default=48, gpu=256),
    "y": Dim(4, 256, default=52, gpu=256),
    "z": Dim(4, 256, default=60, gpu=256),
    "halo": Dim(1, 4, default=2, gpu=4),
}


class Model(nn.Module):
    def __init__(self, halo: int):
        super().__init__()
        self.halo = halo

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        faces = []
        for dim in (1, 2, 3):
            size = field.shape[dim]
            faces.append(field.narrow(dim, 0, self.halo).flatten())
            faces.append(field.narrow(dim, size - self.halo, self.halo).flatten())
        return torch.cat(faces)


def get_inputs(fields: int = 3, x: int = 48, y: int = 52, z: int = 60) -> list[torch.Tensor]:
    return [torch.randn(fields, x, y, z)]


def get_init_inputs(halo: int = 2) -> list[int]:
    return [halo]
