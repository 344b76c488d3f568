"""Connected components of a binary image.

    y[i, j] = the largest index r * width + c + 1 of the pixels that are connected with (i, j) through set neighbors, 0 where
    the pixel is not set; neighbors are above, below, left and right

Blob detection, cells in microscopy, clusters in percolation and lattice models, islands in maps.

Small by nature: a batch of masks takes a megabyte, and is passed over as often as its longest path takes.

Where time is lost: spreading labels to neighbors until nothing changes takes as many passes over the image as the
longest path, and after each pass the host waits to know whether to go on. Union-find with atomics needs two or three
passes and no answer from the host.

Bytes: 9 per pixel. Source: Playne, Hawick, "A New Algorithm for Parallel Connected-Component Labelling on GPUs", 2018;
Komura, "GPU-based cluster-labeling algorithm without the use of conventional iteration", 2015.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelbench_tasks import Dim

DIMS = {
    "images": Dim(1, 16, default=2, gpu=16),
    "height": Dim(2, 256, default=64, gpu=256),
    "width": Dim(2, 256, default=64, gpu=256),
}


class Model(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[1:]
        label = torch.arange(1, height * width + 1, device=image.device).view(1, height, width) * image
        while True:
            framed = F.pad(label, (1, 1, 1, 1))
            across = torch.maximum(framed[:, 1:-1, :-2], framed[:, 1:-1, 2:])
            down = torch.maximum(framed[:, :-2, 1:-1], framed[:, 2:, 1:-1])
            spread = torch.maximum(label, torch.maximum(across, down)) * image
            if torch.equal(spread, label):
                return label
            label = spread


def get_inputs(images: int = 2, height: int = 64, width: int = 64) -> list[torch.Tensor]:
    return [torch.rand(images, height, width) < 0.5]


def get_init_inputs() -> list[int]:
    return []
