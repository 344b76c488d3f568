"""Rules that rewrite a captured graph: what each changes and what it leaves alone, and that the result is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kernels.writing import function_text, kernels
from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.rewritten import rewritten
from tests.agent.kernels.test_rewriting import INTERPRETED

MEANS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, padding=1)
        self.strided = nn.Conv2d(3, 8, (4, 3), stride=(2, 1), padding=(0, 2), groups=1)
        self.grouped = nn.Conv1d(4, 8, 3, groups=2)
        self.pixels = nn.Conv2d(3, 5, 1)
        self.up = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.wide = nn.ConvTranspose2d(3, 4, (5, 4), stride=(2, 1), padding=(2, 0), bias=False)
        self.kept = nn.Conv2d(3, 8, 3)

    def forward(self, x, line, volume):
        twice = self.kept(x)
        return (
            F.avg_pool2d(self.plain(x), 4),
            F.avg_pool2d(self.strided(x), (2, 3), (2, 2)),
            F.avg_pool1d(self.grouped(line), 3),
            F.avg_pool2d(self.pixels(torch.relu(x)), 2),
            F.avg_pool3d(self.up(volume), 2),
            F.avg_pool2d(self.wide(x), (4, 3), (4, 2)),
            F.avg_pool2d(twice, 2) + twice.mean(),
            F.avg_pool2d(self.kept(x), 3, 1),
            F.avg_pool2d(self.plain(x), 2, padding=1),
            F.avg_pool2d(self.plain(x), 5, ceil_mode=True),
        )


def get_inputs():
    return [torch.randn(2, 3, 22, 23), torch.randn(2, 4, 17), torch.randn(2, 3, 5, 6, 7)]


def get_init_inputs():
    return []
"""


def test_a_mean_of_a_convolution_s_output_is_a_convolution(tmp_path: Path) -> None:
    found = rewritten(tmp_path, MEANS)
    assert found["same"] == [True] * 10
    taps = dict(zip(map(tuple, found["sizes"]), map(tuple, found["taps"]), strict=True))
    merged = {
        (2, 8, 5, 5): (6, 6),
        (2, 8, 5, 12): (6, 5),
        (2, 8, 5): (5,),
        (2, 5, 11, 11): (1, 1),  # after its mean
        (2, 4, 6, 7, 8): (2, 2, 2),
        (2, 4, 11, 12): (4, 6),
    }
    # Used twice; few products fewer; padded; and uneven windows: these stay.
    kept = {(2, 8, 20, 21): (3, 3), (2, 8, 22, 23): (3, 3)}
    assert taps == merged | kept
    assert len(found["sizes"]) == 10


def test_nothing_moves_past_a_write_to_a_view(tmp_path: Path) -> None:
    found = rewritten(tmp_path, WRITES)
    assert found["same"] == [True] * 3
    assert found["taps"] == [[3, 3]] * 3
    assert found["after"] == [""] * 3


AFTER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 20, 3, padding=1)
        self.shift = nn.Parameter(torch.randn(20, 1, 1))
        self.up = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.twice = nn.Conv1d(4, 6, 3, bias=False)
        self.joined = nn.Conv1d(4, 6, 3)

    def forward(self, x, line, volume, added):
        twice = torch.relu(self.twice(line))
        up = self.up(volume) + added
        return (
            F.silu(F.leaky_relu(self.first(x), 0.1) * self.shift + self.shift),
            up * F.hardswish(up),
            twice,
            twice * 2 + twice.mean(),
            F.max_pool2d(F.mish(torch.clamp(self.first(x), -0.5)), 2),
            F.max_pool2d(torch.clamp(self.first(x), min=1.0, max=0.5), 2),
            F.max_pool2d(torch.clamp(self.first(x), self.shift), 2),
            F.silu(self.joined(line)).sum(-1),
        )


def get_inputs():
    return [torch.randn(2, 3, 12, 13), torch.randn(2, 4, 17), torch.randn(2, 3, 5, 6, 7), torch.randn(2, 4, 10, 12, 14)]


