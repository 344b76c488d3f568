"""Calls in a row: whatever changes between two of them, of inputs, weights or what they stand in, is seen."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

from agent.candidates import Candidate
from agent.dispatch.features import Feature
from agent.dispatch.tree import Leaf, Split
from tests.agent.bundle.building import MEMBER, TASK, imported, inputs, optimized_text, ran, right, warned


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(tmp_path_factory.mktemp("optimized"), optimized_text())


def used(module: ModuleType, model: Any, *given: Any) -> bool:
    """Whether the member ran, with the reference's result either way."""
    return ran(module, lambda: right(module, model, *given))


def known(module: ModuleType) -> Any:
    """A module whose member has run."""
    model = module.ModelNew(64)
    with torch.no_grad():
        assert used(module, model, *inputs())
    return model


OTHERS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "strided": lambda: [torch.randn(64, 32).t(), inputs()[1]],
    "unaligned": lambda: [torch.randn(32 * 64 + 1)[1:].view(32, 64), inputs()[1]],
    "half": lambda: [inputs()[0].half(), inputs()[1]],
    "sizes": lambda: [inputs()[0], torch.randn(64)],
    "parameter": lambda: [nn.Parameter(inputs()[0], requires_grad=False), inputs()[1]],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_inputs_take_the_reference_in_between(optimized: ModuleType, kind: str) -> None:
    model = known(optimized)
    with torch.no_grad():
        for _ in range(3):
            assert not used(optimized, model, *OTHERS[kind]())
            assert used(optimized, model, *inputs())


def test_sizes_of_the_reference_stay_its_own(tmp_path: Path) -> None:
    tree = Split(Feature("size", ("rows",)), 40, Leaf(None), Leaf(0))
    module = imported(tmp_path, optimized_text(tree=tree))
    model = module.ModelNew(64)
    strided = [torch.randn(64, 32).t(), torch.randn(32, 64)]
    with torch.no_grad():
        for given in (inputs(32), strided):
            assert not used(module, model, *given)
        assert used(module, model, *inputs(41))
    x, residual = inputs(32)
    x.requires_grad_(True)
    model(x, residual).sum().backward()
    torch.testing.assert_close(x.grad, (model.weight * model.factor).expand(32, 64))


@pytest.mark.parametrize("again", [1, 3])
def test_no_arguments_too_many_and_none_at_all_raise_as_ever(optimized: ModuleType, again: int) -> None:
    model = known(optimized)
    x, residual = inputs()
    with torch.no_grad():
        for _ in range(again):
            for given in ((), (x,), (x, residual, x)):
                with pytest.raises(TypeError):
                    model(*given)
            with pytest.raises(TypeError, match="more"):
                model(x, residual, more=1)
            with pytest.raises(TypeError):
                model(x, "text")
            with pytest.raises(TypeError):
                model(None, None)
            torch.testing.assert_close(model(x, 1.0), optimized.Model.forward(model, x, 1.0))
            assert used(optimized, model, x, residual)
            assert ran(optimized, lambda: model(residual=residual, x=x))


def test_the_same_tensor_twice_is_right_every_time(optimized: ModuleType) -> None:
    model = known(optimized)
    x = inputs()[0]
    with torch.no_grad():
        for _ in range(3):
            assert used(optimized, model, x, x)
        assert used(optimized, model, *inputs())


WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "in_place": lambda model: model.weight.add_(1.0),
    "buffer": lambda model: model.shift.add_(1.0),
    "replaced": lambda model: setattr(model, "weight", nn.Parameter(torch.randn(64))),
    "loaded": lambda model: model.load_state_dict({"weight": torch.randn(64), "shift": torch.randn(64)}),
    "assigned": lambda model: model.load_state_dict(
        {"weight": torch.randn(64), "shift": torch.randn(64)}, assign=True
    ),
    "there_and_back": lambda model: (model.double(), model.float()),
    "applied": lambda model: model._apply(lambda tensor: tensor + 1.0),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_changed_weights_are_seen(optimized: ModuleType, kind: str) -> None:
    model = known(optimized)
    given = inputs()
    with torch.no_grad():
        before = model(*given)
        WEIGHTS[kind](model)
        assert used(optimized, model, *given)
        assert used(optimized, model, *given)
        assert kind == "there_and_back" or not torch.equal(model(*given), before)


