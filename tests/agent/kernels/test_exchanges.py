"""Short sorts as exchanges of neighbors: which are found, and that they are torch's."""

from __future__ import annotations

from pathlib import Path

from tests.agent.kernels.rewritten import rewritten

SHORT_SORTS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, whole, wide):
        ordered, places = torch.sort(x, dim=-1, descending=True, stable=True)
        risen, at = x.sort(dim=1)
        largest, which = x.topk(2, dim=-1)
        smallest, where = whole.topk(3, dim=0, largest=False)
        pairs = whole.t()[:, :2].sort(dim=-1, descending=True)
        return (
            ordered, places, risen, at, largest, x.gather(-1, which), smallest, whole.gather(0, where), *pairs,
            wide.sort(dim=-1).values, x.half().sort(dim=-1).values.float(),
        )


def get_inputs():
    x = torch.randn(30, 4, 4).mul(2).round()
    x[3, 1, 2], x[4, 2, 1], x[4, 2, 3], x[5, 0, 0] = torch.nan, torch.nan, torch.inf, -torch.inf
    x[6:9] = x[3:6].flip(-1)
    x[9, :, 1:3] = torch.nan
    return [x, torch.stack([torch.randperm(4) for _ in range(20)], 1), torch.randn(3, 5)]


def get_init_inputs():
    return []
"""


def test_short_sorts_are_exchanges(tmp_path: Path) -> None:
    found = rewritten(tmp_path, SHORT_SORTS)
    assert found["same"] == [True] * 12
    assert found["changed"] == 5, "five elements, and pairs in another order in memory, are sorted as before"
    assert found["library"] == []
