"""The real referee judges tasks of each kind: honest candidates that compute differently pass, subtly wrong ones do not."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from kernelbench_tasks import catalog
from tests.variants import some

_HEAD = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def judged(referee: Referee, name: str, source: str, *shapes: dict[str, Any]) -> Verdict:
    task = TaskSource(name, catalog.load(name).source)
    proposal = CandidateSource(source, "external", "inline")
    return referee.evaluate(
        task, proposal, splits=["adversarial"], shapes={"adversarial": [*shapes] or [{}]}, deadline_s=60.0
    )


def reference(name: str, *changes: tuple[str, str]) -> str:
    """The task's own module as a candidate, with some of its text changed."""
    text = catalog.load(name).source.replace("class Model(", "class ModelNew(")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("name", "shape"),
    some(
        [
            ("sum_of_many_tensors", {"count": 90, "width": 8}),  # a list of tensors
            ("run_lengths", {"rows": 3, "cols": 65}),  # integers in and out
            ("ragged_softmax", {"values": 700, "segments": 19}),  # sorted offsets
            ("stochastic_rounding", {"rows": 3, "cols": 50}),  # an oracle of its own
            pytest.param(
                "rms_norm_quantize_fp8", {"rows": 3, "cols": 40}, marks=pytest.mark.slow
            ),  # outputs in three dtypes
            ("group_norm_silu_channels_last", {"batch": 1, "height": 5, "width": 3}),  # strided images
            pytest.param(
                "int6_matmul",
                {"rows": 2, "inner": 128, "cols": 9, "dtype": "bfloat16"},
                marks=pytest.mark.slow,
            ),  # packed weights
            ("paged_attention_int8_cache", {"batch": 2, "pages": 3}),  # a page table
            ("adamw_clip_average", {"count": 5, "width": 8}),  # lists in and out
            ("batch_norm_relu_training", {"batch": 2, "channels": 3, "height": 5}),  # gradients and state
            pytest.param(
                "embedding_bag_backward", {"bags": 9, "mean_ids": 3}, marks=pytest.mark.slow
            ),  # gradients by scatter
            ("decode_block", {"batch": 1, "length": 17}),  # a whole block
        ]
    ),
)
def test_the_reference_passes_as_its_own_candidate(
    name: str, shape: dict[str, Any], referee: Referee
) -> None:
    verdict = judged(referee, name, reference(name), shape)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert "no_float64_oracle" not in [finding.rule for finding in verdict.findings]


