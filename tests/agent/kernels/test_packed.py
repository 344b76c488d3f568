"""Products with packed weights: which are found in a graph, and that the generated functions compute the weights."""

from __future__ import annotations

from pathlib import Path

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch, torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from agent.kernels.gpu import calls, products
from agent.kernels.rewriting import operations, packed
from agent.kernels.writing import _FUNCTIONS, function_text
torch.manual_seed(0)
codes = torch.randint(0, 256, (150, 96), dtype=torch.uint8)
scale = torch.rand(150, 3) + 0.1
table = torch.randn(16)

def four_bits(codes, scale):
    halves = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).unflatten(1, (-1, 64))
    return ((halves.float() - 8) * scale.unsqueeze(-1)).flatten(1)

def signed(codes, scale):
    return scale[:, 1:2] * codes.view(150, 96).float()

def six_bits(codes, scale):
    low, middle, high = codes.unflatten(1, (-1, 3)).unbind(-1)
    parts = [low & 63, low >> 6 | (middle & 15) << 2, middle >> 4 | (high & 3) << 4, high >> 2]
    return (torch.stack(parts, dim=-1).flatten(1) ^ 3).float() * 0.5

def two_bits(codes):
    return torch.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(1).float() - 1

def of_table(codes, scale, table):
    index = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).int()
    power = torch.exp2(scale.half().repeat_interleave(64, dim=1).float())
    return table[index] * -power

def turned(codes, scale):
    return (codes.t().reshape(96, 150) >> 3).float() * scale.t()[2].expand(96, 150)

def scale_of_groups(codes, scale):
    halves = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).unflatten(1, (-1, 64)).float()
    return (halves * scale[7].unsqueeze(-1)).flatten(1)

def moved(codes, scale):
    return codes[-1000:].permute(-1, 0).permute(-1, -2).float() * scale.permute(-1, -2)[1].unsqueeze(1)

def half_scale(codes, scale):
    return codes.float() * (scale.half() * 0.1).float()[:, :1]

def linear(weight):
    return lambda x, *given: F.linear(x, weight(*given))

def in_halves(codes, scale):
    return codes.half() * scale[:, :1].half()

