"""Calling the delivered module without `torch.nn.Module.__call__`: whatever that one would do still happens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.agent.bundle.building import TASK, imported, inputs, optimized_text, ran


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(tmp_path_factory.mktemp("optimized"), optimized_text())


HOOKS: dict[str, Callable[[nn.Module, list[int]], Any]] = {
    "before": lambda model, seen: model.register_forward_pre_hook(lambda *_: seen.append(1)),
    "after": lambda model, seen: model.register_forward_hook(lambda *_: seen.append(1)),
    "all_before": lambda _, seen: nn.modules.module.register_module_forward_pre_hook(
        lambda *_: seen.append(1)
    ),
    "all_after": lambda _, seen: nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1)),
    "before_back": lambda model, seen: model.register_full_backward_pre_hook(lambda *_: seen.append(1)),
    "back": lambda model, seen: model.register_full_backward_hook(lambda *_: seen.append(1)),
    "all_before_back": lambda _, seen: nn.modules.module.register_module_full_backward_pre_hook(
        lambda *_: seen.append(1)
    ),
    "all_back": lambda _, seen: nn.modules.module.register_module_full_backward_hook(
        lambda *_: seen.append(1)
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_run_as_long_as_they_are_there(optimized: ModuleType, kind: str) -> None:
    model, seen = optimized.ModelNew(64), list[int]()
    x, residual = inputs()
    x.requires_grad_(True)
    model(x, residual).sum().backward()
    handle = HOOKS[kind](model, seen)
    try:
        model(x, residual).sum().backward()
    finally:
        handle.remove()
    assert seen == [1]
    model(x, residual).sum().backward()
    assert seen == [1]


def test_a_module_that_was_compiled_in_place_calls_what_was_compiled(optimized: ModuleType) -> None:
    model, seen = optimized.ModelNew(64), list[int]()
    x, residual = inputs()

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        seen.append(1)
        return graph.forward

    model.compile(backend=backend, fullgraph=True)
    with torch.no_grad():
        result = model(x, residual)
        assert seen == [1]
        torch.testing.assert_close(result, optimized.Model.forward(model, x, residual))


def test_what_is_put_in_the_place_of_forward_or_of_the_call_is_called(
    optimized: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = optimized.ModelNew(64)
    copied = copy.deepcopy(model)
    model.forward = lambda *given, more=0: more
    with torch.no_grad():
        assert model(1, 2, 3, more=4) == 4
        assert ran(optimized, lambda: copied(*inputs()))
        monkeypatch.setattr(nn.Module, "__call__", lambda *_: "patched")
        assert copied(*inputs()) == "patched"

    class Mine(optimized.ModelNew):  # type: ignore[misc, name-defined]
        def forward(self, one: int) -> int:
            return one + 1

    monkeypatch.undo()
    assert Mine(64)(1) == 2


def test_a_symbolic_trace_takes_it_for_one_module(optimized: ModuleType) -> None:
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return True

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = optimized.ModelNew(64)

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x, x)

    kinds = [node.op for node in Leaves().trace(Around()).nodes]
    assert kinds == ["placeholder", "call_module", "output"]


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
def test_a_reference_with_a_call_of_its_own_keeps_it(tmp_path: Path, name: str) -> None:
    own = f"class Model(nn.Module):\n    def {name}(self, *given):\n        return 'own'\n"
    assert "class Model(nn.Module):\n" in TASK
    text = optimized_text(task=TASK.replace("class Model(nn.Module):\n", own + "\n"))
    assert imported(tmp_path, text).ModelNew(64)(*inputs()) == "own"