#: Written independently of the references: other formulas, other orders, other layouts.
OTHERWISE = {
    "mx_quantize": """
        class ModelNew(nn.Module):
            def forward(self, x):
                rows, cols = x.shape
                blocks = x.float().reshape(rows, cols // 32, 32)
                # The exponent from the bits of the largest magnitude.
                bits = blocks.abs().max(-1).values.view(torch.int32)
                exponent = ((bits >> 23) - 127 - 8).clamp(min=-127)
                scaled = (blocks * torch.exp2(-exponent.float()).unsqueeze(-1)).clamp(-448, 448)
                return scaled.reshape(rows, cols).to(torch.float8_e4m3fn), (exponent + 127).to(torch.uint8)
        """,
    "log_bessel_k": """
        class ModelNew(nn.Module):
            def forward(self, order, x):
                # More than twice as many nodes, the first of which counts half.
                t = torch.arange(320) * 0.03
                v, x = order.unsqueeze(-1), x.unsqueeze(-1)
                terms = torch.logaddexp(v * t, -v * t) - math.log(2.0) - x * torch.cosh(t) + math.log(0.03)
                terms = torch.cat([terms[..., :1] - math.log(2.0), terms[..., 1:]], -1)
                largest = terms.max(-1, keepdim=True).values
                return (terms - largest).exp().sum(-1).log() + largest.squeeze(-1)
        """,
    "int4_matmul": """
        class ModelNew(nn.Module):
            def __init__(self, planes, zero, scale):
                super().__init__()
                self.register_buffer("planes", planes)
                self.register_buffer("zero", zero)
                self.register_buffer("scale", scale)

            @classmethod
            def from_reference(cls, reference):
                codes = reference.codes
                # Low and high nibbles in planes of their own, and the zero point times the scale.
                planes = torch.stack([codes & 15, codes >> 4]).to(torch.int8)
                return cls(planes, (reference.zero * reference.scale.float()), reference.scale.float())

            def forward(self, x):
                groups = self.scale.shape[1]
                even, odd = x.float()[:, 0::2], x.float()[:, 1::2]
                y = 0
                for part, plane in ((even, self.planes[0]), (odd, self.planes[1])):
                    part = part.unflatten(1, (groups, -1))
                    plane = plane.float().unflatten(1, (groups, -1))
                    y = y + torch.einsum("mgk,ngk,ng->mn", part, plane, self.scale)
                total = x.float().unflatten(1, (groups, -1)).sum(-1)
                return (y - total @ self.zero.t()).to(x.dtype).contiguous()
        """,
    "gated_recurrence_backward": """
        class Scan(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                h = b.clone()
                for t in range(1, b.shape[1]):
                    h[:, t] += a[:, t] * h[:, t - 1]
                ctx.save_for_backward(a, h)
                return h

            @staticmethod
            def backward(ctx, dh):
                a, h = ctx.saved_tensors
                g = dh.clone()
                for t in range(dh.shape[1] - 2, -1, -1):
                    g[:, t] += a[:, t + 1] * g[:, t + 1]
                da = torch.zeros_like(a)
                da[:, 1:] = g[:, 1:] * h[:, :-1]
                return da, g

        class ModelNew(nn.Module):
            def forward(self, gate, b):
                return Scan.apply(torch.sigmoid(gate), b)
        """,
    "grid_components": """
        class ModelNew(nn.Module):
            def forward(self, image):
                # Union by walking over the pixels, one image after the other.
                result = torch.zeros(image.shape, dtype=torch.long)
                for number, rows in enumerate(image.tolist()):
                    seen = [[False] * len(rows[0]) for _ in rows]
                    for i in range(len(rows)):
                        for j in range(len(rows[0])):
                            if not rows[i][j] or seen[i][j]:
                                continue
                            todo, members = [(i, j)], []
                            seen[i][j] = True
                            while todo:
                                r, c = todo.pop()
                                members.append((r, c))
                                for r, c in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
                                    inside = 0 <= r < len(rows) and 0 <= c < len(rows[0])
                                    if inside and rows[r][c] and not seen[r][c]:
                                        seen[r][c] = True
                                        todo.append((r, c))
                            label = max(r * len(rows[0]) + c + 1 for r, c in members)
                            for r, c in members:
                                result[number, r, c] = label
                return result
        """,
    "causal_attention_backward": """
        class ModelNew(nn.Module):
            def forward(self, q, k, v):
                group = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(group, 1).float(), v.repeat_interleave(group, 1).float()
                s = q.float() @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
                future = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
                return (torch.softmax(s.masked_fill(future, -math.inf), -1) @ v).to(q.dtype)
        """,
}
SHAPES = {
    "mx_quantize": {"rows": 3, "cols": 96, "dtype": "bfloat16"},
    "log_bessel_k": {"count": 77},
    "int4_matmul": {"rows": 3, "inner": 192, "cols": 11, "dtype": "bfloat16"},
    "gated_recurrence_backward": {"batch": 1, "length": 21, "channels": 3},
    "grid_components": {"images": 2, "height": 9, "width": 14},
    "causal_attention_backward": {"length": 33, "lanes": 16, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", some(OTHERWISE))
def test_another_way_to_compute_it_passes(name: str, referee: Referee) -> None:
    verdict = judged(referee, name, _HEAD + textwrap.dedent(OTHERWISE[name]), SHAPES[name])
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    some(
        [
            ("sum_of_many_tensors", "for tensor in tensors", "for tensor in [*tensors[:-1], tensors[0]]"),
            ("log_bessel_i", "TERMS = 112", "TERMS = 24"),
            ("mx_quantize", ".exponent - 1", ".exponent"),
            ("int6_matmul", "- 32)", "- 31)"),
            ("paged_attention_int8_cache", "(position < lengths", "(position <= lengths"),
            ("top_p_sampler", "SHARE = 0.9", "SHARE = 0.5"),
            ("hash_grid_encoding", "scaled.floor()", "scaled.round()"),
            ("batch_norm_relu_training", "momentum=0.1", "momentum=0.11"),
            ("gated_recurrence_backward", "torch.sigmoid(gate), b", "torch.sigmoid(gate), b.detach()"),
            ("decode_block", "place < lengths", "place <= lengths"),
        ]
    ),
)
def test_a_small_mistake_is_incorrect(name: str, old: str, new: str, referee: Referee) -> None:
    verdict = judged(referee, name, reference(name, (old, new)))
    assert verdict.verdict in ("incorrect", "contract_violation"), verdict.reason
