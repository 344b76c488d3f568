"""Looks keys up in a table of keys: the probe of a join.

    y[i] = the smallest j with build[j] = probe[i], or -1

Joins and lookups in data frames, vocabularies of dynamic embeddings, voxel hashing, deduplication.

Where time is lost: torch has no hash table, so the build side is sorted (many passes) and each probe walks a binary
search, twenty dependent reads. A table with open addressing in shared memory or in the second-level cache answers in
one or two.

Bytes: 8 per build key, 16 per probe, plus the table. Source: Alcantara et al., "Real-Time Parallel Hashing on the GPU",
2009; Balkesen et al., "Main-Memory Hash Joins on Multi-Core CPUs", 2013.
"""

import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {
    "build": Dim(1, 1048576, default=16384, gpu=1048576),
    "probe": Dim(2, 8388608, default=65536, gpu=8388608),
}


class Model(nn.Module):
    def forward(self, build: torch.Tensor, probe: torch.Tensor) -> torch.Tensor:
        # Stable, so that of equal keys the first stands first.
        keys, place = build.sort(stable=True)
        at = torch.searchsorted(keys, probe).clamp(max=keys.shape[0] - 1)
        return torch.where(keys[at] == probe, place[at], -1)


def get_inputs(build: int = 16384, probe: int = 65536) -> list[torch.Tensor]:
    # About two thirds of the probes find something.
    return [torch.randint(0, build, (build,)), torch.randint(0, build, (probe,))]


def get_init_inputs() -> list[int]:
    return []
