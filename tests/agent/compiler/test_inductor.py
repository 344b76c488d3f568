"""Inductor's code as a candidate: right where it applies, the reference elsewhere, and refused with a reason where it cannot stand alone."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.inductor import assemble
from agent.errors import ProposalFailed
from tests.agent.compiler.extraction import PROGRAM, capture_text, run_program, task_text
from tests.variants import some

DIMS: dict[str, dict[str, Any]] = {
    "rows": {"min": 1, "max": 16384, "multiple_of": 1, "default": 64},
    "cols": {"min": 8, "max": 8192, "multiple_of": 1, "default": 128},
}

# Which calls reach the compiler's code, and whether all results are right.
RUN = """
import json, sys, torch, reference, candidate
torch.set_default_device(sys.argv[1])
reached = []
code = candidate.call
candidate.call = lambda given: (reached.append(case), code(given))[1]
right = {}
def compare(name, cols, *inputs, changed=lambda one: one):
    global case
    case = name
    model = changed(reference.Model(cols))
    new = changed(candidate.ModelNew(cols))
    new.load_state_dict(model.state_dict(), strict=True)
    right[name] = torch.allclose(new(*inputs), model(*inputs), atol=1e-5, rtol=1e-4)
draw = torch.randn
with torch.no_grad():
    compare("as captured", 128, draw(64, 128), draw(64, 128))
    compare("other rows", 128, draw(7, 128), draw(7, 128))
    compare("another configuration", 333, draw(7, 333), draw(7, 333))
    compare("one row", 128, draw(1, 128), draw(1, 128))
    compare("other strides", 128, draw(128, 9).t(), draw(9, 128))
    compare("other dtype", 128, draw(9, 128).double(), draw(9, 128).double(), changed=lambda one: one.double())
    compare("too many rows", 128, draw(17000, 128), draw(17000, 128))
    case, elsewhere = "another device", torch.zeros(9, 128, device="meta")
    right[case] = candidate.ModelNew(128).to("meta")(elsewhere, elsewhere).device.type == "meta"
compare("gradients", 128, draw(9, 128), draw(9, 128))
print(json.dumps({"reached": reached, "right": right}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "maker"),
    [("cpu", "async_compile.cpp_pybinding"), pytest.param("cuda", "SizedKernel", marks=pytest.mark.gpu)],
)
def test_one_source_serves_all_sizes_of_a_configuration_and_the_reference_serves_the_rest(
    tmp_path: Path, device: str, maker: str
) -> None:
    # An argument may have the name of what the candidate's own text binds.
    reference = task_text("layernorm_relu_add").replace("residual", "given")
    captured = capture_text(tmp_path / "capture", reference, DIMS, device)
    source = assemble(captured, reference, "layernorm_relu_add")
    assert source == assemble(captured, reference, "layernorm_relu_add")
    assert f" = {maker}(" in source
    (tmp_path / "reference.py").write_text(reference)
    (tmp_path / "candidate.py").write_text(source)
    answer = run_program(tmp_path, RUN, device)
    assert all(answer["right"].values()), answer
    assert answer["reached"] == ["as captured", "other rows", "one row"]


# Which batches reach the compiler's code, and whether all results are right, in shape too, and fail where the reference does.
BATCHES = """
import json, torch, reference, candidate
reached = []
code = candidate.call
candidate.call = lambda given: (reached.append(batch), code(given))[1]
right = {}
def result(model, x):
    try:
        return model(x)
    except IndexError:
        return torch.tensor(7.0)
for batch in (1, 5):
    x = torch.randn(batch, 7, 12)
    found, expected = result(candidate.ModelNew(), x), result(reference.Model(), x)
    right[batch] = found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6)
print(json.dumps({"reached": reached, "right": right}))
"""