def get_init_inputs():
    return []
"""

WRITES = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x, added):
        x, added = (x * 2).view(x.shape), (added * 2).view(added.shape)
        first = self.conv(x)
        x.add_(1)
        second = self.conv(x) + added
        added.mul_(2)
        return F.avg_pool2d(first, 4), second * 3, torch.relu_(self.conv(x).view(2, 4, 20, 20)) * 2


def get_inputs():
    return [torch.randn(2, 3, 22, 22), torch.randn(2, 4, 20, 20)]


def get_init_inputs():
    return []
"""

# The kernels themselves, with an image whose values no scale can hold.
KERNELS = """
import copy, json, torch, candidate, reference
torch.manual_seed(0)
model = reference.Model().eval()
exact = copy.deepcopy(model).double()
x, line, volume, added = reference.get_inputs()
x[1, 0, 3, 4], volume[1, 2, 3, 3, 3] = float("inf"), float("nan")
shift = model.shift.detach().view(-1)
errors = []
with torch.no_grad():
    wanted = exact(*(one.double() for one in (x, line, volume, added)))
    for name, used, operands in (("first", model.first, [shift, None]), ("up", model.up, [added, None])):
        want = wanted[0 if name == "first" else 1]
        after = candidate.After(getattr(candidate, name), *operands)
        out = torch.empty_like(want, dtype=torch.float32)
        axes = want.dim() - 2
        given = x if name == "first" else volume, used.weight, used.bias, [used.stride[0]] * axes, [1] * axes, [1] * axes
        candidate.convolution(*given, name == "up", out, 2, after)
        same = torch.equal(out.isnan(), want.isnan()) and torch.equal(out.isinf(), want.isinf())
        errors.append((out - want)[want.isfinite()].abs().max().item() if same else 1.0)
print(json.dumps({"errors": errors}))
"""


@pytest.mark.slow
def test_pointwise_operations_join_a_convolution_where_the_compiler_would_read_it_again(
    tmp_path: Path,
) -> None:
    found = rewritten(tmp_path, AFTER)
    assert found["same"] == [True] * 8
    relu, first, up, pooled, crossed, by_channel, joined = found["after"]
    assert relu == "t0 = tl.where(x < 0.0, 0.0, x); t0", "its result is used twice"
    assert "tl.sigmoid" in first and "+ 3.0" in up
    assert pooled == "", "mish takes a tile's few warps longer than the compiler's kernel, which clamps, too"
    assert "> 0.5" in crossed
    assert by_channel == "", "a limit may be NaN"
    assert joined == "", "what a sum reads joins the sum"
    assert found["operands"] == [0, 1, 1, 0, 0, 0, 0]
    assert found["bias"] == [False, True, True, False, True, False, False]
    functions = function_text("first", first, "x, a, b") + function_text("up", up, "x, a, b")
    (tmp_path / "candidate.py").write_text(kernels() + functions)
    errors = run_program(tmp_path, INTERPRETED + KERNELS)["errors"]
    assert max(errors) < 5e-6, errors


