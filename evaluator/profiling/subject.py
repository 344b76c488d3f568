"""A task's module as something that can be called again and again, at its own size or another; runs beside untrusted code."""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

_NAME = "profiled_task"


@dataclass
class Subject:
    """A module with inputs on a device.

    Attributes:
        call: one call of the task: forward, or forward and backward.
        model: the module.
        inputs: what it is called with.
    """

    call: Callable[[], Any]
    model: torch.nn.Module
    inputs: list[Any]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the inputs."""
        return [leaf for leaf in tree_leaves(self.inputs) if isinstance(leaf, torch.Tensor)]

    def input_bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def state_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])


def load(path: str) -> types.ModuleType:
    """Executes a task file from its path, so that lines of its code can be told by the name of their file."""
    path = os.path.abspath(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    module = types.ModuleType(_NAME)
    module.__file__ = path
    sys.modules[_NAME] = module
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    tier = getattr(module, "PRECISION", "")
    if tier == "tf32":
        torch.set_float32_matmul_precision("high")
    elif tier == "strict":
        torch.backends.cudnn.allow_tf32 = False
    return module


def build(
    module: types.ModuleType, dims: dict[str, Any], device: str, dtype: torch.dtype | None = None
) -> Subject:
    """The task at a size.

    Args:
        module: see :func:`load`.
        dims: sizes; those that are not named keep the defaults of the file.
        device: where it runs.
        dtype: what every float32 becomes, nothing else by default.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        narrow = dtype is not None and tensor.dtype == torch.float32
        return tensor.to(device, dtype) if narrow else tensor.to(device)

    torch.manual_seed(0)
    inputs = list(module.get_inputs(**_taken(module.get_inputs, dims)))
    model = module.Model(*module.get_init_inputs(**_taken(module.get_init_inputs, dims))).to(device)
    if dtype is not None:
        model = model.to(dtype)
    model.train(bool(getattr(module, "TRAINING", False)))
    inputs = tree_map_only(torch.Tensor, moved, inputs)
    if getattr(module, "DIRECTION", "forward") == "forward_backward":
        return Subject(_both(model, inputs), model, inputs)

    def call() -> Any:
        with torch.no_grad():
            return model(*inputs)

    return Subject(call, model, inputs)


def _both(model: torch.nn.Module, inputs: list[Any]) -> Callable[[], Any]:
    leaves = [
        leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    for leaf in leaves:
        leaf.requires_grad_(True)
    parameters = list(model.parameters())
    upstream: list[torch.Tensor] = []

    def call() -> Any:
        with torch.enable_grad():
            result = model(*inputs)
            roots = [
                leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            if not upstream:
                upstream.extend(torch.randn_like(root) for root in roots)
            torch.autograd.backward(roots, upstream)
        gradients = [tensor.grad for tensor in (*leaves, *parameters)]
        for tensor in (*leaves, *parameters):
            tensor.grad = None
        return result, gradients

    return call


def _taken(function: Callable[..., Any], dims: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {name: value for name, value in dims.items() if name in names}


def other_size(
    module: types.ModuleType, dims: dict[str, Any], device: str, factor: float, input_bytes: int
) -> tuple[Subject, str, float] | None:
    """The task with a dimension that the inputs alone have (a batch, most likely) changed, its name, the factor of the input bytes.

    None where the file names no such dimension.
    """
    space = getattr(module, "DIMS", {})
    inputs = inspect.signature(module.get_inputs).parameters
    arguments = inspect.signature(module.get_init_inputs).parameters
    for name, parameter in inputs.items():
        default = dims.get(name, parameter.default)
        if name not in space or name in arguments or not isinstance(default, int):
            continue
        size = round(default * factor)
        step = int(getattr(space[name], "multiple_of", 1))
        size = size // step * step
        if size < 1 or size == default:
            return None
        subject = build(module, {**dims, name: size}, device)
        return subject, name, subject.input_bytes() / max(input_bytes, 1)
    return None