@pytest.mark.parametrize(
    ("body", "reached"),
    some(
        [
            ("x.transpose(1, 2).softmax(0)", [1, 5]),
            ("x.mean(-1, keepdim=True).squeeze(-1)", [1, 5]),
            ("(2 * x).squeeze()", [5]),
            ("torch.squeeze_copy(2 * x, (0, 1))", [5]),
            ("x[1:].max(0).values", [5]),
        ]
    ),
)
def test_code_with_symbols_serves_a_batch_of_one_unless_size_1_changes_the_result(
    tmp_path: Path, body: str, reached: list[int]
) -> None:
    reference = (
        f"import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {body}\n\n\n"
        "def get_init_inputs():\n    return []\n\n\ndef get_inputs(batch=8):\n    return [torch.randn(batch, 7, 12)]\n"
    )
    captured = capture_text(
        tmp_path / "capture", reference, {"batch": {"min": 1, "max": 64, "multiple_of": 1, "default": 8}}
    )
    (tmp_path / "reference.py").write_text(reference)
    (tmp_path / "candidate.py").write_text(assemble(captured, reference, "batches"))
    answer = run_program(tmp_path, BATCHES)
    assert answer == {"reached": reached, "right": {"1": True, "5": True}}


# A branch that makes a number of one size and has another size equal a third.
BRANCHES = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        out = x * 2 if x.shape[1] == 12 else x * 3
        return out + 1 if y.shape == x.shape else out


def get_init_inputs():
    return []


def get_inputs(batch=8, wide=12, rows=8):
    return [torch.randn(batch, wide), torch.randn(rows, 12)]
"""

RUN_BRANCHES = """
import json, torch, reference, candidate
reached, right = [], []
code = candidate.call
candidate.call = lambda given: (reached.append(sizes), code(given))[1]
for sizes in ((8, 12, 8), (5, 12, 5), (5, 12, 6), (5, 13, 5)):
    x, y = torch.randn(*sizes[:2]), torch.randn(sizes[2], 12)
    right.append(torch.equal(candidate.ModelNew()(x, y), reference.Model()(x, y)))
print(json.dumps({"reached": reached, "right": right}))
"""


def test_a_size_that_a_branch_fixes_leaves_the_others_free(tmp_path: Path) -> None:
    dims = {
        name: {"min": 1, "max": 64, "multiple_of": 1, "default": default}
        for name, default in (("batch", 8), ("wide", 12), ("rows", 8))
    }
    captured = capture_text(tmp_path / "capture", BRANCHES, dims)
    (tmp_path / "reference.py").write_text(BRANCHES)
    (tmp_path / "candidate.py").write_text(assemble(captured, BRANCHES, "branches"))
    assert run_program(tmp_path, RUN_BRANCHES) == {"reached": [[8, 12, 8], [5, 12, 5]], "right": [True] * 4}


def test_a_size_among_the_results_is_no_symbol(tmp_path: Path) -> None:
    """Where results are made, no symbol has a value."""
    body = "return x + 1, x.shape[0]"
    reference = (
        BODY.format(body=body)
        .replace("get_inputs()", "get_inputs(rows=4)")
        .replace("randn(4,", "randn(rows,")
    )
    dims = {"rows": {"min": 1, "max": 64, "multiple_of": 1, "default": 4}}
    with pytest.raises(ProposalFailed, match="returns a size of its inputs"):
        assemble(capture_text(tmp_path / "symbols", reference, dims), reference, "t")
    assert json.loads(capture_text(tmp_path / "own", reference, {}))["result"] == "(out[0], 4,)"


EINSUM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y, z):
        return torch.einsum("bik,bkl,blj->bij", x, y, z)


def get_init_inputs():
    return []


def get_inputs(batch=8, wide=12, rows=6):
    return [torch.randn(batch, rows, wide), torch.randn(batch, wide, 5), torch.randn(batch, 5, wide)]
"""


def test_the_order_of_an_einsum_s_products_leaves_sizes_free(tmp_path: Path) -> None:
    """torch has opt_einsum choose it, which compares sizes."""
    dims = {
        name: {"min": 1, "max": 64, "multiple_of": 1, "default": default}
        for name, default in (("batch", 8), ("wide", 12), ("rows", 6))
    }
    told = json.loads(capture_text(tmp_path / "capture", EINSUM, dims))
    assert len(told["sizes"]) == 3
    assert not any("12" in one for one in (*told["shapes"], *told["conditions"]))


LISTS = """
import torch
from torch import nn


def map(value):
    return value * 2.0


class Model(nn.Module):
    def forward(self, len, map_, type=(), out=2):
        total = map(sum(one.sum() for one in type))
        return [len * out + map_[0] - map_[1], total]


def get_inputs():
    return [torch.ones(4), [torch.ones(4)] * 2, (torch.ones(2), torch.ones(7))]


def get_init_inputs():
    return []
"""

