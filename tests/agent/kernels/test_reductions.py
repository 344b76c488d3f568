"""Sums and means of what is linear: the operands are reduced, and the result is the same."""

from __future__ import annotations

from pathlib import Path

from tests.agent.kernels.rewritten import rewritten

REDUCED = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.weight = nn.Parameter(torch.randn(24, 30))
        self.same = nn.Conv2d(3, 8, 3, padding=1)
        self.strided = nn.Conv2d(3, 8, (4, 3), stride=(2, 3), padding=(0, 2), dilation=(1, 2))
        self.whole = nn.ConvTranspose2d(3, 8, 3, bias=False)
        self.up = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.line = nn.ConvTranspose1d(4, 6, 5, stride=3, padding=2, dilation=2)
        self.norm = nn.BatchNorm2d(8)
        self.shift = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x, rows, batch, volume, line):
        return (
            self.linear(rows).sum(1, keepdim=True),
            (self.linear(batch) / 2).mean(1),
            (rows @ self.weight * 3).sum(-1),
            torch.bmm(batch, batch.transpose(1, 2)).mean((0, 2)),
            torch.addmm(self.weight[0], rows, self.weight).sum(0),
            self.same(x).mean((2, 3), keepdim=True),
            F.adaptive_avg_pool2d(self.strided(x), 1),
            (self.whole(x) * 0.5).mean([2, 3]),
            self.up(volume).mean(2, keepdim=True),
            self.up(volume).sum((1, 3)),
            self.strided(x).mean(1),
            self.line(line).sum(-1),
            self.strided(x).sum((0, 2)),
            F.adaptive_avg_pool2d(self.norm(self.same(x) * 2) * self.shift, 1),
            ((self.shift + self.whole(x)) / 3 - self.shift).sum((2, 3)),
        )


def get_inputs():
    return [
        torch.randn(2, 3, 14, 15), torch.randn(5, 24), torch.randn(4, 6, 24), torch.randn(2, 3, 5, 6, 7), torch.randn(2, 4, 17)
    ]


def get_init_inputs():
    return []
"""


def test_what_is_summed_comes_before_products_and_convolutions(tmp_path: Path) -> None:
    found = rewritten(tmp_path, REDUCED)
    assert found["same"] == [True] * 15
    # Convolutions of fewer axes or channels; those summed along all axes are products.
    assert found["sizes"] == [[2, 4, 12, 14], [2, 1, 10, 14], [2, 1, 6, 5], [2, 8, 5]]
    assert found["changed"] == 15 + len(found["library"])


KEPT = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.grouped = nn.Conv1d(4, 8, 3, groups=2)
        self.large = nn.Conv2d(3, 4, 6)
        self.register_buffer("mean", torch.zeros(40))
        self.register_buffer("variance", torch.ones(40))

    def forward(self, rows, line, x):
        whole = self.linear(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            in_region = whole.mean(0)
        known = torch.batch_norm(self.linear(rows), None, None, self.mean, self.variance, False, 0.5, 1e-5, False)
        learned = torch.batch_norm(rows @ rows.T @ rows @ self.linear.weight.T + 3, None, None, self.mean, self.variance, True, 0.5, 1e-5, False)
        out, relu = self.linear(rows), torch.relu(self.linear(rows))
        return (
            out + out.sum(1, keepdim=True),
            relu.sum(1),
            self.grouped(line).mean(2),
            self.large(x).mean((2, 3)),
            torch.bmm(line, line.transpose(1, 2)).mean(0),
            self.linear(rows.double().float()).sum(1, dtype=torch.float64),
            self.linear(rows).mean(),
            in_region,
            known.mean(0),
            learned,
            rows.sum().sum(0),
        )


def get_inputs():
    return [torch.randn(5, 24), torch.randn(2, 4, 17), torch.randn(2, 3, 14, 15)]


def get_init_inputs():
    return []
"""


def test_what_is_used_twice_not_linear_or_no_gain_stays(tmp_path: Path) -> None:
    """The rewriting changes no more than the products and convolutions themselves."""
    found = rewritten(tmp_path, KEPT)
    # What reads statistics that the graph learned one call earlier differs in any case; it is not changed, see below.
    assert [found["same"][place] for place in range(11) if place != 8] == [True] * 10
    assert found["changed"] == len(found["library"])
