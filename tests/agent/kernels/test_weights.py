"""Attention whose weights are no softmax: which products are found, and that they compute the same."""

from __future__ import annotations

from pathlib import Path

from tests.agent.kernels.rewritten import rewritten

WEIGHTS = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, seen, decay):
        q = q * 1.0
        scores = q @ k.transpose(2, 3)
        shared = q @ k.transpose(2, 3)
        kept = F.relu(q @ k.transpose(2, 3))
        return (
            F.relu((q @ k.transpose(2, 3) / 4).masked_fill(seen == 0, float("-inf"))) @ v,
            F.dropout((q @ k.transpose(2, 3)) * decay, 0.1, False) @ v,
            torch.sigmoid(q @ k.transpose(-1, -2) + decay) @ v,
            torch.where(seen > 0.5, scores, 0.0) @ v,
            torch.exp((q @ k.transpose(2, 3)) > 0) @ v,
            torch.where(torch.logical_and(torch.tanh(q @ k.transpose(2, 3)), seen), 1.0, 0.0) @ v,
            torch.stack([q, k]).unbind(0)[0] @ v.transpose(2, 3),
            # These stay: truth values as numbers and the other way round, two tensors, a sum over keys, scores or weights that are used
            # elsewhere, no weights, fewer dimensions.
            ((q @ k.transpose(2, 3)) * decay + seen) @ v,
            F.normalize(q @ k.transpose(2, 3), dim=-1) @ v,
            F.relu(shared) @ v + shared.sum(),
            kept @ v + kept.sum(),
            (q @ k.transpose(2, 3)) @ v,
            F.relu(q[0] @ k[0].transpose(1, 2)) @ v[0],
        )


def get_inputs():
    # Whole numbers, whose scores are exact: whether one is above zero is a matter of the order of summation otherwise.
    return [*torch.randn(3, 2, 3, 300, 8).round(), torch.rand(1, 1, 300, 300).round(), torch.rand(3, 300, 300)]


def get_init_inputs():
    return []
"""


def test_weights_that_are_no_softmax_are_the_library_s(tmp_path: Path) -> None:
    found = rewritten(tmp_path, WEIGHTS)
    assert found["same"] == [True] * 13
    assert sorted(found["library"]) == ["attention"] * 4
