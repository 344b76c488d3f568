"""Members that were judged forward and backward, or in training mode: other modules than one norm, and what else may hold state."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, imported, optimized_text, ran

_TASK = """
import torch
from torch import nn

DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, {names}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
#: Counts what runs. Its backward takes for granted that gradients have no gaps, and that all of them are there.
_MEMBER = """
import torch
from torch import nn

calls, wanted = [], []


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *given):
        calls.append("forward")
        ctx.set_materialize_grads(False)
        saved, result = forward(*given)
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    def backward(ctx, *gradients):
        calls.append("backward")
        wanted.append(ctx.needs_input_grad)
        for one in gradients:
            if not one.is_contiguous() or one.data_ptr() % 64:
                raise AssertionError("it was not judged with such a gradient")
        return backward(*gradients, *ctx.saved_tensors)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, {names}):
        return Own.apply({names}{weights})


{functions}
"""
CASES: dict[str, dict[str, str]] = {
    "linear": {
        "made": "self.part = nn.Linear(48, 32)",
        "names": "x",
        "inputs": "torch.randn(64, 48)",
        "result": "self.part(x)",
        "weights": ", self.part.weight, self.part.bias",
        "functions": """
def forward(x, weight, bias):
    return (x, weight), torch.addmm(bias, x, weight.t())


def backward(g, x, weight):
    return g @ weight, g.t() @ x, g.sum(0)
""",
    },
    "softmax": {
        "made": "pass",
        "names": "x",
        "inputs": "torch.randn(64, 48)",
        "result": "torch.softmax(x, -1)",
        "weights": "",
        "functions": """
def forward(x):
    y = torch.softmax(x, -1)
    return (y,), y


def backward(g, y):
    return y * (g - (g * y).sum(-1, keepdim=True))
""",
    },
    "two inputs": {
        "made": "self.scale = nn.Parameter(torch.randn(48))",
        "names": "x, gate",
        "inputs": "torch.randn(64, 48), torch.randn(64, 48)",
        "result": "x * torch.sigmoid(gate) * self.scale",
        "weights": ", self.scale",
        "functions": """
def forward(x, gate, scale):
    half = torch.sigmoid(gate)
    return (x, half, scale), x * half * scale


def backward(g, x, half, scale):
    return g * half * scale, g * x * scale * half * (1 - half), (g * x * half).sum(0)
""",
    },
    "two outputs": {
        "made": "self.scale = nn.Parameter(torch.randn(48))",
        "names": "x",
        "inputs": "torch.randn(64, 48)",
        "result": "x * self.scale, torch.sin(x)",
        "weights": ", self.scale",
        "functions": """
def forward(x, scale):
    return (x, scale), (x * scale, torch.sin(x))


def backward(one, other, x, scale):
    return one * scale + other * torch.cos(x), (one * x).sum(0)
""",
    },
    "indices": {
        "made": "self.table = nn.Parameter(torch.randn(20, 48))",
        "names": "rows, x",
        "inputs": "torch.randint(0, 20, (64,)), torch.randn(64, 48)",
        "result": "self.table[rows] * x",
        "weights": ", self.table",
        "functions": """
def forward(rows, x, table):
    return (rows, x, table), table[rows] * x


def backward(g, rows, x, table):
    return None, g * table[rows], torch.zeros_like(table).index_add_(0, rows, g * x)
""",
    },
}


def made(
    folder: Path, name: str, member: str = _MEMBER
) -> tuple[ModuleType, Any, nn.Module, list[torch.Tensor]]:
    """The delivered file of a case, a module of it, a reference with the same weights, and inputs that all want gradients."""
    task = _TASK.format(**CASES[name])
    given = [value.requires_grad_(value.is_floating_point()) for value in imported(folder, task).get_inputs()]
    candidate = Candidate(member.format(**CASES[name]), "llm", "own")
    module = imported(folder, optimized_text([candidate], task=task, dims={}))
    model, reference = module.ModelNew(), module.Model()
    model.load_state_dict(reference.state_dict())
    return module, model, reference, given


def went(module: Any, given: list[torch.Tensor], how: str) -> list[Any]:
    """Results of a call and what arrives in inputs and parameters."""
    given = [value.detach().clone().requires_grad_(value.requires_grad) for value in given]
    module.zero_grad()
    found = module(*given)
    results = list(found) if isinstance(found, tuple) else [found]
    used = results[:1] if how == "first" else results
    losses = {
        "sum": lambda y: y.sum(),
        "square": lambda y: y.square().sum(),
        "transposed": lambda y: (y.t() * torch.linspace(0, 1, y.numel()).view(y.t().shape)).sum(),
        "first": lambda y: y[1:].sum(),
    }
    sum(losses[how](one) for one in used).backward()
    return [*results, *(value.grad for value in given), *(weight.grad for weight in module.parameters())]


