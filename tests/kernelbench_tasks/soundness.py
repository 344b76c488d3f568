"""A task opened as the referee opens it: weights drawn anew, contents rolled and mixed over draws, a float64 oracle."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from evaluator.content import distributions, weights
from evaluator.content.pools import TensorInput
from evaluator.roles import calls, exact, frames
from evaluator.roles.arena import carrier
from evaluator.roles.blocks import flatten, tensors_in
from evaluator.roles.open_shape import Shape, leaf, meta_of
from kernelbench_tasks import Choice, catalog

#: What the float32 (or narrower) result may be off, relative to an element and the root mean square of its output.
TOLERANCES = {
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.bfloat16: 0.06,
    torch.float16: 0.01,
    torch.float8_e4m3fn: 0.3,
}
#: Share of the elements of an integer output that may be rounded the other way.
TIES = 0.02
_DRAWS = 3


def module_of(task: catalog.CatalogTask) -> ModuleType:
    """The task's file as a module."""
    return importlib.import_module(f"kernelbench_tasks.level{task.level}.{task.name}")


def named(function: Any, sizes: dict[str, Any]) -> Any:
    """Calls a function of a task with those dimensions that it takes."""
    return function(**{name: sizes[name] for name in inspect.signature(function).parameters})


def sizes_near(module: ModuleType, wanted: tuple[int, ...], choice: int = 0) -> dict[str, Any]:
    """Legal sizes near the wanted ones, which are taken in turn."""
    sizes: dict[str, Any] = {}
    used = 0
    for name, dim in module.DIMS.items():
        if isinstance(dim, Choice):
            sizes[name] = dim.values[choice % len(dim.values)]
        else:
            sizes[name] = dim.nearest(wanted[used % len(wanted)])
            used += 1
    return sizes


def smallest(module: ModuleType) -> dict[str, Any]:
    """The corner of the space where every dimension is smallest."""
    return {
        name: dim.values[-1] if isinstance(dim, Choice) else dim.smallest for name, dim in module.DIMS.items()
    }


