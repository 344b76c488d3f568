"""Every task of the catalogue loads and is sound: a lazy candidate could not pass it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelbench_tasks import Choice, catalog, check_dims

TASKS = catalog.list_tasks()
NAMES = [task.name for task in TASKS]


def module_of(task: catalog.CatalogTask) -> ModuleType:
    return importlib.import_module(f"kernelbench_tasks.level{task.level}.{task.name}")


def named(function: Any, sizes: dict[str, Any]) -> Any:
    return function(**{name: sizes[name] for name in inspect.signature(function).parameters})


def small(module: ModuleType) -> dict[str, Any]:
    """Odd sizes, no two alike."""
    odd = iter((7, 19, 33))
    return {
        name: dim.default if isinstance(dim, Choice) else dim.nearest(next(odd))
        for name, dim in module.DIMS.items()
    }


def test_the_catalogue_is_ordered_and_complete() -> None:
    assert len(TASKS) >= 8
    assert [(task.level, task.name) for task in TASKS] == sorted((task.level, task.name) for task in TASKS)
    assert {"layernorm_relu_add", "rmsnorm", "softmax", "swiglu", "matmul_bias_relu"} <= set(NAMES)
    assert all(task.title and not task.title.endswith(".") for task in TASKS)


def test_a_task_is_found_by_name_and_by_content() -> None:
    task = catalog.load("layernorm_relu_add")
    assert catalog.find_by_sha256(task.sha256) == task
    assert catalog.find_by_sha256("0" * 64) is None
    with pytest.raises(KeyError, match="layernorm_relu_add"):
        catalog.load("no_such_task")


def test_the_catalogue_never_runs_a_task() -> None:
    program = "import sys; from kernelbench_tasks import catalog; [t.source for t in catalog.list_tasks()]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task_explains_itself(task: catalog.CatalogTask) -> None:
    words = module_of(task).__doc__ or ""
    assert "Where time is lost:" in words
    assert "Source:" in words
    assert "Bytes" in words


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task_takes_the_dimensions_it_declares(task: catalog.CatalogTask) -> None:
    module = module_of(task)
    dims = check_dims(module.DIMS)
    taken: set[str] = set()
    for function in (module.get_inputs, module.get_init_inputs):
        for name, parameter in inspect.signature(function).parameters.items():
            assert parameter.default == dims[name].default, f"{function.__name__}({name})"
            taken.add(name)
    assert taken == set(dims)
    assert getattr(module, "DIRECTION", "forward") == "forward"


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task_is_sound(task: catalog.CatalogTask) -> None:
    """Deterministic, finite, not constant, and dependent on every input and parameter."""
    module = module_of(task)
    sizes = small(module)
    torch.manual_seed(0)
    model = module.Model(*named(module.get_init_inputs, sizes)).eval()
    inputs = named(module.get_inputs, sizes)
    with torch.no_grad():
        output = model(*inputs)
        assert torch.equal(output, model(*inputs))
        assert output.isfinite().all()
        assert output.std() > 1e-3
        for position, tensor in enumerate(inputs):
            changed = list(inputs)
            changed[position] = named(module.get_inputs, sizes)[position]
            assert tensor.shape == changed[position].shape
            assert not torch.allclose(model(*changed), output), f"input {position} does not matter"
        for name, parameter in model.named_parameters():
            kept = parameter.clone()
            parameter.uniform_(0.5, 1.5)
            assert not torch.allclose(model(*inputs), output), f"{name} does not matter"
            parameter.copy_(kept)


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task_runs_at_the_ends_of_its_ranges(task: catalog.CatalogTask) -> None:
    module = module_of(task)
    lowest = {
        name: dim.default if isinstance(dim, Choice) else dim.smallest for name, dim in module.DIMS.items()
    }
    with torch.no_grad():
        assert (
            module.Model(*named(module.get_init_inputs, lowest))(*named(module.get_inputs, lowest)).numel()
            > 0
        )
    first = next(iter(module.DIMS))
    tall = {**lowest, first: module.DIMS[first].largest}
    with torch.no_grad():
        assert (
            module.Model(*named(module.get_init_inputs, tall))(*named(module.get_inputs, tall)).shape[0]
            == tall[first]
        )