@pytest.mark.parametrize("how", ["sum", "square", "transposed", "first"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_run_and_gradients_are_right(tmp_path: Path, name: str, how: str) -> None:
    module, model, reference, given = made(tmp_path, name)
    found = went(model, given, how)
    assert module.calls == ["forward", "backward"]
    torch.testing.assert_close(found, went(reference, given, how))


@pytest.mark.parametrize("wanted", [0, 1, 7])
def test_an_input_that_needs_no_gradient_gets_none(tmp_path: Path, wanted: int) -> None:
    """The member makes it all the same, as when it was judged."""
    module, model, reference, given = made(tmp_path, "two inputs")
    given = [value.detach().requires_grad_(place == wanted) for place, value in enumerate(given)]
    found = went(model, given, "sum")
    assert module.calls == ["forward", "backward"]
    assert module.wanted == [(True, True, True)]
    assert [one is not None for one in found[1:3]] == [wanted == 0, wanted == 1]
    torch.testing.assert_close(found, went(reference, given, "sum"))


def test_one_frozen_weight_of_two_takes_the_reference(tmp_path: Path) -> None:
    module, model, reference, given = made(tmp_path, "linear")
    for one in (model, reference):
        one.part.bias.requires_grad_(False)
    found = went(model, given, "square")
    assert module.calls == [] and found[-1] is None
    torch.testing.assert_close(found, went(reference, given, "square"))
    assert "other parameters are frozen" in model.kernelwright_explain(*given)


def test_weights_that_are_put_in_place_of_others_get_the_gradients(tmp_path: Path) -> None:
    module, model, reference, given = made(tmp_path, "linear")
    went(model, given, "sum")
    for one in (model, reference):
        torch.manual_seed(5)
        one.part.weight = nn.Parameter(torch.randn(32, 48))
    del module.calls[:]
    torch.testing.assert_close(went(model, given, "sum"), went(reference, given, "sum"))
    assert module.calls == ["forward", "backward"]


_PACKED = """        return Own.apply({names}{weights}) * (self.twice / self.scale.detach() / 2)

    @classmethod
    def from_reference(cls, reference):
        made = cls()
        made.load_state_dict(reference.state_dict())
        made.twice = 2 * made.scale.detach()
        return made
"""


def test_a_member_made_from_the_reference_gets_gradients_and_new_weights(tmp_path: Path) -> None:
    """Its weights were copies, in which no optimizer would look for gradients; what it packs is made anew after each step."""
    member = _MEMBER.replace("        return Own.apply({names}{weights})\n", _PACKED)
    module, model, reference, given = made(tmp_path, "two inputs", member)
    steps = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, reference)]
    for _ in range(3):
        torch.testing.assert_close(went(model, given, "square"), went(reference, given, "square"))
        for step in steps:
            step.step()
    assert module.calls == ["forward", "backward"] * 3
    torch.testing.assert_close(model.scale, reference.scale)


_COUNTED = MEMBER.replace("calls = []", "calls = []\nmade = []").replace(
    "self.packed = None", "self.packed = None\n        made.append(1)", 1
)
_IN_A_DICTIONARY = (
    _COUNTED.replace("self.packed = None", "self.packed = {}", 1)
    .replace("if self.packed is None:\n", "if 0 not in self.packed:\n")
    .replace("self.packed = self.weight", "self.packed[0] = self.weight")
    .replace("x, self.packed)", "x, self.packed[0])")
)


_FROM_WEIGHTS = (
    _COUNTED.replace("self.packed = None", "self.packed, self.first = None, 1.0", 1).replace(
        "self.weight * self.factor", "self.weight * self.factor * self.first / self.weight[0]"
    )
    + "\n    def load_state_dict(self, state, **named):\n        found = super().load_state_dict(state, **named)\n"
    "        self.first = float(self.weight[0])\n        return found\n"
)
_BY_A_HOOK = (
    _COUNTED.replace(
        "        self.packed = None",
        "        self.act = nn.Identity()\n        self.act.register_forward_pre_hook(lambda *_: self.pack())\n        self.packed = None",
        1,
    ).replace(
        "        if self.packed is None:\n            self.packed = self.weight * self.factor\n",
        "        self.act(x)\n",
    )
    + "\n    def pack(self):\n        if self.packed is None:\n            self.packed = self.weight * self.factor\n"
)
_NO_COPIES = _COUNTED + "\n    def __deepcopy__(self, memo):\n        raise TypeError('no copies')\n"


@pytest.mark.parametrize(
    ("member", "constructed"),
    [(_COUNTED, 1), (_IN_A_DICTIONARY, 1), (_FROM_WEIGHTS, 2), (_BY_A_HOOK, 2), (_NO_COPIES, 2)],
    ids=["packs", "in a dictionary", "a number of the weights", "by a hook", "no copies"],
)
def test_what_a_member_keeps_of_its_weights_is_made_anew(
    member: str, constructed: int, tmp_path: Path
) -> None:
    """By a copy as it was constructed, or by another construction where more than plain values may have been kept there."""
    module = imported(tmp_path, optimized_text([Candidate(member, "llm", "counted")]))
    model, given = module.ModelNew(64), [torch.randn(32, 64), torch.randn(32, 64)]
    with torch.no_grad():
        model(*given)
        model.weight.mul_(-2.0)
        assert ran(
            module, lambda: torch.testing.assert_close(model(*given), module.Model.forward(model, *given))
        )
    assert len(module.made) == constructed