def span(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor, flat, in the referee's carrier of its dtype (a view)."""
    meta = meta_of(tensor)
    flat = tensor.as_strided((meta.span_bytes // meta.item_bytes,), (1,))
    if tensor.dtype is torch.bfloat16:
        flat = flat.view(torch.uint16)
    elif tensor.dtype is torch.float8_e4m3fn:
        flat = flat.view(torch.uint8)
    return flat.numpy().view(carrier(meta.dtype))


@dataclass
class Opened:
    """A task at one shape, ready to be called."""

    module: ModuleType
    sizes: dict[str, Any]
    model: torch.nn.Module
    form: list[Any]
    tensors: list[TensorInput]
    leaves: int
    spec: frames.CallSpec
    initial: list[torch.Tensor]

    @property
    def distributions(self) -> list[str]:
        """Names of the contents that the referee would try."""
        return sorted(set(distributions.names(self.tensors)))

    def contents(self, name: str = "task") -> list[torch.Tensor]:
        """One content of every tensor, upstream gradients last."""
        made = []
        for tensor in self.tensors:
            meta = tensor.meta
            memory = torch.empty(meta.span_bytes // meta.item_bytes, dtype=getattr(torch, meta.dtype))
            if memory.numel():
                span(memory)[:] = distributions.draw(name, tensor)
            made.append(memory.as_strided(meta.shape, meta.strides))
        return made

    def arguments(self, contents: list[torch.Tensor]) -> list[Any]:
        """What a call gets for given contents."""
        left = iter(contents)
        backward = self.spec.backward

        def put(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            tensor = next(left).detach()
            return leaf(tensor) if backward else tensor

        return [*tree_map(put, self.form), *left]

    def remember_buffers(self) -> None:
        """Calls start from the buffers as they are now."""
        self.initial = [tensor.clone() for tensor in calls.members(self.model, self.spec)[1]]

    def call(self, contents: list[torch.Tensor]) -> list[torch.Tensor]:
        """All outputs of one call: the module's own, gradients, buffers."""
        call = calls.make(self.model, self.model, self.spec, self.initial)
        with torch.no_grad():
            return [output.detach() for output in flatten(call(*self.arguments(contents)))]

    def exact(self, contents: list[torch.Tensor]) -> list[torch.Tensor]:
        """The same from the referee's oracle."""
        shape = Shape()
        shape.model, shape.spec, shape.initial = self.model, self.spec, self.initial
        return exact.outputs(shape, self.arguments(contents), getattr(self.module, "oracle", None), "strict")

    def another(self, place: int) -> torch.Tensor:
        """A content of one tensor from a draw of its own: a rolled one may well have the same sum."""
        like = self.contents()[place]
        if place >= self.leaves:
            return torch.randn_like(like)
        return tensors_in(named(self.module.get_inputs, self.sizes))[place]

    @property
    def results(self) -> int:
        """How many of the outputs are the module's own."""
        with torch.no_grad():
            return len(flatten(self.model(*self.arguments(self.contents())[: len(self.form)])))


def redraw(module: ModuleType, model: torch.nn.Module) -> None:
    """New weights in place, as the referee or the task draws them."""
    own = getattr(module, "redraw", None)
    if callable(own):
        own(model, torch.Generator().manual_seed(int(torch.randint(0, 2**62, ()))))
        return
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        values = weights.redraw(name, span(tensor), meta_of(tensor).dtype, parameter=name in parameters)
        span(tensor)[:] = values


def opened(module: ModuleType, sizes: dict[str, Any], seed: int = 0) -> Opened:
    """Opens a task at a shape."""
    torch.manual_seed(seed)
    model = module.Model(*named(module.get_init_inputs, sizes))
    redraw(module, model)
    training = bool(getattr(module, "TRAINING", False))
    backward = getattr(module, "DIRECTION", "forward") == "forward_backward"
    model.train(training)
    draws = [named(module.get_inputs, sizes) for _ in range(_DRAWS)]
    leaves = [tensors_in(draw) for draw in draws]
    tensors = [
        TensorInput(meta_of(same[0]), [span(t).copy() for t in same]) for same in zip(*leaves, strict=True)
    ]
    buffers = tuple(name for name, _ in model.named_buffers()) if training else ()
    spec = frames.CallSpec(training=training, buffers=buffers)
    given = len(tensors)
    if backward:
        with torch.enable_grad():
            outputs = flatten(
                model(*tree_map(lambda v: leaf(v) if isinstance(v, torch.Tensor) else v, draws[0]))
            )
        differentiable = tuple(i for i, output in enumerate(outputs) if output.requires_grad)
        trained = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        spec = frames.CallSpec(training, True, differentiable, trained, buffers)
        for index in differentiable:
            like = [torch.randn_like(outputs[index], requires_grad=False).detach() for _ in range(_DRAWS)]
            tensors.append(TensorInput(meta_of(like[0]), [span(t).copy() for t in like]))
    initial = [tensor.clone() for tensor in calls.members(model, spec)[1]]
    return Opened(module, sizes, model, list(draws[0]), tensors, given, spec, initial)


def rms(values: torch.Tensor) -> float:
    """Root mean square of the finite values."""
    values = values.double() if values.is_floating_point() else values
    wide = values[values.isfinite()] if values.is_floating_point() or values.is_complex() else values
    return float(wide.abs().double().square().mean().sqrt()) if wide.numel() else 0.0


def error(values: torch.Tensor, exact_values: torch.Tensor) -> float:
    """Largest relative error, or the share of wrong elements of an integer output."""
    if not (values.is_floating_point() or values.is_complex()):
        return float((values != exact_values.to(values.dtype)).double().mean())
    wide = values.to(exact_values.dtype)
    finite = wide.isfinite() & exact_values.isfinite()
    scale = exact_values.abs() + rms(exact_values) + 1e-300
    return float(torch.where(finite, (wide - exact_values).abs() / scale, 0.0).max())


def changed_share(before: torch.Tensor, after: torch.Tensor) -> float:
    """Share of the elements that are clearly different."""
    if not (before.is_floating_point() or before.is_complex()):
        return float((before != after).double().mean())
    wide = torch.complex128 if before.is_complex() else torch.float64
    first, second = before.to(wide), after.to(wide)
    return float(((first - second).abs() > 1e-3 * (first.abs() + rms(first) + 1e-30)).double().mean())
