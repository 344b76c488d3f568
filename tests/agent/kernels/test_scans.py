"""Scans written as rounds of doubling steps: which are found in a graph, and that the kernel computes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch, torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from agent.kernels.gpu import calls
from agent.kernels.rewriting import operations
from agent.kernels.rewriting.rewrite import rewrite
from agent.kernels.writing import function_text
torch.manual_seed(0)

def shifted(x, step, value=0.0):
    return F.pad(x, (step, 0), value=value)[:, : x.shape[1]]

def segmented_sum(x, reset):
    total, stopped, step = x, reset, 1
    while step < x.shape[1]:
        total = total + shifted(total, step).masked_fill(stopped, 0.0)
        stopped = stopped | shifted(stopped, step, True)
        step *= 2
    return total

def segmented_logsumexp(x, reset):
    total, stopped, step = x, reset, 1
    while step < x.shape[1]:
        total = torch.logaddexp(total, shifted(total, step, -torch.inf).masked_fill(stopped, -torch.inf))
        stopped = stopped | shifted(stopped, step, True)
        step *= 2
    return total

def recurrence(gate, b):
    a, h, step = torch.sigmoid(gate), b, 1
    while step < a.shape[1]:
        h = h + a * F.pad(h, (0, 0, step, 0))[:, : a.shape[1]]
        a = a * F.pad(a, (0, 0, step, 0))[:, : a.shape[1]]
        step *= 2
    return h

def largest(x):
    step = 1
    while step < x.shape[1]:
        x = torch.maximum(x, shifted(x, step, -torch.inf))
        step *= 2
    return x * 2

def both(x, y):
    step, y = 1, y * 0.5
    while step < x.shape[1]:
        x, y = x + y * shifted(x, step), y * shifted(y, step)
        step *= 2
    return x, y

def too_few(x):
    for step in (1, 2, 4, 8):
        x = x + shifted(x, step)
    return x

def another_round(x):
    for step in (1, 2, 4, 8, 16):
        x = x + (2 if step == 8 else 1) * shifted(x, step)
    return x

def with_more(x, y):
    for step in (1, 2, 4, 8, 16):
        x = x + y * shifted(x, step)
    return x

def in_halves(x):
    x = x.half()
    for step in (1, 2, 4, 8, 16):
        x = x + shifted(x, step)
    return x

def written(x):
    x = x.clone()
    for step in (1, 2, 4, 8, 16):
        x = x + shifted(x, step)
    return x.add_(1)

def rounds(join, fills=(0.0,) * 5):
    def run(x):
        for step, fill in zip((1, 2, 4, 8, 16), fills):
            x = join(x, shifted(x, step, fill))
        return x
    return run

total, most = rounds(torch.add), rounds(torch.maximum, (-torch.inf,) * 5)

def one_behind_another(x):
    first = total(x)
    return most(first * 2 - x) + total(first)

def apart(x, y):
    first = total(x)
    return first, most(x * y)

def growing(x, y):
    for step in (1, 2, 4, 8, 16):
        x, y = x + y * shifted(x, step), y + shifted(y, step)
    return x

def turned(x):
    x = x.transpose(0, 1)
    for step in (1, 2, 4, 8, 16):
        x = x + shifted(x, step)
    return x.transpose(0, 1).view(-1)

flags, rows = torch.rand(3, 30) < 0.2, torch.randn(3, 30)
special = rows.clone()
special[0, 7], special[1, 9], special[2, 4] = torch.nan, torch.inf, -torch.inf
cases = {
    "segmented sum": (segmented_sum, (rows, flags)),
    "segmented sum in chunks": (segmented_sum, (torch.randn(2, 5000), torch.rand(2, 5000) < 0.0005)),
    "segmented logsumexp": (segmented_logsumexp, (rows, flags)),
    "special": (segmented_logsumexp, (special, flags)),
    "recurrence": (recurrence, (torch.randn(2, 17, 5), torch.randn(2, 17, 5))),
    "recurrence in chunks": (recurrence, (1 + torch.randn(1, 300, 3), torch.randn(1, 300, 3))),
    "largest": (largest, (special,)),
    "both results": (both, (rows, torch.rand(3, 30))),
    "too few rounds": (too_few, (rows,)),
    "another round": (another_round, (rows,)),
    "another tensor": (with_more, (rows, rows + 1)),
    "half precision": (in_halves, (rows,)),
    "written": (written, (rows,)),
    "short": (largest, (rows[:, :8],)),
    "one behind another": (one_behind_another, (rows,)),
    "apart": (apart, (rows, rows + 1)),
    "turned": (turned, (torch.randn(30, 3),)),
    "another fill later": (rounds(torch.add, (0.0, 1.0, 1.0, 1.0, 1.0)), (rows,)),
    "a fill that counts": (rounds(torch.maximum, (-4.0,) * 5), (5 * rows,)),
    "differences": (rounds(torch.sub), (rows,)),
    "halves": (rounds(lambda x, before: x + 0.5 * before), (rows,)),
    "magnitudes": (rounds(lambda x, before: x + before.abs()), (rows,)),
    "limits": (rounds(lambda x, before: (x + before).clamp(-5, 5)), (3 * rows,)),
    "growing": (growing, (rows, rows + 1)),
}
found = {}
for name, (run, given) in cases.items():
    graph = make_fx(run, pre_dispatch=True, tracing_mode="fake")(*given)
    rewrite(graph)
    scans = [node for node in graph.graph.nodes if "kernelwright.scan" in str(node.target)]
    left = sum(node.target is torch.ops.aten.pad.default for node in graph.graph.nodes)
    for place, node in enumerate(scans):
        file, functions = f"functions_{len(found)}_{place}", []
        texts = [text for text in node.args[3:] if text]
        written_out = [function_text(f"state_{at}", text, "") for at, text in enumerate(texts)]
        open(file + ".py", "w").write("import triton\\nimport triton.language as tl\\n" + "".join(written_out))
        made = __import__(file)
        first = made.state_1 if len(texts) > 1 else None

        def run_scan(x, y, dim, join, text, joins=(made.state_0, made.state_0_along), first=first):
            return calls.library_scan(x, y, dim, joins, first)

        node.target = run_scan
    graph.recompile()
    wanted, results = run(*given), graph(*given)
    if name == "short":  # symbols are no obstacle
        rewrite(make_fx(lambda x: x * F.pad(x, (1, 0))[:, :30], pre_dispatch=True, tracing_mode="symbolic")(rows))
    pairs = list(zip(wanted, results)) if isinstance(wanted, tuple) else [(wanted, results)]
    found[name] = [len(scans), left, all(torch.allclose(a, b, rtol=1e-4, atol=2e-4, equal_nan=True) for a, b in pairs)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_doubling_rounds_become_one_scan(tmp_path: Path) -> None:
    found = run_program(tmp_path, INTERPRETED + PROGRAM)
    assert {name: (scans, left) for name, (scans, left, _) in found.items()} == {
        "segmented sum": (1, 0),
        "segmented sum in chunks": (1, 0),
        "segmented logsumexp": (1, 0),
        "special": (1, 0),
        "recurrence": (1, 0),
        "recurrence in chunks": (1, 0),
        "largest": (1, 0),
        "both results": (1, 5),
        "too few rounds": (0, 4),
        "another round": (0, 5),
        "another tensor": (0, 5),
        "half precision": (0, 5),
        "written": (0, 5),
        "short": (0, 3),
        "one behind another": (3, 0),
        "apart": (2, 0),
        "turned": (0, 5),
        "another fill later": (0, 5),
        "a fill that counts": (0, 5),
        "differences": (0, 5),
        "halves": (0, 5),
        "magnitudes": (0, 5),
        "limits": (0, 5),
        "growing": (0, 9),
    }
    assert [name for name, (_, _, same) in found.items() if not same] == []
