"""Sums of a table's rows by bags, and short depthwise convolutions: which are found in a graph, and what they compute."""

from __future__ import annotations

from pathlib import Path

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch, torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from agent.kernels.gpu import calls
from agent.kernels.rewriting import operations
from agent.kernels.rewriting.rewrite import rewrite
rewriting = operations._LIBRARY
for name in ("bags", "scatter"):
    rewriting.impl(name, getattr(calls, "library_" + name), "CPU")
rewriting.impl("convolution", lambda x, weight, *more: torch.convolution(x, weight, more[6], *more[:6]), "CPU")
torch.manual_seed(0)
table, ids, weight = torch.randn(9, 300), torch.randint(0, 9, (60,)), torch.randn(60)
offsets, bias = torch.tensor([0, 0, 3, 40, 40, 60]), torch.randn(300)
x, taps = torch.randn(3, 4, 20), torch.randn(4, 1, 3)

def rows(offsets, right=True):
    return torch.searchsorted(offsets, torch.arange(60), right=right) - 1

def sparse(offsets, ids, weight, table, bias):
    total = bias.expand(offsets.shape[0] - 1, -1)
    return torch.relu(total.index_add(0, rows(offsets), weight.unsqueeze(1) * table[ids]))

def unweighted(offsets, ids, table):
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets), table.index_select(0, ids))

def bag(offsets, ids, weight, table):
    return F.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True)

def without_last(offsets, ids, table):
    return F.embedding_bag(ids, table, offsets[:-1], mode="sum") * 2

def means(offsets, ids, table):
    return F.embedding_bag(ids, table, offsets, mode="mean", include_last_offset=True)

def padded(offsets, ids, table):
    return F.embedding_bag(ids, table, offsets, mode="sum", include_last_offset=True, padding_idx=3)

def left(offsets, ids, table):
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets + 1, False).clamp(min=0), table[ids])

def scaled(offsets, ids, table):
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets), table[ids], alpha=2)

def more_rows(offsets, ids, table):
    return table.new_zeros(offsets.shape[0], 300).index_add(0, rows(offsets), table[ids])

def each_column(offsets, ids, table):
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets), table[:1].unsqueeze(1)[:, 0] * table[ids])

def one_place(offsets, ids, table):
    both = torch.stack([table.repeat(7, 1)[:60], table.repeat(7, 1)[:60]])
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets), torch.ops.aten.index.Tensor(both, [ids[0] % 2]))

def written(offsets, ids, table):
    table = table.clone()
    picked = table[ids]
    table.add_(1.0)
    return table.new_zeros(offsets.shape[0] - 1, 300).index_add(0, rows(offsets), picked)

def short(x, taps, bias):
    return F.silu(F.conv1d(F.pad(x, (2, 0)), taps, bias[:4], groups=4))

def strided(x, taps):
    return F.conv1d(x, taps, None, 2, 3, 2, 4)

def two_outputs(x, taps):
    return F.conv1d(x, taps.repeat(2, 1, 1), groups=4)

def long(x, taps):
    return F.conv1d(x, taps.repeat(1, 1, 4), groups=4)

found = {}
cases = {
    "sparse": (sparse, (offsets, ids, weight, table, bias)), "negative": (sparse, (offsets, ids - 9, weight, table, bias)),
    "unweighted": (unweighted, (offsets, ids, table)), "bag": (bag, (offsets, ids, weight, table)),
    "strided table": (bag, (offsets, ids, weight, torch.cat([table, table], 1)[:, 20:])), "transposed": (bag, (offsets, ids, weight, table.t().contiguous().t())),
    "without last": (without_last, (offsets, ids, table)), "means": (means, (offsets, ids, table)), "padded": (padded, (offsets, ids, table)),
    "left": (left, (offsets, ids, table)), "scaled": (scaled, (offsets, ids, table)), "more rows": (more_rows, (offsets, ids, table)),
    "each column": (each_column, (offsets, ids, table)), "written": (written, (offsets, ids, table)), "one place": (one_place, (offsets, ids, table)),
    "in double": (unweighted, (offsets, ids, table.double())), "short": (short, (x, taps, bias)), "strided": (strided, (x, taps)),
    "one image": (short, (x[0], taps, bias)), "two outputs": (two_outputs, (x, taps)), "long": (long, (x, taps)),
}
for name, (run, given) in cases.items():
    graph = make_fx(run, pre_dispatch=True, tracing_mode="fake")(*given)
    rewrite(graph)
    nodes = [str(node.target) for node in graph.graph.nodes]
    left_over = [one.split(".")[1] for one in nodes if any(word in one for word in ("kernelwright.", "aten.conv1d", "aten.index_add", "embedding_bag"))]
    wanted, result = run(*given), graph(*given)
    found[name] = [left_over, wanted.shape == result.shape and torch.allclose(result, wanted, rtol=1e-4, atol=1e-4)]
outside = calls.library_bags(table, torch.tensor([1, 9, -1, 2]), torch.arange(5), None, True, True)
assert torch.equal(outside[[0, 2, 3]], table[[1, -1, 2]])
found["outside"] = outside.isnan().all(-1).tolist()
print(json.dumps(found))
"""


def test_bags_and_short_convolutions_are_found(tmp_path: Path) -> None:
    found = run_program(tmp_path, INTERPRETED + PROGRAM)
    assert found.pop("outside") == [False, True, False, False]
    wrong = [name for name, (_, same) in found.items() if not same]
    assert not wrong
    left_over = {name: left for name, (left, _) in found.items()}
    bags = ("sparse", "negative", "unweighted", "bag", "strided table", "transposed", "without last")
    assert {name for name, left in left_over.items() if left == ["bags"]} == set(bags)
    assert {name for name, left in left_over.items() if not left} == {"short", "strided", "one image"}