cases = {
    "four bits": (linear(four_bits), four_bits, (codes, scale)),
    "signed": (linear(signed), signed, (codes.view(torch.int8), scale)),
    "other type": (linear(lambda codes: codes.view(torch.int8).float()), None, (codes,)),
    "wraps": (linear(lambda codes: (codes << 3).float()), None, (codes,)),
    "two bits": (linear(two_bits), two_bits, (codes,)),
    "one scale": (linear(lambda codes, scale, zero: ((codes & 7).float() - zero) * scale), lambda codes, scale, zero: ((codes & 7).float() - zero) * scale, (codes, torch.tensor(0.3), torch.tensor([3], dtype=torch.uint8))),
    "scale of groups": (linear(scale_of_groups), scale_of_groups, (codes, scale)),
    "moved": (linear(moved), moved, (codes, scale)),
    "half scale": (linear(half_scale), half_scale, (codes, scale)),
    "one row": (linear(lambda codes, scale: codes.float() * scale[:, :1]), lambda codes, scale: codes.float() * scale[:, :1], (codes[:1].clone(), scale[:1].clone())),
    "beyond its type": (linear(lambda codes: (codes & 511).float()), None, (codes,)),
    "six bits": (linear(six_bits), six_bits, (codes, scale)),
    "table": (linear(of_table), of_table, (codes, scale, table)),
    "turned": (lambda x, *given: x @ turned(*given), lambda *given: turned(*given).t(), (codes, scale)),
    "bias": (lambda x, codes, scale: F.linear(x[None], four_bits(codes, scale), scale[:, 0])[0], four_bits, (codes, scale)),
    "short groups": (linear(lambda codes, scale: (four_bits(codes, scale).unflatten(1, (-1, 32)) * scale[:, None, :1]).flatten(1)), None, (codes, scale)),
    "float weights": (linear(lambda w, scale: w * 2), None, (torch.randn(150, 96), scale)),
    "cumulative": (linear(lambda codes, scale: four_bits(codes, scale).cumsum(1)), None, (codes, scale)),
    "used twice": (lambda x, *given: (w := four_bits(*given), F.linear(x, w))[1] + w.sum(), None, (codes, scale)),
    "written": (lambda x, codes, scale: (codes.add_(1), F.linear(x, four_bits(codes, scale)))[1], None, (codes, scale)),
    "half": (lambda x, *given: F.linear(x.half(), in_halves(*given)), None, (codes, scale)),
    "whole weights": (linear(lambda codes: codes.bitwise_and(7).float()), lambda codes: (codes & 7).float(), (codes,)),
}
found = {}
for name, (run, weight, given) in cases.items():
    halves = name in ("four bits", "table", "bias", "cumulative", "used twice", "written", "short groups", "scale of groups")
    x = torch.randn(5, 192 if halves else {"six bits": 128, "two bits": 384}.get(name, 96))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in (x, *given)]
        graph = make_fx(run, pre_dispatch=True)(*fakes)
    for node in list(graph.graph.nodes):
        new = packed.packed_linear(graph.graph, node) if node.op == "call_function" else None
        if new is not None:
            node.replace_all_uses_with(new)
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    packs = [node for node in graph.graph.nodes if "packed" in str(node.target)]
    if not packs:
        found[name] = "left"
        continue
    _, sources, rows, text, parts = packs[0].args
    file = f"element_{len(found)}"
    open(file + ".py", "w").write("import triton\\nimport triton.language as tl\\n" + function_text("element", text, _FUNCTIONS["packed"][1]))
    element = __import__(file).element
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    tensors = [(x, *given)[names.index(one.name)] for one in sources]
    wanted = weight(*given)
    w = products.unpacked([*tensors, *[tensors[0]] * (4 - len(tensors))], element, parts, torch.full(wanted.shape, 7.0))
    close = torch.allclose(w, wanted, rtol=1e-6, atol=0)
    def run_packed(x, sources, rows, text, parts):
        return calls.library_packed(x, sources, rows, element, parts)

    packs[0].target = run_packed
    graph.recompile()
    whole = torch.allclose(graph(x, *given), run(x, *given), rtol=1e-4, atol=1e-4)
    found[name] = [close, whole]
out, change = torch.full((5, 150), 7.0), scale.clone()
change[3, 1], change[70, 2] = float("inf"), float("nan")
for name, scales in (("plain", scale), ("special", change)):
    x = torch.randn(5, 192)
    if name == "special":
        x[2, 5] = float("inf")
    element = __import__("element_0").element
    products.few(x, [codes, scales, scales, scales], out, None, 1.0, 0.0, element, 2)
    single = x @ four_bits(codes, scales).t()
    exact = (x.double() @ four_bits(codes, scales).double().t())
    finite = single.isfinite()
    error = (out - exact)[finite].norm() / exact[finite].norm()
    found["few, " + name] = [bool(error < 4e-7), bool(torch.equal(out[~finite].nan_to_num(8.0), single[~finite].nan_to_num(8.0)))]
open("element_100.py", "w").write("import triton\\nimport triton.language as tl\\n" + function_text("element", "t0 = tl.load(p0 + row * 100 + j, mask=there, other=0).to(tl.float32); t0, tl.load(p1 + row, mask=row_there, other=0)", _FUNCTIONS["packed"][1]))
numbers, scales, x = torch.randint(1, 9, (150, 100), dtype=torch.uint8), torch.rand(150, 1) + 0.1, torch.rand(5, 100)
scales[3] = torch.inf
products.few(x, [numbers, scales, scales, scales], out, None, 1.0, 0.0, __import__("element_100").element)
found["a step that is not whole"] = [bool(torch.allclose(out, x @ (numbers * scales).t(), rtol=1e-5)), True]
print(json.dumps(found))
"""


def test_weights_that_are_computed_from_packed_ones(tmp_path: Path) -> None:
    found = run_program(tmp_path, INTERPRETED + PROGRAM)
    left = {name for name, result in found.items() if result == "left"}
    assert left == {
        "six bits",
        "beyond its type",
        "other type",
        "wraps",
        "table",
        "short groups",
        "float weights",
        "cumulative",
        "used twice",
        "written",
        "half",
    }
    assert {
        name: result for name, result in found.items() if name not in left and result != [True, True]
    } == {}
    assert len(found) == 25
