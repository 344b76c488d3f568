"""Every task of the catalogue measures something: nothing lazy, constant, saturated or blind to an input would pass."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch

from kernelbench_tasks import catalog, check_dims
from tests.kernelbench_tasks.soundness import (
    TIES,
    TOLERANCES,
    Opened,
    changed_share,
    error,
    module_of,
    opened,
    redraw,
    rms,
    sizes_near,
    smallest,
)

TASKS = catalog.list_tasks()
NAMES = [task.name for task in TASKS]
#: Near these sizes tasks are looked at; none is a multiple of another.
ODD, EVEN = (13, 37, 9, 7, 11), (24, 66, 12, 20, 10)
#: Outputs have about the size of their inputs, neither vanishing nor growing.
SMALLEST_SPREAD, LARGEST_SPREAD = 0.02, 50.0

each_task = pytest.mark.parametrize("task", TASKS, ids=NAMES)


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents and weights of a task are those of its name. Drawn anew each time, 8 of these checks failed in 0.03 to 3.5 % of runs, where a
    sum of few elements nearly cancels or an element lies at a kink: no fault of the task, and none of whoever changes something else."""
    task = getattr(request.node, "callspec", None)
    drawn = random.Random(task.params["task"].name if task else "")
    monkeypatch.setattr("secrets.randbits", drawn.getrandbits)
    monkeypatch.setattr("secrets.randbelow", drawn.randrange)


def shapes_of(task: catalog.CatalogTask) -> list[Opened]:
    module = module_of(task)
    check_dims(module.DIMS)
    return [
        opened(module, smallest(module)),
        opened(module, sizes_near(module, ODD)),
        opened(module, sizes_near(module, EVEN, choice=1)),
    ]


def is_finite(values: torch.Tensor) -> bool:
    return bool((values.float() if values.dtype.itemsize == 1 else values).isfinite().all())


def is_close(one: torch.Tensor, two: torch.Tensor) -> bool:
    """So alike that a module may give the same result for both."""
    return torch.equal(one, two) or (one.numel() == 1 and bool((one - two).abs() < 0.05 * two.abs()))


def other_weights(module: ModuleType, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Another value for each entry of the state dict that is a weight; tables keep theirs and are left out."""
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found: dict[str, torch.Tensor] = {}
    for _ in range(16):  # a single number may come out near the one before several times
        redraw(module, model)
        for name, tensor in model.state_dict().items():
            if name not in found and not is_close(tensor, kept[name]):
                found[name] = tensor.clone()
    model.load_state_dict(kept)
    assert {name for name, _ in model.named_parameters()} <= set(found)
    return found


def tolerance(shape: Opened, value: torch.Tensor) -> float:
    """A float32 result of a module that works in 16 bits is as far off as those; what gradients sum up cancels, and errors stay."""
    if value.dtype not in TOLERANCES:
        return TIES
    kinds = [getattr(torch, tensor.meta.dtype) for tensor in shape.tensors]
    widest = max(TOLERANCES.get(kind, 0.0) for kind in (value.dtype, *kinds))
    return 2 * widest if getattr(shape.module, "DIRECTION", "") == "forward_backward" else widest


@pytest.mark.slow
@each_task
def test_float64_confirms_what_a_task_computes(task: catalog.CatalogTask) -> None:
    """At three shapes, on every kind of contents that the referee would draw: finite, repeatable, and right."""
    for shape in shapes_of(task):
        for name in shape.distributions:
            contents = shape.contents(name)
            first, second = shape.call(contents), shape.call(contents)
            where = f"{shape.sizes} on {name}"
            for index, (one, two) in enumerate(zip(first, second, strict=True)):
                assert is_finite(one), f"output {index} is not finite at {where}"
                assert changed_share(one, two) == 0.0, f"output {index} differs from call to call at {where}"
            if name != "task":
                continue
            for index, (value, truth) in enumerate(zip(first, shape.exact(contents), strict=True)):
                assert truth.shape == value.shape
                assert error(value, truth) <= tolerance(shape, value), f"output {index} at {where}"


@each_task
def test_no_output_is_constant_or_out_of_scale(task: catalog.CatalogTask) -> None:
    module = module_of(task)
    shape = opened(module, sizes_near(module, ODD))
    first = shape.contents()
    # From draws of their own: rolled ones may happen to be nearly alike.
    second = [shape.another(place) for place in range(len(first))]
    before, after = shape.call(first), shape.call(second)
    for index, (one, two) in enumerate(zip(before, after, strict=True)):
        assert one.shape == two.shape
        # Most rows of a table may get no gradient at all.
        touched = (
            (one != 0) | (two != 0) if one.dtype.itemsize > 1 else torch.ones_like(one, dtype=torch.bool)
        )
        assert changed_share(one[touched], two[touched]) > 0.1, f"output {index} hardly depends on its inputs"
        wide = torch.view_as_real(one) if one.is_complex() else one.double()
        if one.numel() > 1:
            assert wide.std() > 0, f"output {index} is constant"
        # Codes of eight bits fill their range.
        if index < shape.results and one.dtype in TOLERANCES and one.dtype.itemsize > 1:
            assert SMALLEST_SPREAD < rms(one) < LARGEST_SPREAD, f"output {index} has the size {rms(one)}"


@each_task
def test_every_input_and_weight_matters(task: catalog.CatalogTask) -> None:
    module = module_of(task)
    shape = opened(module, sizes_near(module, EVEN))
    contents = shape.contents()
    before = shape.call(contents)

    def moved(what: str) -> None:
        after = shape.call(changed)
        assert any(changed_share(*pair) > 0 for pair in zip(before, after, strict=True)), (
            f"{what} does not matter"
        )

    places = range(len(contents))
    for place in places if len(contents) <= 12 else (*places[:4], *places[-4:]):
        tensor = shape.tensors[place]
        if all((draw == tensor.draws[0]).all() for draw in tensor.draws):
            continue
        changed = list(contents)
        while torch.equal(changed[place], contents[place]):
            changed[place] = shape.another(place)
        moved(f"input {place}")
    changed = contents
    kept = {name: tensor.clone() for name, tensor in shape.model.state_dict().items()}
    for name, value in other_weights(module, shape.model).items():
        shape.model.load_state_dict({**kept, name: value})
        shape.remember_buffers()
        moved(name)
