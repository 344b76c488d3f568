"""The delivered file as its user meets it: when the member runs, when the reference does, and that weights stay one."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agent.candidates import Candidate
from agent.dispatch.features import Feature
from agent.dispatch.tree import Leaf, Split
from tests.agent.bundle.building import MEMBER, TASK, imported, optimized_text


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("optimized")
    return imported(folder, optimized_text())


def inputs(rows: int = 32, cols: int = 64, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(rows, cols, dtype=dtype), torch.randn(rows, cols, dtype=dtype)]


def ran(module: ModuleType, call: Callable[[], Any]) -> bool:
    """Whether the member ran during the call."""
    before = len(module.calls)
    call()
    return len(module.calls) > before


def test_is_a_drop_in_with_the_same_state_dict(optimized: ModuleType) -> None:
    reference, model = optimized.Model(64), optimized.ModelNew(64)
    assert list(model.state_dict()) == list(reference.state_dict())
    assert model.load_state_dict(reference.state_dict(), strict=True)
    assert [name for name, _ in model.named_modules()] == [""]
    x, residual = inputs()
    with torch.inference_mode():
        torch.testing.assert_close(model(x, residual), reference(x, residual))


def test_draws_the_same_weights_and_leaves_the_generator_where_the_reference_does(
    optimized: ModuleType,
) -> None:
    torch.manual_seed(7)
    reference, after = optimized.Model(64), torch.rand(3)
    torch.manual_seed(7)
    model, also_after = optimized.ModelNew(64), torch.rand(3)
    assert torch.equal(reference.weight, model.weight)
    assert torch.equal(after, also_after)


def test_the_member_runs_inside_the_domain(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    for rows in (1, 7, 4096):
        with torch.no_grad():
            assert ran(optimized, lambda rows=rows: model(*inputs(rows)))
    with torch.inference_mode():
        assert ran(optimized, lambda: model(residual=inputs()[0], x=inputs()[0]))
        assert model.kernelwright_explain(*inputs()) == "scale and shift (human)"


@pytest.mark.parametrize(
    "names",
    ["key choice", "given known", "type tensor", "max len", "self_ torch_", "shape0 rows", "_key fixed"],
)
def test_the_member_runs_whatever_arguments_are_called(names: str, tmp_path: Path) -> None:
    """An argument called `key`, as in attention, once kept every member from running."""
    task, member = TASK, MEMBER
    for old, new in zip(("x", "residual"), names.split(), strict=True):
        task, member = (re.sub(rf"\b{old}\b", new, text) for text in (task, member))
    optimized = imported(tmp_path, optimized_text([Candidate(member, "human", "scale and shift")], task=task))
    model, given = optimized.ModelNew(64), inputs()
    with torch.no_grad():
        assert ran(optimized, lambda: model(*given)) and ran(optimized, lambda: model(*given))
        torch.testing.assert_close(model(*given), optimized.Model.forward(model, *given))
        assert model.kernelwright_explain(*given) == "scale and shift (human)"
        assert "range" in model.kernelwright_explain(*inputs(5000))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (lambda: inputs(5000), "range"),
        (lambda: [inputs()[0], inputs(1)[1]], "belong together"),
        (lambda: [inputs()[0], torch.randn(64)], "number of dimensions"),
        (lambda: [inputs()[0].half(), inputs()[1]], "dtype"),
        (lambda: [inputs()[0].double(), inputs()[1]], "dtype"),
        (lambda: [torch.randn(64, 32).t(), inputs()[1]], "layout"),
        (lambda: [torch.randn(32 * 64 + 1)[1:].view(32, 64), inputs()[1]], "layout"),
        (lambda: [torch.nn.Parameter(inputs()[0], requires_grad=False), inputs()[1]], "plain tensor"),
        (lambda: [value.to("meta") for value in inputs()], "device"),
        (lambda: inputs(0), "range"),
    ],
)
def test_the_reference_runs_choose_the_domain(
    optimized: ModuleType, arguments: Callable[[], list[torch.Tensor]], why: str
) -> None:
    model, given = optimized.ModelNew(64), arguments()
    if given[0].device.type == "meta":
        with torch.no_grad():
            assert why in model.kernelwright_explain(*given)
        return
    with torch.no_grad():
        assert not ran(optimized, lambda: model(*given))
        torch.testing.assert_close(model(*given), optimized.Model.forward(model, *given))
        assert why in model.kernelwright_explain(*given)


def test_sizes_that_do_not_fit_the_parameters_raise_as_the_reference_does(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    with torch.no_grad(), pytest.raises(RuntimeError, match="size"):
        model(*inputs(cols=128))


def test_gradients_come_from_the_reference(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    x, residual = inputs()
    assert not ran(optimized, lambda: model(x, residual).sum().backward())
    assert model.weight.grad is not None
    model.requires_grad_(False)
    assert ran(optimized, lambda: model(x, residual))
    x.requires_grad_(True)
    assert not ran(optimized, lambda: model(x, residual).sum().backward())
    assert x.grad is not None


def test_autocast_and_function_transforms_take_the_reference(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64).requires_grad_(False)
    x, residual = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not ran(optimized, lambda: model(x, residual))
    stacked = torch.randn(3, 32, 64)
    assert not ran(optimized, lambda: torch.vmap(lambda one: model(one, residual))(stacked))
    assert ran(optimized, lambda: model(x, residual))


@pytest.mark.parametrize("change", ["load", "in_place", "assign", "replace", "optimizer"])
def test_a_member_that_packs_weights_sees_every_change(optimized: ModuleType, change: str) -> None:
    model, other = optimized.ModelNew(64), optimized.Model(64)
    x, residual = inputs()
    with torch.no_grad():
        model(x, residual)
    if change == "load":
        model.load_state_dict(other.state_dict())
    elif change == "assign":
        model.load_state_dict(other.state_dict(), assign=True)
    elif change == "replace":
        model.weight = torch.nn.Parameter(other.weight.detach().clone())
    elif change == "in_place":
        with torch.no_grad():
            model.shift.add_(1.0)
            model.weight.mul_(3.0)
    else:
        step = torch.optim.SGD(model.parameters(), lr=0.5)
        model(x, residual).square().sum().backward()
        step.step()
    with torch.no_grad():
        assert ran(optimized, lambda: model(x, residual))
        torch.testing.assert_close(model(x, residual), optimized.Model.forward(model, x, residual))


def test_weights_exist_once(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    with torch.no_grad():
        model(*inputs())
    member = model._kw_dispatch.built[0][0][0].__self__
    assert member.weight.data_ptr() == model.weight.data_ptr()
    assert member.shift.data_ptr() == model.shift.data_ptr()


def test_other_parameter_dtypes_take_the_reference_and_back_again(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    with torch.no_grad():
        model.double()
        assert not ran(optimized, lambda: model(*inputs(dtype=torch.float64)))
        model.float()
        assert ran(optimized, lambda: model(*inputs()))


def test_copies_and_pickles_are_independent(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        before = model(x, residual)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin.weight.add_(1.0)
            assert ran(optimized, lambda twin=twin: twin(x, residual))
            torch.testing.assert_close(twin(x, residual), optimized.Model.forward(twin, x, residual))
        torch.testing.assert_close(model(x, residual), before)


def test_other_constructor_arguments_take_the_reference(optimized: ModuleType) -> None:
    for model in (optimized.ModelNew(64, 3.0), optimized.ModelNew(63), optimized.ModelNew(cols=2048)):
        with torch.no_grad():
            assert not ran(optimized, lambda model=model: model(*inputs(cols=model.weight.numel())))
        assert "constructor" in model.kernelwright_explain(*inputs(cols=model.weight.numel()))
    keyword = optimized.ModelNew(cols=64, factor=2.0)
    with torch.no_grad():
        assert ran(optimized, lambda: keyword(*inputs()))


def test_torch_compile_sees_the_reference_only(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64).requires_grad_(False)
    x, residual = inputs()
    traced = torch.compile(model, backend="eager", fullgraph=True)
    assert not ran(optimized, lambda: traced(x, residual))


def test_a_member_that_fails_is_given_up_with_one_warning(tmp_path: Path) -> None:
    failing = MEMBER.replace("calls.append", "raise ValueError('no kernel')\n        calls.append")
    module = imported(tmp_path, optimized_text([Candidate(failing, "llm", "fails")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="no kernel"):
            first = model(x, residual)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            second = model(x, residual)
    torch.testing.assert_close(first, module.Model.forward(model, x, residual))
    torch.testing.assert_close(second, first)
    assert "no kernel" in model.kernelwright_explain(x, residual)


@pytest.mark.parametrize("line", ["import triton_that_is_not_there", "raise OSError('no compiler')"])
def test_a_member_that_cannot_be_loaded_leaves_the_reference(tmp_path: Path, line: str) -> None:
    text = optimized_text([Candidate(f"{line}\n{MEMBER}", "llm", "cannot load")])
    with pytest.warns(RuntimeWarning, match="member 1 cannot be loaded"):
        module = imported(tmp_path, text)
    model = module.ModelNew(64)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs()).shape, torch.Size([32, 64]))


def test_from_reference_members_get_the_module_and_its_changes(tmp_path: Path) -> None:
    packing = """
