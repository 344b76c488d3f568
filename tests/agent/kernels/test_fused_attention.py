"""Attention of 16-bit numbers, however it is written, becomes torch's fused kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent.kernels.gpu import calls
from tests.agent.kernels.rewritten import rewritten

ATTENTION = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, known, single, keys):
        attend = F.scaled_dot_product_attention
        scores = q @ k.transpose(2, 3)
        # The sequence first: torch's result is laid out as queries are, and is viewed so.
        first = [one.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for one in (q, k, v)]
        return (
            attend(q, k, v, is_causal=True),
            attend(q, k, v, attn_mask=known, scale=0.3).transpose(1, 2).reshape(2, 300, -1),
            ((q @ k.transpose(-2, -1)) / 8).softmax(-1) @ v,
            (F.dropout(((q @ k.transpose(-2, -1)) * 0.1).masked_fill(~known, -torch.inf).softmax(-1), 0.1, False) @ v).transpose(1, 2).contiguous().view(2, 300, -1),
            F.softmax((q @ k.transpose(2, 3)).float() / 8, dim=-1, dtype=torch.float32).to(v.dtype) @ v,
            ((q @ k.transpose(2, 3)) * 0.1).masked_fill(~keys, -torch.inf).softmax(-1) @ v,
            attend(*first).permute(2, 0, 1, 3).contiguous().view(300, 2, -1),
            # These stay: weights in eight bits, or as truth values; a mask with more batches than scores.
            (q @ k.transpose(2, 3)).softmax(-1).to(torch.float8_e4m3fn).to(q.dtype) @ v,
            (q @ k.transpose(2, 3)).softmax(-1).bool().to(q.dtype) @ v,
            (q[:1] @ k[:1].transpose(2, 3)).masked_fill(~known, -torch.inf).softmax(-1) @ v[:1],
            # So do these: an added mask, scores that are used elsewhere, another axis, a function of the scores, other types.
            attend(q, k, v, attn_mask=torch.zeros(300, 300, dtype=q.dtype)),
            scores.softmax(-1) @ v + scores.mean(),
            (q @ k.transpose(2, 3)).softmax(2) @ v,
            (20 * torch.tanh(q @ k.transpose(2, 3) / 20)).softmax(-1) @ v,
            (q @ k.transpose(2, 3)).softmax(-1, dtype=torch.float64).to(v.dtype) @ v,
            attend(q[:, :, :9], k[:, :, :9], v[:, :, :9]),
        )


def get_inputs():
    known = torch.rand(2, 1, 300, 300) > 0.3
    known[0, 0, 7] = False
    return [*torch.randn(3, 2, 3, 300, 64).bfloat16(), known, torch.randn(2, 3, 300, 64), torch.rand(300) > 0.3]


def get_init_inputs():
    return []
"""


def test_attention_of_halves_is_fused_however_it_is_written(tmp_path: Path) -> None:
    """A query without keys is zero for torch's call, and NaN where it is written out."""
    found = rewritten(tmp_path, ATTENTION)
    assert found["same"] == [True] * 16
    assert found["library"] == ["attention"] * 7


def test_heads_of_a_place_lie_side_by_side() -> None:
    q = torch.randn(2, 3, 20, 8, dtype=torch.float16)
    out = calls.library_attention(q, q, q, None, None, False)
    assert out.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, q, q))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_mask_beside_the_causal_one_excludes_more(dtype: torch.dtype) -> None:
    q = torch.randn(2, 3, 20, 8, dtype=dtype)
    excluded = torch.rand(20, 20) < 0.3
    excluded.fill_diagonal_(False)
    counts = torch.ones(20, 20, dtype=torch.bool).tril() & ~excluded
    exact = torch.nn.functional.scaled_dot_product_attention(q, q, q, counts)
    torch.testing.assert_close(calls.library_attention(q, q, q, excluded, None, True), exact)
