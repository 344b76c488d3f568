"""One arithmetic for two kinds of arrays: numpy on the host, and torch for outputs on a GPU.

The oracle's formulas are written once, over the functions of a *space*; :func:`space` finds the one of an array.
Only what the formulas need is here. A float64 oracle of 16 million elements takes seconds in numpy and
milliseconds on a device.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from evaluator.oracle import numbers
from evaluator.roles.arena import carrier
from evaluator.roles.frames import TensorMeta

#: A numpy array or a torch tensor.
Array = Any


class Host:
    """numpy."""

    iscomplex = staticmethod(np.iscomplexobj)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def size(values: Array) -> int:
        return int(values.size)

    @staticmethod
    def full(like: Array, shape: tuple[int, ...], value: float) -> Array:
        return np.full(shape, value)

    @staticmethod
    def zeros(like: Array, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, dtype=bool)

    @staticmethod
    def mean_of_rows(values: Array) -> Array:
        return np.mean(values, axis=1, keepdims=True)

    @staticmethod
    def max_of_rows(values: Array) -> Array:
        return np.max(values, axis=1, keepdims=True)

    @staticmethod
    def count_of_rows(mask: Array) -> Array:
        return np.count_nonzero(mask, axis=1, keepdims=True)

    @staticmethod
    def mean(values: Array) -> float:
        return float(np.mean(values))

    @staticmethod
    def median(values: Array) -> float:
        return float(np.median(values))

    @staticmethod
    def first_true(values: Array) -> tuple[int, int]:
        row, column = divmod(int(values.argmax()), values.shape[1])
        return row, column

    @staticmethod
    def item(values: Array, row: int, column: int) -> Any:
        return values[row, column]

    @staticmethod
    def quiet() -> AbstractContextManager[Any]:
        return np.errstate(invalid="ignore", over="ignore")

    @staticmethod
    def dense(span: Array, meta: TensorMeta) -> Array:
        strides = tuple(stride * span.itemsize for stride in meta.strides)
        return np.lib.stride_tricks.as_strided(span, meta.shape, strides, writeable=False).reshape(-1)

    @staticmethod
    def widen(values: Array, dtype: str) -> Array:
        return numbers.to_float64(values, dtype) if numbers.is_inexact(dtype) else values

    @staticmethod
    def read_as(values: Array, dtype: str) -> Array:
        """Values of the oracle, in float64 or complex128, or in the carrier of an exact dtype."""
        if not numbers.is_inexact(dtype):
            return values.astype(carrier(dtype))
        return values.astype(np.complex128 if dtype.startswith("complex") else np.float64)

    @staticmethod
    def count_different(first: Array, second: Array) -> int:
        """Number of elements that differ in any bit."""
        return int((first.view(f"V{first.itemsize}") != second.view(f"V{second.itemsize}")).sum())


class Device:
    """torch, on the device of its tensors; takes and returns tensors of torch's own dtypes."""

    @staticmethod
    def _torch() -> Any:
        return sys.modules["torch"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch(), name)

    def maximum(self, values: Array, other: Any) -> Array:
        return values.clamp(min=other) if isinstance(other, float) else self._torch().maximum(values, other)

    def rint(self, values: Array) -> Array:
        """To the nearest integer; for complex numbers both parts, because GPU kernels cannot round those."""
        torch = self._torch()
        if not values.is_complex():
            return torch.round(values)
        return torch.view_as_complex(torch.round(torch.view_as_real(values)))

    @staticmethod
    def iscomplex(values: Array) -> bool:
        return bool(values.is_complex())

    @staticmethod
    def size(values: Array) -> int:
        return int(values.numel())

    def full(self, like: Array, shape: tuple[int, ...], value: float) -> Array:
        return self._torch().full(shape, value, dtype=self._torch().float64, device=like.device)

    def zeros(self, like: Array, shape: tuple[int, ...]) -> Array:
        return self._torch().zeros(shape, dtype=self._torch().bool, device=like.device)

    @staticmethod
    def mean_of_rows(values: Array) -> Array:
        return values.mean(dim=1, keepdim=True)

    @staticmethod
    def max_of_rows(values: Array) -> Array:
        return values.amax(dim=1, keepdim=True)

    @staticmethod
    def count_of_rows(mask: Array) -> Array:
        return mask.sum(dim=1, keepdim=True)

    @staticmethod
    def mean(values: Array) -> float:
        return float(values.double().mean())

    @staticmethod
    def median(values: Array) -> float:
        flat = values.reshape(-1)
        low = flat.kthvalue((flat.numel() + 1) // 2).values
        high = flat.kthvalue(flat.numel() // 2 + 1).values
        return float((low + high) / 2)

    @staticmethod
    def first_true(values: Array) -> tuple[int, int]:
        place = int(values.reshape(-1).byte().argmax())
        return place // values.shape[1], place % values.shape[1]

    @staticmethod
    def item(values: Array, row: int, column: int) -> Any:
        return values[row, column].cpu().numpy()[()]

    @staticmethod
    def quiet() -> AbstractContextManager[Any]:
        return nullcontext()

    def dense(self, span: Array, meta: TensorMeta) -> Array:
        typed = span.view(getattr(self._torch(), meta.dtype)) if span.dtype == self._torch().uint8 else span
        return typed.as_strided(meta.shape, meta.strides).reshape(-1)

    def widen(self, values: Array, dtype: str) -> Array:
        return self.read_as(values, dtype) if numbers.is_inexact(dtype) else values

    def read_as(self, values: Array, dtype: str) -> Array:
        """See :meth:`Host.read_as`."""
        torch = self._torch()
        if not numbers.is_inexact(dtype):
            return values.to(getattr(torch, dtype))
        return values.to(torch.complex128 if dtype.startswith("complex") else torch.float64)

    def count_different(self, first: Array, second: Array) -> int:
        """See :meth:`Host.count_different`."""
        uint8, width = self._torch().uint8, first.element_size()
        mine, others = (values.contiguous().view(uint8).reshape(-1, width) for values in (first, second))
        return int((mine != others).any(dim=1).sum())


_HOST, _DEVICE = Host(), Device()


def space(values: Array) -> Any:
    """The functions for an array."""
    return _HOST if isinstance(values, np.ndarray | np.generic) else _DEVICE
