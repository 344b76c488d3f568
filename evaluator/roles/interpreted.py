"""Triton without a GPU: its interpreter runs a kernel's Python once per program, to check correctness only.

The interpreter exists only if ``TRITON_INTERPRET`` is set before triton is first imported, because its own
functions (``tl.sum``, ``tl.sigmoid``) are decorated at import. So the fork server of a CPU sets it, and the child
of a candidate that imports triton gets it again. This module answers kernels' driver queries. Interpreted code is
never timed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

VARIABLE = "TRITON_INTERPRET"
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+triton\b", re.MULTILINE)
#: Functions of libdevice that kernels use, and numpy's names for them.
_UNARY = {
    "tanh": "tanh", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p",
    "sqrt": "sqrt", "sin": "sin", "cos": "cos", "abs": "abs", "fabs": "abs", "floor": "floor", "ceil": "ceil",
    "rint": "rint", "sinh": "sinh", "cosh": "cosh", "fast_expf": "exp", "fast_logf": "log", "fast_tanhf": "tanh",
}  # fmt: skip
_BINARY = {"pow": "power", "fmax": "fmax", "fmin": "fmin", "atan2": "arctan2", "hypot": "hypot"}


def imports_triton(source: str) -> bool:
    """Whether a candidate's source has an import statement for triton."""
    return _IMPORT.search(source) is not None


def prepare() -> None:
    """Gives this process's triton a driver and the mathematical functions that its interpreter lacks.

    Called in the process of a candidate, before its file is imported. Does nothing without triton.
    """
    try:
        from triton.runtime.driver import driver
    except ModuleNotFoundError:
        return
    driver.set_active(_Driver())
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as of_cuda

    for name, function in _functions().items():
        for module in (libdevice, of_cuda):
            setattr(module, name, function)
    _let_arrays_of_one_be_numbers()
    _take_precisions_of_a_gpu()


def _take_precisions_of_a_gpu() -> None:
    """Products of bfloat16 parts, which a GPU sums in float32 as well, are computed in float32 like others."""
    from triton.runtime import interpreter

    options, name = interpreter.interpreter_builder.options, "allowed_dot_input_precisions"
    object.__setattr__(options, name, tuple({*getattr(options, name), "bf16x3", "bf16x6"}))


def _let_arrays_of_one_be_numbers() -> None:
    """numpy 2.4 no longer converts an array of one element to a number, but triton 3.6's interpreter needs that."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


class _Driver:
    """The part of a triton driver that a kernel's host side uses."""

    def get_active_torch_device(self) -> Any:
        """Tensors stay in place."""
        import torch

        return torch.device("cpu")

    def get_current_target(self) -> Any:
        """A current NVIDIA GPU: some files choose their configurations by it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """An autotuner's timer with random results: any configuration may be the fastest somewhere, so each must
        be right.
        """

        def drawn(kernel_call: Callable[[], Any], quantiles: Any = None, **_: Any) -> list[float]:
            return [1.0 + secrets.randbelow(1 << 20)] * 3

        return drawn


def _functions() -> dict[str, Callable[..., Any]]:
    """libdevice's functions over the interpreter's arrays."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **_: Any) -> Any:
            first = next(value for value in arguments if isinstance(value, tl.tensor))
            with np.errstate(all="ignore"):
                data = function(*(v.handle.data if isinstance(v, tl.tensor) else v for v in arguments))
            data = np.asarray(data).astype(first.handle.data.dtype)
            return tl.tensor(interpreter.TensorHandle(data, first.handle.dtype), first.type)

        return call

    named = {name: getattr(np, other) for name, other in (_UNARY | _BINARY).items()}
    named["erf"] = interpreter.np_erf_fp64
    named["rsqrt"] = lambda values: 1 / np.sqrt(values)
    return {name: elementwise(function) for name, function in named.items()}
