"""Triton's interpreter for programs that run many kernels: the same operations with less work around each."""

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
