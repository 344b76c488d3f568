"""How a module is called: as `torch.nn.Module` calls it, whatever its class does instead.

Before `forward`, that call looks for hooks, which takes about 1 us. Leaving it out is no gain of a kernel, so where a class has
a call of its own, torch's is made around it. A call of its own must still run hooks: its user may register some.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_map

from evaluator.roles.protocol import ContractError

#: What decides how a module is called, by what torch has there; as it is before anything of a user's is imported.
_TORCH = {
    name: inspect.getattr_static(nn.Module, name)
    for name in ("__call__", "_wrapped_call_impl", "_call_impl", "_compiled_call_impl")
}
_original: Any = nn.Module._call_impl
#: A copy, so that code that is put into torch's own function does not run here.
_call = FunctionType(_original.__code__, _original.__globals__, "_call", _original.__defaults__)
_call.__module__ = __name__  # by which it is found among what must not change in a process


def caller(model: nn.Module, *, own: bool) -> Callable[..., Any]:
    """The function that calls a module.

    Args:
        model: as it is now; a call of its own that it gets later is not used.
        own: use its own call alone, where it has one.
    """
    if replaced(model):
        if own:
            return model
        around = nn.Module()
        around.__dict__["forward"] = model
        model = around
    return MethodType(_call, model)


def replaced(model: nn.Module) -> dict[str, Any]:
    """What stands in the place of torch's own call of a module; looked up without running anything of its class."""
    found = {name: inspect.getattr_static(model, name, None) for name in _TORCH}
    return {name: value for name, value in found.items() if value is not _TORCH[name]}


def refuse_without_hooks(
    model: nn.Module, arguments: tuple[Any, ...], known: dict[str, Any]
) -> dict[str, Any]:
    """Calls a module that has a call of its own, with a hook of each kind.

    Args:
        model: which; it may change its inputs.
        arguments: of one call; copies are used.
        known: what this function returned last.

    Returns:
        What stands in the place of torch's own call.

    Raises:
        ContractError: some hook did not run.
    """
    found = replaced(model)
    if found == known or not found:
        return found
    kinds: tuple[Callable[[Any], Any], ...] = (
        lambda hook: nn.Module.register_forward_pre_hook(model, hook),
        lambda hook: nn.Module.register_forward_hook(model, hook),
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_forward_hook,
    )
    for register in kinds:
        met: list[int] = []
        handle = register(lambda one, *_, met=met: met.append(id(one)))
        try:
            # Compiled code would keep the hook of its first call; without that, `module.compile()` runs all of them.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                model(*tree_map(_copied, arguments))
        finally:
            handle.remove()
        if id(model) not in met:
            raise ContractError(
                f"{type(model).__name__} replaces {' and '.join(found)} of torch.nn.Module, and hooks that are registered on it do not run: leave "
                "the call to torch.nn.Module and put the work into forward()"
            )
    return found


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