ORDERS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, z, y, long):
        ordered, places = torch.sort(x, dim=-1, descending=True, stable=True)
        best, at = x.topk(3, dim=-1, largest=False)
        likely, token = torch.sort(x, dim=-1, descending=True, stable=True)
        likely = torch.softmax(likely, -1)[:, :20]
        free, which = torch.sort(x, dim=-1, stable=True)
        changed = torch.sort(x, dim=-1, descending=True).values
        changed[:, :3].add_(1.0)
        return (
            torch.softmax(changed, -1)[:, :5],  # stays: written to in between
            likely.cumsum(-1),
            token.gather(-1, likely.sin().argmax(-1, keepdim=True)),
            torch.logcumsumexp(x, -1),
            torch.softmax(x.topk(3, -1).values, 0),
            torch.softmax(x.topk(3, -1).values, -1),
            torch.softmax(x.median(-1).values, -1),
            torch.softmax(x.sum(), 0),
            which.gather(-1, x.argmax(-1, keepdim=True)),  # stays: of all
            torch.softmax(free, -1).sum(-1),
            ordered[:, :4].exp(),
            places[..., 1],
            long.topk(3, dim=-1).values.exp(),
            best + at,
            x.median(dim=-1, keepdim=True).values,
            x.kthvalue(5, dim=1).values,
            torch.cdist(z, y, compute_mode="donot_use_mm_for_euclid_dist"),
            torch.cdist(z[:20], y[:25]),
            torch.cdist(z, y, 1.0),
            # These stay: all of a sorted row, the place of a median, another axis, many elements, a product of matrices.
            torch.sort(x, dim=-1, descending=True).values.sum(-1),
            x.median(dim=-1).indices,
            x.topk(2, dim=0).values,
            x.topk(70, dim=-1).values,
            torch.cdist(z, y),
            torch.sort(x, dim=-1).values[:, 3:],
            torch.sort(x, dim=-1).values[:, -1],
        )


def get_inputs():
    return [torch.randn(6, 80), torch.randn(30, 5), torch.randn(33, 5), torch.randn(2, 40000)]


def get_init_inputs():
    return []
"""


def test_order_statistics_and_distances_are_the_library_s_where_torch_would_be_called(tmp_path: Path) -> None:
    found = rewritten(tmp_path, ORDERS)
    assert found["same"] == [True] * 26
    assert (
        sorted(found["library"]) == ["distances"] * 3 + ["ranked"] * 3 + ["running_logsumexp"] + ["top"] * 6
    )


NORMS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.plain = nn.LayerNorm(768), nn.LayerNorm(768, elementwise_affine=False)
        self.long, self.two = nn.LayerNorm(1500), nn.LayerNorm((3, 768))

    def forward(self, x, long):
        turned = x.reshape(15, 768).t().contiguous().t()
        return self.norm(x), self.plain(x), self.long(long), self.two(x), self.norm(turned).view(-1) * 2


def get_inputs():
    x = torch.randn(5, 3, 768)
    x[1], x[2] = 2.7, 1e4 + x[2]
    return [x, torch.randn(4, 1500)]


def get_init_inputs():
    return []
"""


def test_a_layer_norm_of_constant_rows_is_exactly_its_shift(tmp_path: Path) -> None:
    found = rewritten(tmp_path, NORMS + CONSTANT)
    assert found["same"] == [True] * 5
    assert run_program(tmp_path, CONSTANT_ROWS)["left"] == 0.0, "a sum over a length is off, twice is not"


GROUPS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.plain = nn.GroupNorm(4, 12), nn.GroupNorm(3, 12, affine=False, eps=0.1)
        self.one = nn.GroupNorm(12, 12)
        for norm in (self.norm, self.one):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x, line):
        twice = self.norm(x)
        return (
            self.norm(F.hardswish(x)).mean((2, 3)),
            self.plain(x * 3 + 100).mean(dim=[1, 2, 3]),
            self.norm(x).mean((-1, -2), keepdim=True),
            self.norm(x).mean((1, 2, 3), keepdim=True),
            self.one(line).mean(-1),
            # These stay: part of a channel, channels alone, everything, another type, a norm that is used itself.
            self.norm(x).mean(-1),
            self.norm(x).mean(1),
            self.norm(x).mean(),
            self.norm(x).mean((2, 3), dtype=torch.float64),
            twice.mean((2, 3)) + twice[:, :, 0, 0],
        )


def get_inputs():
    return [torch.randn(5, 12, 6, 7), torch.randn(2, 12, 30)]


def get_init_inputs():
    return []
