"""The verified mode: what is timed at the first sight of a shape, what may run there afterwards, and when nothing is timed."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agent.dispatch.tree import Leaf
from tests.agent.bundle.building import TASK, imported, inputs, optimized_text, right, warned
from tests.agent.bundle.modal import FAST, SLOW_IF_LARGE, SLOW_TASK, WRITES, WRONG_AT_48, planted

pytestmark = pytest.mark.alone


def verified(
    folder: Path, *members: Any, task: str = SLOW_TASK, tree: Leaf | None = None, **more: Any
) -> tuple[ModuleType, Any]:
    """A module and a model of it in the verified mode."""
    module = imported(folder, optimized_text(list(members), task=task, tree=tree))
    return module, module.ModelNew(64).kernelwright_use("verified", **{"seconds": 30.0, **more})


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def found(model: Any, rows: int) -> Any:
    """Index of what runs at so many rows, None for the reference, with the words for it; None where nothing was found out."""
    return model._kw_dispatch.found.get(model_key(model, rows))


def model_key(model: Any, rows: int) -> Any:
    return sys.modules[type(model).__module__]._key_of(*inputs(rows))


def test_a_member_is_taken_only_where_it_is_faster(tmp_path: Path) -> None:
    module, model = verified(tmp_path, SLOW_IF_LARGE)
    for rows in (32, 1024):
        given = inputs(rows)
        assert "not seen yet" in model.kernelwright_explain(*given)
        assert model.kernelwright_explain(*given).startswith("reference")
        right(module, model, *given)
        right(module, model, *given)
    assert (found(model, 32)[0], found(model, 1024)[0]) == (0, None)
    assert model.kernelwright_explain(*inputs(32)).startswith("sluggish (llm); verified: timed over")
    assert model.kernelwright_explain(*inputs(1024)).startswith("reference: verified: timed, and no member")
    calls = len(module.calls_sluggish)
    model(*inputs(1024))
    assert len(module.calls_sluggish) == calls
    model(*inputs(32))
    assert len(module.calls_sluggish) == calls + 1
    model.kernelwright_use("static")
    model(*inputs(1024))
    assert len(module.calls_sluggish) == calls + 2, "the tree alone would take it"


def test_the_faster_of_two_is_taken_whatever_the_tree_says(tmp_path: Path) -> None:
    _, model = verified(tmp_path, SLOW_IF_LARGE, FAST, tree=Leaf(0))
    model(*inputs(1024))
    assert found(model, 1024)[0] == 1


def test_a_member_whose_result_is_another_one_at_a_shape_never_runs_there(tmp_path: Path) -> None:
    module, model = verified(tmp_path, WRONG_AT_48)
    given = inputs(48)
    said = warned(lambda: right(module, model, *given))
    assert len(said) == 1
    assert "wrong (llm) gives another result than the reference at some shapes" in said[0]
    assert found(model, 48)[0] is None
    right(module, model, *given)
    assert "gave another result there" in model.kernelwright_explain(*given)
    right(module, model, *inputs(32))
    assert found(model, 32)[0] == 0


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_what_stands_beside_a_mask_s_constant_is_compared(tmp_path: Path, fill: float) -> None:
    module, _ = verified(tmp_path, FAST)
    expected = torch.randn(8, 16)
    expected[:, ::3] = fill
    assert module._close(torch.where(expected == fill, expected, expected * (1 + 1e-7)), expected)
    assert not module._close(torch.where(expected == fill, expected, 0), expected)
    assert not module._close(expected + 1e-2, expected)
    assert not module._close(torch.where(expected == fill, 0, expected), expected)


def test_a_member_that_fails_at_a_shape_is_not_used_there_and_elsewhere_it_is(tmp_path: Path) -> None:
    failing = planted("failing", "if x.shape[0] == 7: raise ValueError('seven')")
    module, model = verified(tmp_path, failing)
    said = warned(lambda: right(module, model, *inputs(7)))
    assert len(said) == 1
    assert "seven" in said[0]
    right(module, model, *inputs(7))
    right(module, model, *inputs(8))
    assert (found(model, 7)[0], found(model, 8)[0]) == (None, 0)


def test_a_member_that_writes_to_its_inputs_is_wrong_and_the_caller_s_are_untouched(tmp_path: Path) -> None:
    _, model = verified(tmp_path, WRITES)
    given = inputs()
    before = [value.clone() for value in given]
    assert len(warned(lambda: model(*given))) == 1
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
    assert "gave another result" in found(model, 32)[1]


def test_a_reference_that_writes_to_its_inputs_does_so_once_and_is_not_timed(tmp_path: Path) -> None:
    task = SLOW_TASK.replace("for _ in range(12)", "residual += 1.0\n        for _ in range(12)")
    honest = planted("honest", "residual.add_(1.0)")
    _, model = verified(tmp_path, honest, task=task)
    x, residual = inputs()
    before = residual.clone()
    model(x, residual)
    torch.testing.assert_close(residual, before + 1.0)
    assert found(model, 32)[0] == 0
    assert "the tree's choice" in found(model, 32)[1]


def test_the_fastest_member_is_taken(tmp_path: Path) -> None:
    behind = planted("behind", "for _ in range(4): x * 1.0")
    _, model = verified(tmp_path, behind, planted("compiled", "pass", "compiler"))
    model(*inputs(2048))
    assert found(model, 2048)[0] == 1


@pytest.mark.parametrize("line", ["self.shift += 1.0", "x = x + torch.rand_like(x)"])
def test_what_does_not_repeat_itself_is_not_timed(tmp_path: Path, line: str) -> None:
    task = SLOW_TASK.replace("for _ in range(12)", f"{line}\n        for _ in range(12)")
    _, model = verified(tmp_path, FAST, task=task, tree=Leaf(None))
    before = model.shift.clone()
    assert not warned(lambda: model(*inputs()))
    assert "not timed" in model.kernelwright_explain(*inputs())
    if "shift" in line:
        torch.testing.assert_close(model.shift, before + 1.0)


def test_the_caller_s_random_numbers_stay_where_they_were(tmp_path: Path) -> None:
    _, model = verified(tmp_path, planted("draws", "torch.rand(3)"))
    given = inputs()
    torch.manual_seed(5)
    model(*given)
    after = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), after)
    assert found(model, 32)[1].startswith("timed")


def test_what_goes_wrong_beside_the_answer_is_not_the_caller_s(tmp_path: Path) -> None:
    module, model = verified(tmp_path, FAST)

    def broken(*_: Any) -> Any:
        raise OSError("no clock")

    module._speedups = broken
    right(module, model, *inputs())
    assert model.kernelwright_explain(*inputs()).startswith(
        "reference: verified: not timed, since it failed: OSError"
    )


def test_one_first_sight_is_bounded_in_time(tmp_path: Path) -> None:
    lazy = planted("lazy", "import time; time.sleep(0.02)")
    task = SLOW_TASK.replace("for _ in range(12)", "import time; time.sleep(0.04)\n        for _ in range(1)")
    _, model = verified(tmp_path, lazy, task=task, seconds=0.2)
    began = time.monotonic()
    model(*inputs())
    assert time.monotonic() - began < 0.2 + 12 * 0.06, (
        "the first calls, in which members compile, come on top"
    )
    assert found(model, 32)[0] is None
    assert "no time for enough rounds" in model.kernelwright_explain(*inputs())


def test_threads_that_see_a_shape_together_time_it_once(tmp_path: Path) -> None:
    module, model = verified(tmp_path, FAST)
    races: list[int] = []
    original = module._fastest

    def counted(*arguments: Any) -> Any:
        races.append(threading.get_ident())
        assert module._turn.locked()
        time.sleep(0.1)  # long enough for the others to come
        return original(*arguments)

    module._fastest = counted
    given, wrong = inputs(96), []
    expected = module.Model.forward(model, *given)
    start = threading.Barrier(8)

    def use() -> None:
        start.wait()
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(model(*given), expected, atol=1e-5):
                    wrong.append(1)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(races) == 1


def test_copies_keep_the_mode_and_find_out_for_themselves(tmp_path: Path) -> None:
    module, model = verified(tmp_path, FAST)
    model(*inputs())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "not seen yet" in twin.kernelwright_explain(*inputs())
        right(module, twin, *inputs())
        assert found(twin, 32)[0] == 0
    model.kernelwright_use()
    assert model.kernelwright_explain(*inputs()) == "fast (human)"


def test_only_so_many_shapes_are_remembered(tmp_path: Path) -> None:
    module, model = verified(tmp_path, FAST)
    module._MOST_SHAPES = 3
    for rows in range(1, 9):
        model(*inputs(rows))
        assert len(model._kw_dispatch.found) <= 3


@pytest.mark.parametrize("settings", [{"mode": "dynamic"}, {"mode": "verified", "seconds": 0}], ids=str)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    _, model = verified(tmp_path, FAST)
    with pytest.raises(ValueError, match="neither"):
        model.kernelwright_use(**settings)


def test_nothing_is_timed_where_others_have_the_word(tmp_path: Path) -> None:
    module, model = verified(tmp_path, FAST)
    given = inputs()
    with torch.enable_grad():
        model(*given).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*given)
        assert model.kernelwright_explain(*given) == "reference: autocast is on"
    torch.vmap(lambda one: model(one, given[1]))(torch.randn(3, 32, 64))
    with module._turn:
        model(*given)
    assert not model._kw_dispatch.found
    assert len(module.calls) == 1, "the tree chose"
    model(*given)
    assert len(model._kw_dispatch.found) == 1


def test_training_mode_says_nothing_of_eval_mode(tmp_path: Path) -> None:
    task = SLOW_TASK.replace("+ residual\n", "+ nn.functional.dropout(residual, 0.5, self.training)\n")
    _, model = verified(tmp_path, FAST, task=task)
    model(*inputs())
    assert not model._kw_dispatch.found
    model.eval()
    model(*inputs())
    assert found(model, 32)[0] == 0


@pytest.mark.parametrize("layout", ["star", "no dimensions"])
def test_calls_that_are_told_apart_in_other_ways(tmp_path: Path, layout: str) -> None:
    task, dims = SLOW_TASK, None
    if layout == "star":
        task = task.replace("self, x: torch.Tensor, residual: torch.Tensor", "self, *tensors")
        task = task.replace("for _ in range(12)", "x, residual = tensors\n        for _ in range(12)")
    else:
        dims = {}
        task = task.replace("from kernelbench_tasks import Choice, Dim\n", "")
        task = task.replace(next(line for line in TASK.splitlines() if line.startswith("DIMS")), "")
    module = imported(tmp_path, optimized_text([FAST], task=task, dims=dims))
    model = module.ModelNew(64).kernelwright_use("verified", seconds=30.0)
    right(module, model, *inputs())
    right(module, model, *inputs())
    assert model.kernelwright_explain(*inputs()).startswith("fast (human); verified")
