"""Tasks of the demonstration: a family at a shape, judged with a ragged shape beside it.

The prompt names the family and how many elements there are, but not how they are cut into rows. So what is
fastest cannot be known from the prompt alone; scores of programs that were measured at the task tell more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evaluator.sources import TaskSource

_HEAD = """import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4194304, default=128), "cols": Dim(8, 16384, default=512)}


class Model(nn.Module):
"""
_FORWARDS = {
    "bias_silu": """    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x + bias)
""",
    "softmax": """    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)
""",
    "rmsnorm": """    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
""",
    "row_sum": """    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1)
""",
    "transpose": """    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2.0 * x).t().contiguous()
""",
}
_VECTORS = {"bias_silu": ", torch.randn(cols)", "rmsnorm": ", 1.0 + 0.1 * torch.randn(cols)"}
FAMILIES = tuple(_FORWARDS)

#: log2 of elements, and columns. The largest of a GPU does not fit into its cache.
_SHAPES = {
    "cpu": ((14, 17, 20), (32, 512, 8192)),
    "cuda": ((20, 22, 24), (64, 512, 2048, 8192)),
}
#: Neither a vector's nor a tile's multiple, in either dimension.
RAGGED = ({"rows": 37, "cols": 1003}, {"rows": 5, "cols": 67})


@dataclass(frozen=True)
class Task:
    """A family at a shape on a device (``cpu`` or ``cuda``)."""

    device: str
    family: str
    rows: int
    cols: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.family}-{self.rows}x{self.cols}"

    @property
    def log2_elements(self) -> int:
        """The size that the prompt shows."""
        return round(math.log2(self.rows * self.cols))

    @property
    def shape(self) -> dict[str, int]:
        """For the referee."""
        return {"rows": self.rows, "cols": self.cols}


def task_source(family: str) -> TaskSource:
    """The reference that the referee judges a family's programs against; every shape of it is in its space."""
    inputs = f"[torch.randn(rows, cols){_VECTORS.get(family, '')}]"
    text = (
        f"{_HEAD}{_FORWARDS[family]}\n\ndef get_inputs(rows: int = 128, cols: int = 512) -> list[torch.Tensor]:\n"
        f"    return {inputs}\n\n\ndef get_init_inputs() -> list[int]:\n    return []\n"
    )
    return TaskSource(f"rl_{family}", text)


def tasks(device: str) -> tuple[list[Task], list[Task]]:
    """Tasks to train on, and held-out ones: of each size, one way to cut it into rows, and another for the next size.

    So every prompt of a held-out task was seen in training, and its shape never was.
    """
    sizes, columns = _SHAPES[device]
    train: list[Task] = []
    held_out: list[Task] = []
    for number, family in enumerate(FAMILIES):
        for step, size in enumerate(sizes):
            for place, cols in enumerate(columns):
                left_out = place == (step + number) % len(columns)
                (held_out if left_out else train).append(Task(device, family, 2**size // cols, cols))
    return train, held_out