"""


def test_means_of_a_group_norm_come_from_its_channels(tmp_path: Path) -> None:
    found = rewritten(tmp_path, GROUPS)
    assert found["same"] == [True] * 10
    assert found["changed"] == 5
    assert run_program(tmp_path, CONSTANT_GROUPS)["left"] == 0.0


CONSTANT_GROUPS = """
import json, torch, rewriting
from torch.fx.experimental.proxy_tensor import make_fx
left = 0.0
for channels, groups, value in ((12, 4, 1000.1), (12, 4, 12345.678), (44, 4, 3.7), (24, 8, 0.1)):
    norm, x = torch.nn.GroupNorm(groups, channels, affine=False), torch.full((3, channels, 7, 9), value)
    graph = make_fx(lambda x: norm(x).mean((2, 3)), pre_dispatch=True, tracing_mode="fake")(x)
    assert rewriting.rewrite(graph) == 1
    left = max(left, graph(x).abs().max().item())
print(json.dumps({"left": left}))
"""


# For the check of values: constant rows apart.
CONSTANT = """
made = get_inputs


def get_inputs():
    x, long = made()
    return [torch.randn_like(x), long]
"""

CONSTANT_ROWS = """
import json, torch, reference, rewriting
from torch.fx.experimental.proxy_tensor import make_fx
x = torch.full((64, 768), 2.7) * torch.arange(1, 65).unsqueeze(1)
with torch.no_grad():
    graph = make_fx(reference.Model().plain, pre_dispatch=True, tracing_mode="fake")(x)
    rewriting.rewrite(graph)
print(json.dumps({"left": graph(x).abs().max().item()}))
"""


SCATTERED = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x, rows, offsets, lengths, labels, target):
        place = torch.arange(x.shape[0])
        segment = torch.searchsorted(offsets, place, right=True) - 1
        count = offsets.shape[0] - 1
        largest = x.new_full((count,), -torch.inf).scatter_reduce(0, segment, x, "amax")
        total = x.new_zeros(count).index_add(0, segment, torch.exp(x - largest[segment]))
        apart = segment.unsqueeze(1).expand_as(rows)
        least = rows.new_full((count, rows.shape[1]), torch.inf).scatter_reduce(0, apart, rows, "amin")
        repeated = torch.repeat_interleave(lengths, output_size=x.shape[0])
        summed = rows.new_ones(count, rows.shape[1]).index_add(0, repeated, rows)
        counts = torch.zeros(labels.shape[0], 9, dtype=torch.long).scatter_add(1, labels.long(), torch.ones_like(labels.long()))
        bucket = x.new_ones(count).index_add(0, torch.bucketize(place, offsets, right=True) - 1, x)
        narrow, some, wide = rows.new_zeros(count, 6), torch.ones_like(labels.long()), labels.long()
        some[:, 0], wide[:, 0] = 0, 8
        written = [torch.zeros(labels.shape[0], 9, dtype=torch.long).scatter_add(1, labels.long(), some)]
        written += [torch.zeros(labels.shape[0], 9, dtype=torch.long).scatter_add(1, wide, torch.ones_like(wide))]
        # These stay: places in any order, a product with the source, an average, another axis, a narrower or shorter index, ones
        # that were written to.
        return (
            largest, total, least, summed, counts, bucket, written[1],
            written[0],
            # These stay; the first has more values than a kernel counts.
            torch.zeros(labels.shape[0], 5000, dtype=torch.long).scatter_add(1, labels.long(), torch.ones_like(labels.long())),
            narrow.scatter_reduce(0, segment.unsqueeze(1).expand(-1, 3), rows, "amax"),
            narrow[:, :4].scatter_reduce(0, (segment[:4]).expand(50, 4), rows, "amax"),
            x.new_zeros(count).scatter_add(0, segment[:30], x),
            x.new_zeros(count).index_add(0, target, x),
            rows.new_zeros(count, rows.shape[1]).index_add(0, segment, rows * 2),
            rows.new_zeros(count, rows.shape[1]).scatter_reduce(0, apart, rows, "mean"),
            rows.new_zeros(rows.shape[0], count).index_add(1, segment[: rows.shape[1]], rows),
        )


def get_inputs():
    offsets = torch.tensor([0, 3, 3, 20, 50])
    labels = torch.randint(0, 9, (4, 30), dtype=torch.int32)
    return [torch.randn(50), torch.randn(50, 6), offsets, offsets.diff(), labels, torch.randint(0, 4, (50,))]


def get_init_inputs():
    return []
"""