def test_parameters_that_are_moved_without_a_trace_are_seen(tmp_path: Path) -> None:
    """`.to()` and its like give a parameter another memory and leave its version as it was; buffers are replaced."""
    without = {
        '        self.register_buffer("shift", torch.zeros(cols))\n': "",
        "self.shift + ": "",
        " + self.shift": "",
    }
    task, member = TASK, MEMBER
    for old, new in without.items():
        task, member = task.replace(old, new), member.replace(old, new)
    module = imported(tmp_path, optimized_text([Candidate(member, "human", "no buffer")], task=task))
    model = known(module)
    with torch.no_grad():
        version = model.weight._version
        model._apply(lambda tensor: tensor + 1.0)
        assert model.weight._version == version and not list(model.buffers())
        assert used(module, model, *inputs())


def test_a_weight_that_is_taken_out_is_missed(optimized: ModuleType) -> None:
    model = known(optimized)
    del model.weight

    def call() -> None:
        with torch.no_grad(), pytest.raises(AttributeError, match="weight"):
            model(*inputs())

    assert "Missing key(s)" in warned(call)[0]
    assert warned(call) == []


def test_weights_of_another_kind_take_the_reference(optimized: ModuleType) -> None:
    model = known(optimized).half()
    with torch.no_grad():
        for _ in range(2):
            assert not used(optimized, model, *inputs())
        model.float()
        assert used(optimized, model, *inputs())


@contextmanager
def dual_level() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


INSIDE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu"),
    "gradients": torch.enable_grad,
    "forward_mode": dual_level,
}


@pytest.mark.parametrize("kind", INSIDE)
def test_what_a_call_stands_in_is_seen(optimized: ModuleType, kind: str) -> None:
    model = known(optimized)
    for _ in range(2):
        with torch.no_grad(), INSIDE[kind]():
            assert not used(optimized, model, *inputs())
        with torch.no_grad():
            assert used(optimized, model, *inputs())


def test_gradients_flow_as_ever(optimized: ModuleType) -> None:
    model = known(optimized)
    x, residual = inputs()
    assert not ran(optimized, lambda: model(x, residual).sum().backward())
    torch.testing.assert_close(model.weight.grad, (x * model.factor).sum(0))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_transforms_and_traces_see_the_reference(optimized: ModuleType) -> None:
    model = known(optimized)
    x, residual = inputs()
    with torch.no_grad():
        many = torch.stack([x, x + 1.0])
        found: list[torch.Tensor] = []
        assert not ran(optimized, lambda: found.append(torch.vmap(lambda one: model(one, residual))(many)))
        torch.testing.assert_close(found[0][1], optimized.Model.forward(model, x + 1.0, residual))
        traced = torch.jit.trace(model, (x, residual))
        model.weight.add_(1.0)
        torch.testing.assert_close(traced(x, residual), optimized.Model.forward(model, x, residual))
        tangent = torch.func.jvp(lambda one: model(one, residual), (x,), (torch.ones_like(x),))[1]
        torch.testing.assert_close(tangent, (model.weight * model.factor).expand(32, 64))
        changed = {"weight": torch.randn(64), "shift": torch.zeros(64)}
        torch.testing.assert_close(
            torch.func.functional_call(model, changed, (x, residual)), x * changed["weight"] * 2.0 + residual
        )
        assert used(optimized, model, x, residual)


