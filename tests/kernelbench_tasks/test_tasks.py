"""Every task of the catalogue loads, explains itself and takes the dimensions that it declares."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from evaluator.roles.blocks import flatten
from kernelbench_tasks import catalog, check_dims
from tests.kernelbench_tasks.soundness import module_of, named, smallest

TASKS = catalog.list_tasks()
NAMES = [task.name for task in TASKS]


def test_the_catalogue_is_ordered_and_complete() -> None:
    assert len(TASKS) >= 79
    assert {task.level for task in TASKS} == {1, 2, 3}
    backward = [task for task in TASKS if 'DIRECTION = "forward_backward"' in task.source]
    assert len(backward) >= 12
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
    assert getattr(module, "DIRECTION", "forward") in ("forward", "forward_backward")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task_runs_where_one_dimension_is_largest(task: catalog.CatalogTask) -> None:
    """The first one, with all others at their smallest."""
    module = module_of(task)
    first = next(iter(module.DIMS))
    sizes = {**smallest(module), first: module.DIMS[first].largest}
    with torch.no_grad():
        model = module.Model(*named(module.get_init_inputs, sizes)).eval()
        outputs = flatten(model(*named(module.get_inputs, sizes)))
    assert all(output.numel() for output in outputs)