def test_what_goes_to_places_in_order_and_counts_are_the_library_s(tmp_path: Path) -> None:
    found = rewritten(tmp_path, SCATTERED)
    assert found["same"] == [True] * 16
    assert sorted(found["library"]) == ["count"] * 2 + ["scatter"] * 5


HEADS = """
import torch
import torch.nn.functional as F
from torch import nn


def repeated(x, times):
    return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(x.shape[0], x.shape[1] * times, *x.shape[2:])


class Model(nn.Module):
    def written(self, x):
        copied = x.repeat_interleave(3, dim=1)
        copied[:, 1::2] = 0.5
        return copied

    def forward(self, q, few, k, v, known, added):
        attend = F.scaled_dot_product_attention
        return (
            attend(q, k, v, attn_mask=known, enable_gqa=True),
            attend(few, k, v, attn_mask=added, scale=0.3, enable_gqa=True),
            attend(q, repeated(k, 3), repeated(v, 3)),
            attend(few, k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)),
            attend(few, k, v, attn_mask=added[0], enable_gqa=True),
            attend(few, k, v, attn_mask=added[0, 0], enable_gqa=True),
            # A key or a copy that is written to, other batches.
            attend(few, self.written(k), v.repeat_interleave(3, dim=1)),
            attend(few, repeated(k, 3), self.written(v)),
            attend(few[:1], k, v, enable_gqa=True),
            # These stay: causal, many queries, heads of their own.
            attend(few, k, v, is_causal=True, enable_gqa=True),
            attend(few.repeat(1, 1, 12, 1), k, v, enable_gqa=True),
            attend(q[:, :2], k, v),
        )


def get_inputs():
    known = torch.rand(2, 1, 1, 40) > 0.5
    known[1] = False
    return [torch.randn(2, 6, 1, 8), torch.randn(2, 6, 2, 8), *torch.randn(2, 2, 2, 40, 8), known, torch.randn(2, 6, 2, 40)]


def get_init_inputs():
    return []
"""


def test_heads_that_share_keys_are_rows_of_one_product(tmp_path: Path) -> None:
    found = rewritten(tmp_path, HEADS)
    assert found["same"] == [True] * 12
    assert found["changed"] == 6


