"""Batched products with matrices that an index picks: which are found in a graph, and that the kernel computes them."""

from __future__ import annotations

from pathlib import Path

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
from agent.kernels.gpu import calls
from agent.kernels.rewriting import gathers, operations
from agent.kernels.rewriting.rewrite import rewrite
gathers.LEAST_PICKED = 300
rewriting = operations._LIBRARY
rewriting.impl("gathered", calls.library_gathered, "CPU")
torch.manual_seed(0)
down, up, index = torch.randn(5, 7, 600), torch.randn(5, 300, 7), torch.tensor([4, 0, -1, 2, 2, 0])
x = torch.randn(6, 600)

def adapters(down, up, index, x):
    return torch.bmm(up[index], torch.bmm(down[index], x.unsqueeze(-1))).squeeze(-1)

def rows(down, index, x):
    return x.unsqueeze(1) @ down.transpose(1, 2).index_select(0, index.clamp(min=0).int())

def used_twice(down, index, x):
    picked = down[index]
    return torch.bmm(picked, x.unsqueeze(-1)) + picked.sum()

def several_columns(down, index, x):
    return torch.bmm(down[index], x.unsqueeze(-1).expand(-1, -1, 2))

def in_double(down, index, x):
    return torch.bmm(down.double()[index], x.double().unsqueeze(-1))

def written(down, index, x):
    down = down.clone()
    picked = down[index]
    down.add_(1.0)
    return torch.bmm(picked, x.unsqueeze(-1))

def few(down, index, x):
    return torch.bmm(down[:, :1, :20][index[:2]], x[:2, :20].unsqueeze(-1))

wide = down.transpose(0, 1).contiguous().transpose(0, 1)
cases = {
    "adapters": (adapters, (down, up, index, x)), "strided": (adapters, (wide, up, index, x)), "rows": (rows, (down, index, x)),
    "used twice": (used_twice, (down, index, x)), "several columns": (several_columns, (down, index, x)),
    "in double": (in_double, (down, index, x)), "written": (written, (down, index, x)), "few": (few, (down, index, x)),
}
found = {}
for name, (run, given) in cases.items():
    graph = make_fx(run, pre_dispatch=True, tracing_mode="fake")(*given)
    rewrite(graph)
    count = sum("kernelwright.gathered" in str(node.target) for node in graph.graph.nodes)
    wanted, result = run(*given), graph(*given)
    found[name] = [count, wanted.shape == result.shape and torch.allclose(result, wanted, rtol=1e-4, atol=1e-4)]
outside = calls.library_gathered(down, torch.tensor([1, 5, -6]), x[:3])
found["outside"] = outside.isnan().all(-1).tolist()
print(json.dumps(found))
"""


def test_matrices_are_read_where_they_lie(tmp_path: Path) -> None:
    found = run_program(tmp_path, INTERPRETED + PROGRAM)
    assert found.pop("outside") == [False, True, True]
    assert found == {
        "adapters": [2, True],
        "strided": [2, True],
        "rows": [1, True],
        "used twice": [0, True],
        "several columns": [0, True],
        "in double": [0, True],
        "written": [0, True],
        "few": [0, True],
    }
