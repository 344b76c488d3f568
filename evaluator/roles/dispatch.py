"""Calls a module the way `torch.nn.Module` does, whatever its class overrides.

Before `forward`, that call looks for hooks, which takes about 1 us. Skipping it is not a faster kernel, so if a
class has its own call, torch's call is made around it. A custom call must still run hooks, because users may
register some.
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

#: torch's attributes that decide how a module is called, as they are before any user code is imported.
_TORCH = {
    name: inspect.getattr_static(nn.Module, name)
    for name in ("__call__", "_wrapped_call_impl", "_call_impl", "_compiled_call_impl")
}
_original: Any = nn.Module._call_impl
#: A copy, so that code patched into torch's own function does not run here.
_call = FunctionType(_original.__code__, _original.__globals__, "_call", _original.__defaults__)
_call.__module__ = __name__  # the name under which landmarks find it


def caller(model: nn.Module, *, own: bool) -> Callable[..., Any]:
    """The function that calls a module.

    Args:
        model: as it is now; a custom call that it gets later is not used.
        own: use only its own call, if it has one.
    """
    if replaced(model):
        if own:
            return model
        around = nn.Module()
        around.__dict__["forward"] = model
        model = around
    return MethodType(_call, model)


def replaced(model: nn.Module) -> dict[str, Any]:
    """What overrides torch's own call of a module. Looked up without running code of its class."""
    found = {name: inspect.getattr_static(model, name, None) for name in _TORCH}
    return {name: value for name, value in found.items() if value is not _TORCH[name]}


def refuse_without_hooks(
    model: nn.Module, arguments: tuple[Any, ...], known: dict[str, Any]
) -> dict[str, Any]:
    """Calls a module that overrides torch's call, with a hook of each kind.

    Args:
        model: which; it may change its inputs.
        arguments: of one call; copies are used.
        known: what this function returned last.

    Returns:
        What overrides torch's own call.

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
            # Compiled code would keep the hook of its first call. Without this, `module.compile()` runs all of
            # them.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                model(*tree_map(_copied, arguments))
        finally:
            handle.remove()
        if id(model) not in met:
            raise ContractError(
                f"{type(model).__name__} replaces {' and '.join(found)} of torch.nn.Module, and hooks registered on it do not run: leave "
                "the call to torch.nn.Module and put the work into forward()"
            )
    return found


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
