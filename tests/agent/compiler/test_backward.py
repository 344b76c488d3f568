"""Inductor's code of tasks that are judged forward and backward, as an autograd function, and of modules that write to buffers."""

from __future__ import annotations

import json
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.inductor import assemble
from agent.errors import ProposalFailed
from agent.kernels.writing import rewriting_text, with_library
from kernelbench_tasks import Choice, catalog
from tests.agent.compiler.extraction import capture_text, run_program

REFERENCE = """
import torch
import torch.nn.functional as F
from torch import nn

DIRECTION = "forward_backward"
TRAINING = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.layer = nn.Linear(16, 24)

    def forward(self, x, index):
        hidden = F.gelu(self.layer(self.norm(x)))
        return hidden.exp(), index + 1, hidden.sum(0)[index]


def get_inputs(rows=40):
    return [torch.randn(rows, 16), torch.randint(0, 24, (7,))]


def get_init_inputs():
    return []
"""
DIMS: dict[str, dict[str, Any]] = {"rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 40}}

#: Which calls reach the compiler's code; whether results, gradients and buffers are right; what a second derivative says.
RUN = """
import json, sys, torch, reference, candidate
torch.set_default_device(sys.argv[1])
reached = []
for name in ("call", "call_backward"):
    code = getattr(candidate, name)
    setattr(candidate, name, lambda given, code=code, name=name: (reached.append(f"{name} {case}"), code(given))[1])
training = getattr(reference, "TRAINING", False)
init = reference.get_init_inputs()
right, refused = {}, {}

def leaf(one, wanted):
    return one.clone().requires_grad_(wanted) if torch.is_tensor(one) and one.is_floating_point() else one

def called(model, inputs, wanted):
    given = [leaf(one, wanted) for one in inputs]
    out = model(*given)
    outs = [out] if torch.is_tensor(out) else list(out)
    roots = [one for one in outs if one.requires_grad]
    if roots:
        torch.manual_seed(1)
        # Upstream gradients in another layout than the outputs.
        upstream = [torch.randn(one.shape[::-1]).permute(*range(one.dim())[::-1]) for one in roots]
        torch.autograd.backward(roots, upstream)
    found = [*outs, *(one.grad for one in [*given, *model.parameters()] if torch.is_tensor(one) and one.requires_grad)]
    return [one.detach() for one in found if one is not None] + list(model.buffers())

def compare(name, *inputs, wanted=True, mode=training, grads=True):
    global case
    case = name
    torch.manual_seed(0)
    model, new = reference.Model(*init).train(mode), candidate.ModelNew(*init).train(mode)
    new.load_state_dict(model.state_dict(), strict=True)
    with torch.set_grad_enabled(grads):
        try:
            expected = called(model, inputs, wanted)
        except RuntimeError as error:
            refused[name] = str(error)
            return
        pairs = zip(expected, called(new, inputs, wanted), strict=True)
        right[name] = all(torch.allclose(one, two, atol=1e-4, rtol=1e-4) for one, two in pairs)

inputs = reference.get_inputs()
compare("as captured", *inputs)
compare("without gradients", *inputs, grads=False)
compare("an input without gradient", *inputs, wanted=False)
if training:
    compare("other rows", torch.randn(9, 16), inputs[1])
    compare("other mode", *inputs, mode=False)
twice = ""
try:
    given = [leaf(one, True) for one in inputs]
    out = candidate.ModelNew(*init).train(training)(*given)
    out = out if torch.is_tensor(out) else out[0]
    total = out.sum()
    both = [torch.autograd.grad(total, given[0], retain_graph=True)[0] for _ in range(2)]
    # Scatters add in any order.
    right["the same backward twice"] = torch.allclose(*both, atol=1e-5, rtol=1e-5)
    one, = torch.autograd.grad(total, given[0], create_graph=True)
    one.sum().backward()
except RuntimeError as error:
    twice = str(error)
print(json.dumps({"reached": reached, "right": right, "refused": refused, "twice": twice}))
"""


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def ran(folder: Path, reference: str, source: str, device: str = "cpu") -> dict[str, Any]:
    (folder / "reference.py").write_text(reference)
    (folder / "candidate.py").write_text(source)
    return run_program(folder, RUN, device)


def with_products(module: str) -> str:
    return with_library(module)[0]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_results_gradients_and_running_statistics_are_the_reference_s(tmp_path: Path, device: str) -> None:
    captured = capture_text(tmp_path / "capture", REFERENCE, DIMS, device)
    source = assemble(captured, REFERENCE, "t")
    assert source == assemble(captured, REFERENCE, "t")
    answer = ran(tmp_path, REFERENCE, source, device)
    assert all(answer["right"].values()) and not answer["refused"], answer
    cases = ("as captured", "other rows")
    expected = [f"{name} {case}" for case in cases for name in ("call", "call_backward")]
    assert [one for one in answer["reached"] if not one.endswith("other mode")][:4] == expected
    assert not any("without" in one for one in answer["reached"]), answer["reached"]
    assert "no second derivative" in answer["twice"]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name",
    [
        "attention_relative_bias_backward",
        "cross_entropy_backward",
        "graph_attention_backward",
        "rms_norm_residual_backward",
        "transformer_block_training",
    ],
)
def test_tasks_of_the_catalogue(tmp_path: Path, name: str, device: str) -> None:
    """Sizes saved for the backward, an output that is a view, a scatter, two outputs; on a GPU with the library's kernels."""
    task = catalog.load(name)
    # torch's own backward on a GPU refuses a mask whose rows are not aligned.
    reference = task.source.replace("150", "160")
    (tmp_path / "task.py").write_text(reference)
    dims = {
        key: {"choices": list(dim.values), "default": dim.default} if isinstance(dim, Choice) else asdict(dim)
        for key, dim in runpy.run_path(str(tmp_path / "task.py"))["DIMS"].items()
    }
    files, changed = ({"rewriting.py": rewriting_text()}, with_products) if device == "cuda" else ({}, None)
    captured = capture_text(tmp_path / "capture", reference, dims, device, files)
    answer = ran(tmp_path, reference, assemble(captured, reference, name, changed=changed), device)
    assert all(answer["right"].values()), answer
    assert answer["reached"][:2] == ["call as captured", "call_backward as captured"]
    # Of a mask alone, torch's own attention has no backward on a GPU either ("LSE is not correctly aligned", torch 2.11).
    own = (
        {"an input without gradient"}
        if (name, device) == ("attention_relative_bias_backward", "cuda")
        else set()
    )
    assert set(answer["refused"]) <= own, answer["refused"]


def test_the_library_s_products_stand_in_both_halves(tmp_path: Path) -> None:
    """Where the library has kernels both halves are rewritten, and the kernels stand in the file once."""
    files = {"rewriting.py": rewriting_text()}
    captured = capture_text(tmp_path / "capture", REFERENCE, {}, files=files)
    assert json.loads(captured)["library_fault"] == ""
    source = assemble(captured, REFERENCE, "t", changed=with_products)
    forward, _, backward = source.partition("_backward")
    assert source.count("def product(") == 1
    assert "library_addmm(" in forward and "library_mm(" in backward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden.exp()", "F.dropout(hidden, 0.5)", "draws random numbers"),
        ("return", "with torch.no_grad():\n            x.add_(1.0)\n        return", "received a mutation"),
    ],
)
def test_what_autograd_s_graph_does_not_hold_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    reference = REFERENCE.replace(old, new, 1)
    with pytest.raises(ProposalFailed, match=said):
        assemble(capture_text(tmp_path / "capture", reference, {}), reference, "t")