TRAINS = """
import torch
from torch import nn

{direction}
TRAINING = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(48)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(64, 48)]


def get_init_inputs():
    return []
"""
NORM = """
import torch
from torch import nn

calls = []


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, var):
        ctx.save_for_backward(x, weight, bias, mean, var)
        return torch.relu((x - mean) * torch.rsqrt(var + 1e-5) * weight + bias)

    @staticmethod
    def backward(ctx, g):
        assert g.is_contiguous()
        calls.append("backward")
        x, weight, bias, mean, var = ctx.saved_tensors
        scale = torch.rsqrt(var + 1e-5)
        normal = (x - mean) * scale
        g = g * (normal * weight + bias > 0)
        inner = g * weight
        to_x = scale * (inner - inner.mean(0) - normal * (inner * normal).mean(0))
        return to_x, (g * normal).sum(0), g.sum(0), None, None


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(48)

    def forward(self, x):
        calls.append("forward")
        var, mean = torch.var_mean(x.detach(), 0, correction=0)
        with torch.no_grad():
            norm, rows = self.norm, x.shape[0]
            norm.num_batches_tracked += 1
            {update}
        return Own.apply(x, norm.weight, norm.bias, mean, var)
"""
UPDATES = {
    "in place": "norm.running_mean.lerp_(mean, 0.1); norm.running_var.lerp_(var * rows / (rows - 1), 0.1)",
    "replaced": "norm.running_mean = norm.running_mean.lerp(mean, 0.1); norm.running_var = norm.running_var.lerp(var * rows / (rows - 1), 0.1)",
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("backward", [True, False])
def test_a_module_in_training_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str, backward: bool
) -> None:
    task = TRAINS.format(direction='DIRECTION = "forward_backward"' if backward else "")
    layer, both = "self.norm = nn.BatchNorm1d(48)", '; self.register_buffer("mask", torch.ones(48))'
    task, source = (text.replace(layer, layer + both) for text in (task, NORM.format(update=UPDATES[update])))
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "norm")], task=task, dims={}))
    model, reference = module.ModelNew(), module.Model()
    buffers = dict(model.named_buffers())
    batches = [torch.randn(64, 48) + place for place in range(3)]
    built: list[object] = []
    build = module._Dispatch._build
    monkeypatch.setattr(module._Dispatch, "_build", lambda *given: built.append(given) or build(*given))
    with model.kernelwright_trace() as ran:
        for batch in batches:
            if backward:
                torch.testing.assert_close(went(model, [batch], "sum"), went(reference, [batch], "sum"))
                for one in (model, reference):
                    torch.optim.SGD(one.parameters(), lr=0.05).step()
                continue
            with torch.no_grad():
                torch.testing.assert_close(model(batch), reference(batch))
    assert ran == ({"norm (llm)": 3, "norm (llm): backward": 3} if backward else {"norm (llm)": 3})
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    assert all(buffers[name] is buffer for name, buffer in model.named_buffers())
    assert len(built) == (2 if backward else 0), "after a step of the optimizer, and not after each call"
    for one in (model, reference):
        one.norm.running_var.fill_(4.0)
    with torch.set_grad_enabled(backward):
        model(batches[0])
        built.clear()
        torch.testing.assert_close(model(batches[0]), reference(batches[0]))
        assert not built
        model.mask.fill_(2.0)  # no call moves it, so a member may have packed it
        model(batches[0])
        assert len(built) == 1


@pytest.mark.parametrize("backward", [True, False])
def test_in_training_mode_alone(tmp_path: Path, backward: bool) -> None:
    """In eval mode it computes something else, which was not judged; nor were gradients, where the task asks for none."""
    task = TRAINS.format(direction='DIRECTION = "forward_backward"' if backward else "")
    member = Candidate(NORM.format(update=UPDATES["in place"]), "llm", "norm")
    module = imported(tmp_path, optimized_text([member], task=task, dims={}))
    model, x = module.ModelNew(), torch.randn(64, 48)
    reference = module.Model()
    reference.load_state_dict(model.state_dict())
    for training, child, gradients in [
        (False, False, backward),
        (True, False, backward),
        (True, True, not backward),
    ]:
        for one in (model, reference):
            one.train(training).norm.train(child)
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(model(x), reference(x))
            assert model.kernelwright_explain(x).startswith("reference")
    assert module.calls == []
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    with torch.set_grad_enabled(backward):
        model.eval()
        assert "members were judged in training mode" in model.kernelwright_explain(x)
        model.train()(x)
    assert module.calls == ["forward"]


def test_words_in_comments_are_no_training_mode(tmp_path: Path) -> None:
    """`dropout` in a comment made a file that runs its members in eval mode alone."""
    text = TASK.replace(
        '"""Scale and shift."""', '"""Scale and shift, for training with dropout."""  # BatchNorm'
    )
    assert "members were judged in eval mode" not in optimized_text(task=text)
    assert "members were judged in eval mode" in optimized_text(
        task=TASK.replace("self.factor = factor", "self.drop = nn.Dropout()")
    )
