"""Einsums of many small matrices: which are found in a graph, and that the kernel computes them."""

from __future__ import annotations

from pathlib import Path

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
from agent.kernels.gpu import calls
from agent.kernels.rewriting import contractions, operations
from agent.kernels.rewriting.rewrite import rewrite
contractions.LEAST_OPERANDS, contractions.LARGEST_MATRIX = 100, 70
calls._multiplies = lambda *tensors: True
operations._LIBRARY.impl("contraction", calls.library_contraction, "CPU")
torch.manual_seed(0)
einsum, draw = torch.einsum, torch.randn

def states(b, decay, x):  # of a state-space model, in chunks
    return einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x)

def last_states(decay, states):
    return einsum("bhzc,bchpn->bzhpn", decay, states)[:, -1]

def one_head(b, decay, x):
    return einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x).select(2, 1).select(-1, -2)

def viewed(x, weights):
    return einsum("bnhd,bn->bdh", x, weights).view(2, -1) + 0

def of_one_head(q, k):
    return einsum("blhd,bshd->bhls", q, k)[:, -1]

def scaled(a, b, factor):
    return einsum("bkhi,bkhj,bhi->bhij", a, b, factor)

def heads(q, k):
    return einsum("blhd,bshd->bhls", q, k)

def turned(q, k):
    return einsum("bhds,bhdl->bhls", q, k)

def changed(q, k):
    scores = einsum("blhd,bshd->bhls", q, k)
    scores.add_(1.0)
    return scores

def plain(a, b):
    return einsum("bik,bkj->bij", a, b)

def all_summed(a, b):
    return einsum("bikl,bkjl->bij", a, b)

def repeated(a, b):
    return einsum("bii,bij->bij", a, b)

def spread(a, b):
    return einsum("...ik,...kj->...ij", a, b)

def outer(a, b):
    return einsum("blhi,blhj->bhlij", a, b)

def everywhere(a, b, c):
    return einsum("bki,bkj,bkj->bij", a, b, c)

b, decay, x = draw(2, 3, 19, 4, 5), draw(2, 4, 3, 19), draw(2, 3, 19, 4, 66)
wide = x * torch.exp2(torch.randint(-60, 60, x.shape).float())
cases = {
    "states": (states, (b, decay, x)),
    "states, no scale": (states, (b, decay, wide * 2.0**30)),
    "last states": (last_states, (draw(2, 4, 3, 3), draw(2, 3, 4, 6, 5))),
    "one head, not a product then": (one_head, (b, decay, x)),
    "a sum viewed": (viewed, (draw(2, 8, 16, 5), draw(2, 8))),
    "one head of a product": (of_one_head, (draw(2, 17, 3, 70), draw(2, 18, 3, 70))),
    "a factor of the sum": (scaled, (draw(2, 9, 4, 5), draw(2, 9, 4, 6), draw(2, 4, 5))),
    "heads": (heads, (draw(2, 17, 3, 70), draw(2, 18, 3, 70))),
    "heads of one batch": (heads, (draw(1, 17, 3, 70), draw(1, 18, 3, 70))),
    "turned": (turned, (draw(3, 2, 9, 20).transpose(0, 1), draw(2, 3, 9, 21))),
    "changed in place": (changed, (draw(2, 17, 3, 70), draw(2, 18, 3, 70))),
    "as torch multiplies": (plain, (draw(9, 7, 8), draw(9, 8, 6))),
    "rows and columns apart": (plain, (draw(9, 70, 16)[:, ::10, ::2], draw(9, 8, 6))),
    "matrices too large": (heads, (draw(2, 71, 3, 8), draw(2, 18, 3, 8))),
    "several summed": (all_summed, (draw(9, 7, 8, 2), draw(9, 8, 6, 2))),
    "a diagonal": (repeated, (draw(9, 7, 7), draw(9, 7, 6))),
    "axes without a letter": (spread, (draw(9, 7, 8), draw(9, 8, 6))),
    "nothing summed": (outer, (draw(2, 8, 3, 6), draw(2, 8, 3, 5))),
    "broadcast": (heads, (draw(1, 17, 3, 70), draw(2, 18, 3, 70))),
    "in double": (heads, (draw(2, 17, 3, 70).double(), draw(2, 18, 3, 70).double())),
    "a factor of the second": (everywhere, (draw(9, 20, 8), draw(9, 20, 7), draw(9, 20, 7))),
}
found = {}
for name, (run, given) in cases.items():
    graph = make_fx(run, pre_dispatch=True, tracing_mode="fake")(*given)
    rewrite(graph)
    called = sum("kernelwright.contraction" in str(node.target) for node in graph.graph.nodes)
    left = sum("einsum" in str(node.target) for node in graph.graph.nodes)
    wanted, result = run(*(one.double() for one in given)), graph(*given)
    exact = run(*(one.double().abs() for one in given))
    error = ((result - wanted).abs() / (exact.abs() + 1e-300)).max().item() if wanted.numel() else 0.0
    found[name] = [called, left, result.shape == wanted.shape and result.dtype == given[0].dtype, result.stride() == run(*given).stride(), error]
x[0, 1, 3, 2, 7], x[1, 2, 4, 3, 8], decay[1, 0, 0, 5] = torch.inf, torch.nan, -torch.inf
wanted, result = states(b, decay, x), calls.library_contraction("bclhn,bclhp,bhcl->bchpn", b, x, decay).transpose(3, 4)
same = (wanted.isnan() == result.transpose(3, 4).isnan()).all() and (wanted.isinf() == result.transpose(3, 4).isinf()).all()
print(json.dumps([found, bool(same), int(wanted.isnan().sum()), int(wanted.isinf().sum())]))
"""


def test_einsums_of_small_matrices_are_read_where_they_lie(tmp_path: Path) -> None:
    found, same, nans, infinities = run_program(tmp_path, INTERPRETED + PROGRAM)
    assert same and nans and infinities
    assert all(one[2] and one[4] < 3e-7 for one in found.values()), found
    assert [name for name, one in found.items() if not one[3]] == ["last states"]  # of no larger tensor
    assert {name: one[:2] for name, one in found.items()} == {
        "states": [1, 0],
        "states, no scale": [1, 0],
        "last states": [0, 0],
        "one head, not a product then": [0, 1],
        "a sum viewed": [0, 0],
        "one head of a product": [0, 1],
        "a factor of the sum": [0, 1],
        "heads": [1, 0],
        "heads of one batch": [0, 1],
        "turned": [1, 0],
        "changed in place": [1, 0],
        "as torch multiplies": [0, 1],
        "rows and columns apart": [1, 0],
        "matrices too large": [0, 1],
        "several summed": [0, 1],
        "a diagonal": [0, 1],
        "axes without a letter": [0, 1],
        "nothing summed": [0, 1],
        "broadcast": [0, 1],
        "in double": [0, 1],
        "a factor of the second": [1, 0],
    }