DECODING = """
import torch
import torch.nn.functional as F
from torch import nn


def repeated(x, times):
    return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(x.shape[0], x.shape[1] * times, *x.shape[2:])


class Model(nn.Module):
    def cast(self, q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v).float()

    def forward(self, q, k, v, known, added, x, y):
        attend = F.scaled_dot_product_attention
        scores = q @ k.transpose(2, 3)
        bias = added[:, None]
        heads = q.repeat(1, 4, 1, 1)
        return (
            attend(q, k, v),
            attend(q, k, v, attn_mask=known, scale=0.3),
            attend(q, k, v, attn_mask=added),
            attend(heads, k, v, attn_mask=known, enable_gqa=True),
            attend(heads, repeated(k, 4), v.repeat_interleave(4, 1)),
            attend(heads.repeat(1, 1, 2, 1), k, v, attn_mask=added, enable_gqa=True),
            attend(q, torch.cat([k, x], 2), torch.cat([v, y], dim=-2)),
            (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v,
            F.dropout(F.softmax((20 * torch.tanh(q @ k.transpose(2, 3) * 0.1) - bias).masked_fill(~known, -torch.inf), dim=3), 0.1, False) @ v,
            torch.einsum("bhgl,bhld->bghd", torch.einsum("bhgd,bhld->bhgl", q, k).float().mul(0.2).softmax(-1).to(v.dtype), v),
            torch.einsum("nhqk,nkhd->nqhd", torch.softmax(torch.einsum("nqhd,nkhd->nhqk", q.transpose(1, 2), k.transpose(1, 2)), -1), v.transpose(1, 2)),
            (q @ k.transpose(2, 3)).masked_fill(~known, -torch.inf).softmax(-1) @ v,
            (q @ torch.cat([k, x], 2).transpose(2, 3) / 8).softmax(-1) @ torch.cat([v, y], 2),
            attend(q.repeat(1, 1, 3, 1).transpose(1, 2).contiguous().transpose(1, 2), k, v).transpose(1, 2).view(2, 3, -1),
            attend(heads, *(one[:, 0].unsqueeze(-3).expand(-1, 8, -1, -1).reshape(2, 8, -1, 64) for one in (k, v))),
            # These stay: dropout, few keys, many queries, heads that are short, scores used elsewhere, over another axis, an equation that
            # sums something else, two tensors beside scores.
            attend(q, k, v, dropout_p=1e-12),
            attend(q, k[:, :, :100], v[:, :, :100], attn_mask=known[..., :100]),
            attend(heads.repeat(1, 5, 1, 1), k, v, enable_gqa=True),
            attend(q[..., :32], k[..., :32], v[..., :32]),
            scores.softmax(-1) @ v + scores.mean(),
            (q @ k.transpose(2, 3)).softmax(1) @ v,
            torch.einsum("bhgl,bhld->bhgd", torch.einsum("bhgd,bhle->bhgl", q, k).softmax(-1), v),
            ((q @ k.transpose(2, 3)) * bias + added).softmax(-1) @ v,
            # Nor do these: an autocast, a mask with more sizes than scores, one head of queries for several of keys, rounded scores.
            self.cast(q, k, v),
            (q[:1] @ k[:1].transpose(2, 3)).masked_fill(~known, -torch.inf).softmax(-1) @ v[:1],
            attend(q[:, :1], k[:, :1].repeat_interleave(4, 1), v[:, :1].repeat_interleave(4, 1)),
            torch.div(q @ k.transpose(2, 3), 2.0, rounding_mode="floor").softmax(-1) @ v,
        )


def get_inputs():
    known = torch.rand(2, 1, 1, 17000) > 0.5
    known[0, ..., 9000:] = False
    q, (k, v) = torch.randn(2, 2, 1, 64), torch.randn(2, 2, 2, 17000, 64)
    return [q, k, v, known, torch.randn(1, 17000), *torch.randn(2, 2, 2, 1, 64)]


def get_init_inputs():
    return []
"""


def test_attention_of_few_queries_is_the_library_s_however_it_is_written(tmp_path: Path) -> None:
    found = rewritten(tmp_path, DECODING)
    assert found["same"] == [True] * 27
    assert found["library"] == ["decoding"] * 15


LISTS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b, c, d):
        many = [a, b, c, d] * 5
        norm = torch.nn.utils.get_total_norm(many)
        twice = c.sum()
        return (
            torch.stack([one.sum() for one in many]),
            norm,
            torch.stack([torch.linalg.vector_norm(one) for one in many]),
            # These stay: few, another norm, sums over an axis, of what is computed, of whole numbers, used elsewhere.
            torch.stack([one.sum() for one in many[:5]]),
            torch.stack([torch.linalg.vector_norm(one, 1) for one in many]),
            torch.stack([b.sum(0) for _ in many]),
            torch.stack([one.exp().sum() for one in many]),
            torch.stack([one.int().sum() for one in many]),
            torch.stack([twice] * 20),
            twice,
            torch.stack([one.sum().double() for one in many]),
            torch.stack([one.sum().half().float() for one in many]),
        )


def get_inputs():
    return [torch.randn(3), torch.randn(4, 5), torch.randn(70), torch.randn(1, 2, 3)]


def get_init_inputs():
    return []
"""


def test_sums_and_norms_of_many_tensors_are_one_operation(tmp_path: Path) -> None:
    found = rewritten(tmp_path, LISTS)
    assert found["same"] == [True] * 12
    assert found["library"] == ["sums"] * 3