RUN_LISTS = """
import json, torch, reference, candidate
reached = []
code = candidate.call
candidate.call = lambda given: (reached.append(case), code(given))[1]
right = {}
def compare(name, *inputs, **more):
    global case
    case = name
    found = []
    for one in (candidate.ModelNew(), reference.Model()):
        given = [value() if callable(value) else value for value in inputs]
        try:
            found.append([float(torch.as_tensor(value).sum()) for value in one(*given, **more)])
        except Exception as error:
            found.append(str(error))
    right[name] = found[0] == found[1]
# Whole numbers and quarters: their sums are exact.
x, (a, b, c, d) = torch.ones(4), (torch.randint(0, 9, (size,)) / 4 for size in (4, 4, 2, 7))
with torch.no_grad():
    compare("as captured", x, [a, b], (c, d))
    compare("named", x, type=(c, d), map_=[a, b])
    compare("another split", x, [a, b, c], (d,))
    compare("tuples", x, (a, b), (c, d))
    compare("other sizes", x, [a, b], (c, c))
    compare("nothing", x, [a, b])
    compare("none", x, None, (c, d))
    compare("once", x, lambda: (one for one in (a, b)), (c, d))
    compare("numbers", x, [a, b], (c, 3.0))
    compare("another number", x, [a, b], (c, d), 3)
    compare("a float", x.int(), [a, b], (c, d), 2.0)
    compare("another float", x, [a, b], (c, d), 2.0)
    compare("a tensor for a number", x, [a, b], (c, d), torch.randint(0, 9, (4,)) / 4)
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    compare("nested", torch.nested.nested_tensor(parts), [a, b], (c, d))
    compare("sparse", x, [a, torch.rand(4, 4).relu().to_sparse_csr()], (c, d))
print(json.dumps({"reached": reached, "right": right}))
"""


@pytest.mark.slow
def test_lists_of_tensors_are_taken_as_they_were_captured(tmp_path: Path) -> None:
    source = assemble(capture_text(tmp_path / "capture", LISTS, {}), LISTS, "lists")
    (tmp_path / "reference.py").write_text(LISTS)
    (tmp_path / "candidate.py").write_text(source)
    answer = run_program(tmp_path, RUN_LISTS)
    assert all(answer["right"].values()), answer
    assert answer["reached"] == ["as captured", "named"]


def test_a_list_that_is_changed_is_refused(tmp_path: Path) -> None:
    for place, change in enumerate(("second.append(x)", "first[0] = x", "first.reverse()")):
        reference = LISTS.replace(
            "total = map", f"first, second, x = map_, [*type], len\n        {change}\n        total = map"
        )
        captured = capture_text(tmp_path / str(place), reference, {})
        if change.startswith("second"):  # a list of its own
            assert "class ModelNew(Model)" in assemble(captured, reference, "t")
        else:
            with pytest.raises(ProposalFailed, match="changes a list that it is given"):
                assemble(captured, reference, "t")


PARTS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8)))
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        return self.layers(x) * self.scale


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""

RUN_PARTS = """
import copy, json, torch, candidate
from torch import nn
reached = []
code = candidate.call
candidate.call = lambda given: (reached.append(case), code(given))[1]
right = {}
x = torch.randn(4, 8)
def compare(name, module, run=None):
    global case
    case = name
    run = run or (lambda one: one(x))
    found = run(module)
    module.__class__ = candidate.Model
    right[name] = torch.allclose(found, run(module), atol=1e-4)
    module.__class__ = candidate.ModelNew
with torch.no_grad():
    module = candidate.ModelNew()
    compare("as captured", module)
    module.layers[0] = nn.Linear(8, 8)
    compare("a part exchanged", module)
    module.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8)))
    compare("all parts exchanged", module)
    module.layers[2][0].weight = nn.Parameter(torch.randn(8, 8))
    module.scale = torch.rand(8)
    compare("tensors exchanged", module)
    shallow = copy.copy(module)
    shallow.__dict__["_modules"] = {"layers": copy.deepcopy(module.layers)}
    shallow.layers[0].weight.zero_()
    compare("a shallow copy", shallow)
    module.layers[0].__dict__["_parameters"] = dict(nn.Linear(8, 8)._parameters)
    compare("other dictionaries", module)
    other = copy.deepcopy(module)
    for one in other.parameters():
        one.fill_(0.5)
    compare("a copy", other)
    compare("its original", module)
    weights = {name: torch.randn_like(one) for name, one in module.state_dict().items()}
    compare("called with other weights", module, lambda one: torch.func.functional_call(one, weights, (x,)))
    module.layers[0].bias = None
    compare("without a bias", module)
    module.layers[0] = nn.Identity()
    compare("without a part's tensors", module)
print(json.dumps({"reached": reached, "right": right}))
"""


