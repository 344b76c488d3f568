"""Defines one call: the module's forward, or forward and backward, and the state that it leaves behind.

Most tasks are forward-only in eval mode: a call is then the module itself. Otherwise gradients and the buffers
after the call are further outputs, so that chain, contract, tolerance and clock treat them like any other output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from evaluator.counting import counted
from evaluator.roles.blocks import flatten, map_tensors, tensors_in
from evaluator.roles.frames import CallSpec, TensorMeta
from evaluator.roles.protocol import ContractError

Forward = Callable[..., Any]


class Call:
    """Forward, backward if the task asks for it, and copies of the buffers afterwards, as one function.

    It returns (the module's result, gradients, buffers). Gradients are what ``backward()`` leaves in ``.grad``:
    those of the floating inputs, then those of the parameters, zeros if there is none. Grad mode is on only in
    here.

    Args:
        forward: the module or a compiled form of it.
        parameters: whose gradients are wanted.
        places: where the module keeps its buffers (they may be replaced by other tensors), in the order of the
            task's names.
        initial: what they hold before each call.
        spec: how the task is called.
    """

    def __init__(
        self,
        forward: Forward,
        parameters: list[torch.Tensor],
        places: list[tuple[dict[str, Any], str]],
        initial: list[torch.Tensor],
        spec: CallSpec,
    ) -> None:
        self._forward = forward
        self._parameters = parameters
        self._places = places
        self._buffers = [place[name] for place, name in places]
        self._initial = initial
        self._spec = spec

    def __call__(self, *arguments: Any) -> Any:
        self._restore()
        if self._spec.backward:
            result, gradients = self._both(arguments)
        else:
            result, gradients = self._forward(*arguments), []
        return result, gradients, self._after()

    def interleaved(self, calls: list[list[Any]]) -> list[Any]:
        """Runs all forwards, then all backwards in the same order. Returns what the calls would return one by one.

        Each forward has its own buffers: copying into those that an open graph has saved is an autograd error.
        """
        opened = []
        for arguments in calls:
            for (place, name), initial in zip(self._places, self._initial, strict=True):
                place[name] = initial.clone()
            given, upstream, leaves = self._parts(tuple(arguments))
            with torch.enable_grad():
                result = self._forward(*given)
                opened.append((result, given, upstream, leaves, self._after()))
        answers = []
        for result, given, upstream, leaves, buffers in opened:
            gradients = self._backward(result, given, upstream, leaves)
            answers.append((map_tensors(result, torch.Tensor.detach), gradients, buffers))
        self._restore()
        return answers

    def _restore(self) -> None:
        if not self._buffers:
            return
        for (place, name), buffer in zip(self._places, self._buffers, strict=True):
            if place[name] is not buffer:
                place[name] = buffer
        torch._foreach_copy_(self._buffers, self._initial)

    def _after(self) -> list[torch.Tensor]:
        return [place[name].detach().clone() for place, name in self._places]

    def null(self, outcome: Any) -> Forward:
        """The same without the module: restoring and copying buffers is the harness's own cost."""
        result, gradients, _ = outcome

        def call(*arguments: Any) -> Any:
            self._restore()
            return result, gradients, self._after()

        return call

    def _both(self, arguments: tuple[Any, ...]) -> tuple[Any, list[torch.Tensor]]:
        given, upstream, leaves = self._parts(arguments)
        with torch.enable_grad():
            result = self._forward(*given)
        gradients = self._backward(result, given, upstream, leaves)
        return map_tensors(result, torch.Tensor.detach), gradients

    def _parts(self, arguments: tuple[Any, ...]) -> tuple[Any, Any, list[torch.Tensor]]:
        """What forward gets, the upstream gradients, and the tensors whose gradients are wanted."""
        count = len(arguments) - len(self._spec.differentiable)
        given, upstream = arguments[:count], arguments[count:]
        return given, upstream, [one for one in tensors_in(given) if one.requires_grad] + self._parameters

    def _backward(
        self, result: Any, given: Any, upstream: Sequence[torch.Tensor], leaves: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        with torch.enable_grad():
            torch.autograd.backward(*self._roots(flatten(result), upstream))
        held = {tensor.untyped_storage().data_ptr() for tensor in (*tensors_in(given), *upstream)}
        gradients = []
        for leaf in leaves:
            gradient, leaf.grad = leaf.grad, None
            if gradient is None:
                gradient = torch.zeros_like(leaf, requires_grad=False)
            elif gradient.is_conj():
                gradient = gradient.resolve_conj()
            elif gradient.layout is torch.strided and gradient.untyped_storage().data_ptr() in held:
                # The gradient of a view is a view of the upstream gradient, which the next call overwrites.
                gradient = gradient.clone()
            gradients.append(gradient)
        return gradients

    def _roots(
        self, outputs: list[torch.Tensor], upstream: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that get an upstream gradient, and these gradients."""
        roots, gradients = [], []
        for index, gradient in zip(self._spec.differentiable, upstream, strict=True):
            if index >= len(outputs):
                raise ContractError(
                    f"forward() returned {counted(len(outputs), 'tensor')}, too few for this task"
                )
            output = outputs[index]
            if not output.requires_grad:
                raise ContractError(
                    f"output {index} of forward() carries no gradient: the task is forward_backward, so own kernels "
                    "need a torch.autograd.Function (or the class must be differentiable by autograd)"
                )
            if gradient.shape != output.shape:
                raise ContractError(
                    f"output {index} of forward() has shape {list(output.shape)}, the reference returns "
                    f"{list(gradient.shape)}"
                )
            roots.append(output)
            # Differs only in the float64 oracle, if a module narrows its output itself.
            gradients.append(gradient if gradient.dtype == output.dtype else gradient.to(output.dtype))
        return roots, gradients


def make(forward: Forward, model: nn.Module, spec: CallSpec, initial: list[torch.Tensor]) -> Forward:
    """The function of one call around ``forward``, which runs ``model`` or a compiled form of it."""
    if spec.plain:
        return forward
    parameters, _ = members(model, spec)
    return Call(forward, parameters, [_place(model, name) for name in spec.buffers], initial, spec)


def _place(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    owner, _, last = name.rpartition(".")
    return model.get_submodule(owner)._buffers, last


def members(
    model: nn.Module, spec: CallSpec, metas: dict[str, TensorMeta] | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters and buffers that a task names.

    Args:
        model: where they are looked up.
        spec: names them.
        metas: their expected form, by name; None skips the check.

    Raises:
        ContractError: one is missing or has another shape or dtype.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    if metas is not None:
        _check(parameters, spec.gradients, metas, "parameter", "forward_backward tasks take gradients")
        _check(buffers, spec.buffers, metas, "buffer", "TRAINING tasks compare the state after a call")
    for name in spec.gradients:
        parameters[name].requires_grad_(True)
    return [parameters[name] for name in spec.gradients], [buffers[name] for name in spec.buffers]


def _check(
    found: dict[str, Any], names: tuple[str, ...], metas: dict[str, TensorMeta], kind: str, why: str
) -> None:
    for name in names:
        tensor, meta = found.get(name), metas[name]
        if tensor is None:
            raise ContractError(
                f"ModelNew has no {kind} {name!r}: {why} by the reference's names, so a class with "
                f"from_reference must keep each {kind} under its name, unpacked"
            )
        if tuple(tensor.shape) != meta.shape or str(tensor.dtype) != f"torch.{meta.dtype}":
            raise ContractError(
                f"ModelNew's {kind} {name!r} is {tensor.dtype} of shape {list(tensor.shape)}, the reference's is "
                f"torch.{meta.dtype} of shape {list(meta.shape)}: {why} as they are in the reference"
            )