def test_what_is_put_in_the_place_of_forward_later_is_called(
    optimized: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = known(optimized)
    seen: list[int] = []
    with torch.no_grad():
        model.forward = lambda *given: "own"
        assert model(*inputs()) == "own"
        del model.forward
        handle = model.register_forward_hook(lambda *_: seen.append(1))
        model(*inputs())
        handle.remove()
        assert seen == [1]
        with monkeypatch.context() as patched:
            patched.setattr(optimized.ModelNew, "forward", lambda *given: "class's")
            assert model(*inputs()) == "class's"
        assert used(optimized, model, *inputs())

        class Mine(optimized.ModelNew):  # type: ignore[misc, name-defined]
            def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
                return super().forward(x, residual) + 1.0

        mine = Mine(64)
        for _ in range(3):
            torch.testing.assert_close(
                mine(*(given := inputs())), optimized.Model.forward(mine, *given) + 1.0
            )


def test_a_member_that_fails_later_is_given_up(tmp_path: Path) -> None:
    failing = MEMBER.replace(
        "calls.append", "fails.append(1) if fails else 0\n        assert not fails\n        calls.append"
    )
    failing = failing.replace("calls = []", "calls = []\nfails = []")
    module = imported(tmp_path, optimized_text([Candidate(failing, "human", "fails")]))
    model = known(module)
    fails = vars(module)["fails"]
    fails.append(0)
    with torch.no_grad():
        (said,) = warned(lambda: right(module, model, *inputs()))
        assert "AssertionError" in said and fails == [0, 1], "tried once"
        fails.clear()
        assert not used(module, model, *inputs())


def test_copies_know_nothing_of_each_other_s_weights(optimized: ModuleType) -> None:
    model = known(optimized)
    with torch.no_grad():
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.weight.add_(1.0)
            assert used(optimized, other, *inputs())
            assert used(optimized, model, *inputs())


def test_neither_inputs_nor_old_weights_are_kept_alive(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    given = inputs(11)
    refs = [weakref.ref(one) for one in (*given, model.weight)]
    with torch.no_grad():
        for one in (given, given, inputs(12)):
            model(*one)
        model.weight = nn.Parameter(torch.randn(64))
        model(*inputs(11))
    del given
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]


def test_only_so_many_choices_are_remembered(optimized: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimized, "_MOST_SHAPES", 3)
    model = optimized.ModelNew(64)
    with torch.no_grad():
        for rows in range(1, 9):
            assert used(optimized, model, *inputs(rows))
            assert used(optimized, model, *inputs(rows))
            assert 0 < len(model._kw_dispatch.choices) <= 3


def test_sizes_seen_before_are_not_looked_at_again(
    optimized: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = known(optimized)
    asked: list[Any] = []
    choose = vars(optimized)["_choose"]
    monkeypatch.setattr(optimized, "_choose", lambda *given: asked.append(1) or choose(*given))
    with torch.no_grad():
        for _ in range(3):
            assert used(optimized, model, *inputs())
        assert not asked
        assert used(optimized, model, *inputs(33))
        assert len(asked) == 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "input wants a gradient": lambda model: [one.requires_grad_() for one in inputs()],
    "parameter is trained again": lambda model: (model.requires_grad_(True), inputs())[1],
}


@pytest.mark.parametrize("kind", CHANGES)
def test_sizes_seen_before_say_nothing_of_gradients(optimized: ModuleType, kind: str) -> None:
    """With gradients on and all frozen the member runs; a call of the same sizes that asks for one does not."""
    model = optimized.ModelNew(64).requires_grad_(False)
    assert used(optimized, model, *inputs())
    given = CHANGES[kind](model)
    assert not used(optimized, model, *given)
    model(*given).sum().backward()


def test_a_plain_argument_of_another_value_is_seen(tmp_path: Path) -> None:
    """At sizes seen before: values that are equal and of another type, too."""
    task = TASK.replace("residual: torch.Tensor)", "residual: torch.Tensor, twice: bool = False)")
    task = task.replace("+ residual\n", "+ residual * (1 + twice)\n")
    member = MEMBER.replace("forward(self, x, residual)", "forward(self, x, residual, twice=False)")
    module = imported(tmp_path, optimized_text([Candidate(member, "human", "with a default")], task=task))
    model = module.ModelNew(64)
    with torch.no_grad():
        for _ in range(2):
            assert used(module, model, *inputs())
            for other in (True, 0, 0.0, None, [], "no"):
                before = len(module.calls)
                try:
                    model(*inputs(), other)
                except TypeError:
                    pass  # the reference's own answer
                assert len(module.calls) == before, other
            assert ran(module, lambda: model(*inputs(), False))


def test_another_container_of_the_same_tensors_is_seen(tmp_path: Path) -> None:
    task = TASK.replace("self, x: torch.Tensor, residual: torch.Tensor", "self, pair")
    task = task.replace("return x *", "x, residual = pair[:2]\n        return x *")
    task = task.replace("return [torch.randn(", "return [[torch.randn(").replace(
        "dtype=kind)]", "dtype=kind)]]"
    )
    member = MEMBER.replace("forward(self, x, residual):", "forward(self, pair):\n        x, residual = pair")
    module = imported(tmp_path, optimized_text([Candidate(member, "human", "of a list")], task=task))
    model, pair = module.ModelNew(64), inputs()
    with torch.no_grad():
        for _ in range(2):
            assert used(module, model, pair)
            assert not used(module, model, tuple(pair))
            assert not used(module, model, [*pair, pair[0]])
