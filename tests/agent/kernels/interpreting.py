"""Triton's interpreter for programs that run many kernels: the same operations with less work around each.

Most of its time goes into types and shapes, which are made anew for each value. Here those of one shape share them.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from evaluator.roles import interpreted


def prepare() -> None:
    """Patch the language once in place of at each call, keep the types of arrays, and scan in few steps."""
    interpreted.prepare()
    import triton.language as tl
    from triton.runtime import interpreter

    _share_shapes()
    patch, type_of = interpreter._patch_lang, interpreter._get_np_dtype
    type_of_name = cache(lambda name: type_of(tl.dtype(name)))

    def patch_once(_: Any) -> Any:
        if tl.core.is_builtin(tl.load):
            patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        return interpreter._LangPatchScope()  # restores nothing

    def scan(self: Any, given: Any) -> list[Any]:
        """Combine whole slices, those that lie 1, 2, 4 ... apart: a GPU does so, too."""
        found, apart = list(given), 1
        count = given[0].handle.data.shape[self.axis]
        place = np.expand_dims(np.arange(count), tuple(range(1, given[0].handle.data.ndim - self.axis)))
        while apart < count:
            before = np.maximum(np.arange(count) - apart, 0)
            earlier = [self.to_tensor(one.handle.data.take(before, self.axis), one.dtype) for one in found]
            made = self.combine_fn.fn(*earlier, *found)
            found = [
                self.to_tensor(np.where(place < apart, old.handle.data, new.handle.data), old.dtype)
                for old, new in zip(found, made if len(found) > 1 else [made], strict=True)
            ]
            apart *= 2
        return found

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = lambda one: (
        np.dtype(np.uint64) if one.scalar.is_ptr() else type_of_name(one.scalar.name)
    )
    interpreter.ScanOps.generic_scan = scan


def _share_shapes() -> None:
    """Blocks of one shape have one tuple of sizes, and what names and describes a tuple is worked out when it is asked for."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    class Sizes:
        """Of a shape what its types and its tensors hold."""

        def __init__(self, shape: tuple[int, ...]) -> None:
            self.of_type = core.tuple(shape)
            self.numel = core.validate_block_shape(self.of_type)
            self.of_tensor = core.tuple([core.constexpr(size) for size in shape])
            self.numel_of_tensor = core.constexpr(self.numel)

    sizes = cache(Sizes)
    none, one = core.tuple([]), core.constexpr(1)

    def make_tuple(self: Any, values: Any, type: Any = None) -> None:  # noqa: A002
        self.values = list(values)
        if isinstance(type, core.tuple_type):
            self.type = type
        elif type is not None:
            self.type = core.tuple_type(type)

    def attribute_of_tuple(self: Any, name: str) -> Any:
        if name == "type":
            self.type = core._type_for_tuple_values(self.values)
            return self.type
        return self.values[self.type.fields.index(name)]

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        values = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        if not values:
            raise TypeError("0d block_type is forbidden")
        found = sizes(values)
        self.element_ty, self.shape, self.numel = element_ty, found.of_type, found.numel

    def make_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.is_block():
            found = sizes(tuple(type.shape.values))
            self.shape, self.numel = found.of_tensor, found.numel_of_tensor
        else:
            self.shape, self.numel = none, one

    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        same = left.type.is_block() and right.type.is_block() and left.type.shape is right.type.shape
        return (left, right) if same else broadcast(self, left, right)

    def cast_others(self: Any, given: Any, to: Any, *more: Any, **named: Any) -> Any:
        return given if given.type.scalar is to.scalar else cast(self, given, to, *more, **named)

    TritonSemantic.broadcast_impl_value, TritonSemantic.cast = broadcast_others, cast_others
    core.tuple.__init__ = make_tuple
    core.tuple.__getattr__ = attribute_of_tuple
    core.block_type.__init__ = make_block
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    core.tensor.__init__ = make_tensor