@pytest.mark.slow
def test_the_module_s_tensors_are_those_that_it_has_now(tmp_path: Path) -> None:
    """Where they are is remembered from call to call."""
    source = assemble(capture_text(tmp_path / "capture", PARTS, {}), PARTS, "parts")
    (tmp_path / "candidate.py").write_text(source)
    answer = run_program(tmp_path, RUN_PARTS)
    assert all(answer["right"].values()), answer
    assert answer["reached"] == [*answer["right"]][:-2]


BODY = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return torch.nn.functional.dropout(x, 0.5, True)", "draws random numbers"),
        ("return x.add_(1.0)", "shares memory with something else, or an input is written to"),
        ("return x.t()", "shares memory with something else"),
        ("self.calls += 1\n        return x * self.calls", "changes attributes of the module"),
        ("return x[x > 0]", "cannot be read off the inputs"),
        ("return x * torch.tensor([2.0])", "no input, parameter or buffer"),
        ("return iter([x])", "no plain data"),
    ],
)
def test_what_does_not_stand_alone_is_refused_with_its_reason(tmp_path: Path, body: str, said: str) -> None:
    reference = BODY.format(body=body)
    with pytest.raises(ProposalFailed, match=said):
        assemble(capture_text(tmp_path / "capture", reference, {}), reference, "t")


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "return torch.nn.functional.dropout(x, 0.5, False) + 1.0",
        "return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]",
    ],
)
def test_dropout_outside_training_draws_nothing(tmp_path: Path, body: str) -> None:
    reference = BODY.format(body=body)
    assert "class ModelNew(Model)" in assemble(
        capture_text(tmp_path / "capture", reference, {}), reference, "t"
    )


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"module": 3}', json.dumps({"module": "def ("}).encode()]
)
def test_a_capture_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ProposalFailed):
        assemble(data, task_text("softmax"), "t")


def test_a_number_of_an_index_beyond_32_bits_is_one_of_64_bits() -> None:
    """Triton refuses to compile an int32 with such a number, which torch.compile writes for a hash of an arange."""
    change = runpy.run_path(str(PROGRAM))["with_long_numbers"]
    for text in ("2654435769*x2", "3000000000*(x0 // 64)", "3000000000 + x0"):
        number, rest = text[:10], text[10:]
        assert (
            change(f"    tmp4 = ({text}).to(tl.int64)\n")
            == f"    tmp4 = (tl.full([], {number}, tl.int64){rest}).to(tl.int64)\n"
        )
    for kept in (
        "    tmp5 = 1000000007*r0_1",
        "    tmp5 = 0.3333333333333*x0",
        "    tmp12 = tl.full([1], 2246822507, tl.int64)",
        "    buf0 = empty_strided_cuda((3000000000*s0, 2))",
    ):
        assert change(kept) == kept


POOLS = """
import importlib.util, json, torch
from torch.fx.experimental.proxy_tensor import make_fx

def rounded(x, y):  # of PyTorch 2.11
    quotient, rest = x // y, x % y
    return quotient - 1 if rest != 0 and bool(rest < 0) != bool(y < 0) else quotient

torch._meta_registrations.div_rtn = rounded
spec = importlib.util.spec_from_file_location("capture_program", "capture_program.py")
capture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(capture)
capture.prepare_process()
pool = lambda x: torch.nn.functional.max_pool2d(x, 2)
graph = make_fx(pool, tracing_mode="symbolic")(torch.empty(4, 3, 20, 24)).graph
(x,) = graph.find_nodes(op="placeholder")
print(json.dumps([str(guard.expr) for guard in x.meta["val"].shape[0].node.shape_env.guards]))
"""


def test_a_pool_is_captured_for_odd_sizes_too(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    guards = run_program(tmp_path, POOLS)
    assert guards
    assert not [guard for guard in guards if "Mod" in guard]