import torch
import torch.nn as nn

calls = []


class ModelNew(nn.Module):
    def __init__(self, packed, shift):
        super().__init__()
        self.packed, self.shift = packed, shift

    @classmethod
    def from_reference(cls, reference):
        return cls((reference.weight * reference.factor).detach().clone(), reference.shift.clone())

    def forward(self, x, residual):
        calls.append(1)
        return torch.addcmul(self.shift + residual, x, self.packed)
"""
    module = imported(tmp_path, optimized_text([Candidate(packing, "llm", "packs")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        for _ in range(2):
            model.weight.add_(1.0)
            assert ran(module, lambda: model(x, residual))
            torch.testing.assert_close(model(x, residual), module.Model.forward(model, x, residual))


def test_a_member_is_called_past_its_own_checks_where_the_dispatcher_has_made_them(tmp_path: Path) -> None:
    source = MEMBER.replace("calls = []", "calls = []\nunchecked = []") + (
        "\n    def forward_checked(self, x, residual):\n"
        "        unchecked.append(1)\n"
        "        return self.forward(x, residual)\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "two ways")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        torch.testing.assert_close(model(x, residual), module.Model.forward(model, x, residual))
        assert len(module.unchecked) == 1
        # Dense parameters are among what the dispatcher vouches for.
        model.weight = torch.nn.Parameter(torch.randn(128)[::2])
        assert ran(module, lambda: model(x, residual))
        torch.testing.assert_close(model(x, residual), module.Model.forward(model, x, residual))
    assert len(module.unchecked) == 1


def test_two_members_share_the_sizes_by_the_tree(tmp_path: Path) -> None:
    large = MEMBER.replace("calls", "big_calls")
    members = [Candidate(MEMBER, "human", "small one"), Candidate(large, "compiler", "large one")]
    text = optimized_text(members, tree=Split(Feature("size", ("rows",)), 100, Leaf(0), Leaf(1)))
    module = imported(tmp_path, text)
    model = module.ModelNew(64)
    with torch.no_grad():
        assert model.kernelwright_explain(*inputs(100)) == "small one (human)"
        assert model.kernelwright_explain(*inputs(101)) == "large one (compiler)"
        assert ran(module, lambda: model(*inputs(100)))
        assert not ran(module, lambda: model(*inputs(101)))
        torch.testing.assert_close(model(*inputs(101)).shape, torch.Size([101, 64]))
    assert len(module.big_calls) == 2


def test_a_leaf_may_be_the_reference(tmp_path: Path) -> None:
    module = imported(
        tmp_path, optimized_text(tree=Split(Feature("size", ("rows",)), 1, Leaf(None), Leaf(0)))
    )
    model = module.ModelNew(64)
    with torch.no_grad():
        assert "fastest choice" in model.kernelwright_explain(*inputs(1))
        assert not ran(module, lambda: model(*inputs(1)))
        assert ran(module, lambda: model(*inputs(2)))


def test_training_mode_takes_the_reference_where_it_computes_something_else(tmp_path: Path) -> None:
    task = TASK.replace("+ residual\n", "+ nn.functional.dropout(residual, 0.5, self.training)\n")
    module = imported(tmp_path, optimized_text(task=task))
    model = module.ModelNew(64)
    with torch.no_grad():
        assert not ran(module, lambda: model(*inputs()))
        model.eval()
        assert ran(module, lambda: model(*inputs()))
        model.train()
        assert not ran(module, lambda: model(*inputs()))


def test_names_of_the_parts_do_not_collide(tmp_path: Path) -> None:
    task = TASK.replace(
        "class Model(", "calls = 'of the reference'\n\n\ndef _choose():\n    return calls\n\n\nclass Model("
    )
    task = task.replace(
        "self.factor = factor", "self.factor = factor\n        assert _choose() == 'of the reference'"
    )
    module = imported(tmp_path, optimized_text(task=task))
    model = module.ModelNew(64)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs()).shape, torch.Size([32, 64]))
    assert module.calls == "of the reference"
    assert len(module.calls_1) == 1


def test_a_member_s_own_names_are_not_the_dispatcher_s(tmp_path: Path) -> None:
    """Both have an `_is_compiling`; the dispatcher's stands below the member's and would take its place."""
    source = MEMBER.replace("calls = []", "calls = []\n_is_compiling = 2.0\n_Tensor = 1.0").replace(
        "self.weight * self.factor", "self.weight * self.factor * _is_compiling / 2.0 * _Tensor"
    )
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "own names")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        assert ran(module, lambda: model(x, residual))
        torch.testing.assert_close(model(x, residual), module.Model.forward(model, x, residual))
    assert not model._kw_dispatch.reason


def test_a_file_for_a_gpu_runs_the_reference_where_there_is_none(tmp_path: Path) -> None:
    text = optimized_text(device="cuda")
    assert 'DEVICE = "cuda"' in text
    module = imported(tmp_path, text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it says that there is none
        model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        assert not ran(module, lambda: model(x, residual))
        assert "device" in model.kernelwright_explain(x, residual)


def test_arguments_named_like_the_dispatcher_s_own_variables(tmp_path: Path) -> None:
    task = TASK.replace("x: torch.Tensor, residual: torch.Tensor", "fixed: torch.Tensor, index: torch.Tensor")
    task = task.replace("x * self.weight", "fixed * self.weight").replace("+ residual", "+ index")
    module = imported(tmp_path, optimized_text(task=task))
    model = module.ModelNew(64)
    with torch.no_grad():
        assert ran(module, lambda: model(*inputs()))
        assert ran(module, lambda: model(fixed=inputs()[0], index=inputs()[1]))


def test_a_star_signature_is_dispatched_by_position(tmp_path: Path) -> None:
    task = TASK.replace("self, x: torch.Tensor, residual: torch.Tensor", "self, *tensors")
    task = task.replace("return x *", "x, residual = tensors\n        return x *")
    module = imported(tmp_path, optimized_text(task=task))
    model = module.ModelNew(64)
    with torch.no_grad():
        assert ran(module, lambda: model(*inputs()))
        assert "structure" in model.kernelwright_explain(*inputs(), torch.zeros(1))


def test_a_task_without_dimensions_is_judged_at_its_one_shape(tmp_path: Path) -> None:
    task = TASK.replace("from kernelbench_tasks import Choice, Dim\n", "").replace(
        next(line for line in TASK.splitlines() if line.startswith("DIMS")), ""
    )
    module = imported(tmp_path, optimized_text(task=task, dims={}))
    model = module.ModelNew(64)
    with torch.no_grad():
        assert ran(module, lambda: model(*inputs(32)))
        assert not ran(module, lambda: model(*inputs(33)))


def test_the_text_is_the_same_every_time() -> None:
    text = optimized_text()
    assert text == optimized_text()
    assert "kernelbench_tasks" not in text
    assert "exec(" not in text
