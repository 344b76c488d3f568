"""Own sizes on a GPU are ones that people run there: large enough that kernels, not launches, take the time."""

from __future__ import annotations

import pytest
import torch

from evaluator.roles.cost import of_call
from kernelbench_tasks import Choice, catalog
from tests.kernelbench_tasks.soundness import module_of, named

TASKS = catalog.list_tasks()
#: What makes a size a realistic one; either will do.
LEAST_BYTES, LEAST_FLOPS = 64 << 20, 10e9
#: What a size must not exceed.
MOST_BYTES, MOST_ELEMENTS = 8 << 30, 1 << 31
#: How the docstring of a task begins the sentence that says why it moves and computes less.
SMALL = "Small by nature:"


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_the_own_size_on_a_gpu_is_realistic(task: catalog.CatalogTask) -> None:
    module = module_of(task)
    sizes = {name: dim.default if isinstance(dim, Choice) else dim.gpu for name, dim in module.DIMS.items()}
    build, inputs = (
        lambda: module.Model(*named(module.get_init_inputs, sizes)),
        lambda: named(module.get_inputs, sizes),
    )
    # What reads values cannot be run on fake tensors; its weights and inputs are known all the same.
    figures = of_call(build, inputs, 1 << 14) or of_call(lambda: Unrun(build()), inputs, 1)
    assert figures is not None
    words = f"{figures['moved_bytes'] >> 20} MiB, {figures['flops'] / 1e9:.1f} GFLOP"
    is_large = figures["moved_bytes"] >= LEAST_BYTES or figures["flops"] >= LEAST_FLOPS
    assert is_large is (SMALL not in module.__doc__), words
    assert figures["moved_bytes"] < MOST_BYTES and figures["outputs"] < MOST_ELEMENTS, words


class Unrun(torch.nn.Module):
    """Has the weights of a module and computes nothing."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: object) -> None:
        del inputs
