"""A module's captured graph, rewritten, and what it computes with torch in place of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.kernels.writing import rewriting_text
from tests.agent.compiler.extraction import run_program

# The rewritten graph with torch in place of the library, and what its convolutions are.
REWRITTEN = """
import json, torch, reference, rewriting
from types import SimpleNamespace
from torch.fx.experimental.proxy_tensor import make_fx
from agent.kernels.gpu import calls
tl = SimpleNamespace(where=lambda at, a, b: torch.where(at, torch.tensor(a), torch.tensor(b)), sigmoid=torch.sigmoid, erf=torch.erf, exp=torch.exp, abs=torch.abs)

def convolution(*given):
    *given, after, a, b = given
    x = calls.library_convolution(*given)
    names = {"x": x, "a": a, "b": b, "tl": tl}
    *statements, result = after.split("; ")
    for statement in statements:
        exec(statement, names)
    return names[result] if after else x

def convolutions(inputs, which, weights, biases, forms, after):
    made = calls.library_convolutions(inputs, which, weights, biases, forms, None)
    return torch.cat([pointwise(after, part) for part in made.split([one.shape[0] for one in weights], 1)], 1)

def pointwise(text, x):
    names = {"x": x, "tl": tl}
    *statements, result = text.split("; ")
    for statement in statements:
        exec(statement, names)
    return names[result] if text else x

def attention(q, k, v, excluded, scale, causal, safe, element):
    if not element:
        return calls.library_attention(q, k, v, excluded, scale, causal, safe)
    names = {"x": (q @ k.transpose(2, 3)) * scale, "m": excluded, "tl": tl}
    *statements, result = element.split("; ")
    for statement in statements:
        exec(statement, names)
    return names[result] @ v

def decoding(q, keys, values, excluded, bias, scale, safe, change, *computed):
    if safe or not change:
        return calls.library_decoding(q, keys, values, excluded, bias, scale, safe, None)
    names = {"x": (q @ torch.cat(keys, 2).transpose(2, 3)) * scale, "m": bias, "tl": tl}
    *statements, result = change.removeprefix("x, m: ").split("; ")
    for statement in statements:
        exec(statement, names)
    scores = names[result] if excluded is None else names[result].masked_fill(excluded, -torch.inf)
    return scores.softmax(-1) @ torch.cat(values, 2)

rewriting._LIBRARY.impl("decoding", decoding, "CPU")
rewriting._LIBRARY.impl("convolution", convolution, "CPU")
rewriting._LIBRARY.impl("convolutions", convolutions, "CPU")
rewriting._LIBRARY.impl("attention", attention, "CPU")
for name in ("max_pool", "distances", "ranked", "top", "running_logsumexp", "scatter", "count", "sums"):
    rewriting._LIBRARY.impl(name, getattr(calls, "library_" + name), "CPU")
torch.manual_seed(0)
model = reference.Model().eval().requires_grad_(False)
given, state = reference.get_inputs(), dict(model.named_parameters()) | dict(model.named_buffers())

def flat(*values):
    return torch.func.functional_call(model, dict(zip(state, values[len(given):])), values[: len(given)])

with torch.no_grad():
    graph = make_fx(flat, pre_dispatch=True, tracing_mode="fake")(*given, *state.values())
    changed = rewriting.rewrite(graph)
    found = graph(*given, *state.values())
    same = [
        torch.allclose(a, b, equal_nan=True, **({"atol": 1e-5, "rtol": 1e-4} if a.dtype.itemsize != 2 else {"atol": 2e-2, "rtol": 2e-2}))
        for a, b in zip(found, model(*given), strict=True)
    ]
called = [str(node.target).split(".")[1] for node in graph.graph.nodes if "kernelwright." in str(node.target)]
nodes = [node for node in graph.graph.nodes if "kernelwright.convolution.default" in str(node.target)]
print(json.dumps({
    "changed": changed,
    "same": same,
    "library": called,
    "sizes": [list(node.meta["val"].shape) for node in nodes],
    "taps": [list(node.args[1].meta["val"].shape[2:]) for node in nodes],
    "bias": [node.args[8] is not None for node in nodes],
    "after": [node.args[9] for node in nodes],
    "operands": [sum(one is not None for one in node.args[10:]) for node in nodes],
}))
"""


def rewritten(folder: Path, reference: str) -> dict[str, Any]:
    (folder / "reference.py").write_text(reference)
    (folder / "rewriting.py").write_text(rewriting_text())
    return run_program(folder, REWRITTEN)
