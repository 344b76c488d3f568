"""Tests how a module handles calls that are not judged: other strides, train mode, several threads.

Decides nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from evaluator.devices.accelerator import torch_gpu
from evaluator.roles.blocks import flatten
from evaluator.roles.open_shape import Shape

#: Relative to an output's own size: a larger difference is another result.
_SAME = 1e-2
#: Threads switch every 5 ms.
_TOGETHER_S = 0.3


def answer(shapes: dict[int, Shape], request: dict[str, Any]) -> bytes:
    """For each question, whether the module gives another result, or why it gives none, as JSON. Uses slot 0.

    ``strides``: inputs whose last two dimensions are swapped in memory; ``train``: in train mode; ``threads``: two
    threads that call it at the same time, each with its own inputs.
    """
    shape = shapes[request["shape"]]
    arguments = tree_map(_copy, list(shape.slots[0].arguments))
    found = {}
    for name in request["questions"]:
        try:
            found[name] = _QUESTIONS[name](shape, arguments)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return json.dumps(found).encode()


def _strides(shape: Shape, arguments: list[Any]) -> str:
    return _difference(_call(shape, arguments), _call(shape, tree_map(_turned, arguments)))


def _train(shape: Shape, arguments: list[Any]) -> str:
    assert shape.model is not None
    base = _call(shape, arguments)
    buffers = {name: buffer.clone() for name, buffer in shape.model.named_buffers()}
    modes = {module: module.training for module in shape.model.modules()}
    try:
        shape.model.train()
        return _difference(base, _call(shape, arguments))
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for name, buffer in shape.model.named_buffers():
                buffer.copy_(buffers[name])


def _threads(shape: Shape, arguments: list[Any]) -> str:
    """The second thread's inputs are the first one's with reversed rows."""
    given = [arguments, tree_map(_flipped, arguments)]
    expected = [_call(shape, one) for one in given]
    together, found = threading.Barrier(2), ["", ""]

    def work(index: int) -> None:
        try:
            together.wait(30.0)
            until = time.monotonic() + _TOGETHER_S
            while not found[index] and time.monotonic() < until:
                found[index] = _difference(expected[index], _call(shape, given[index]))
        except Exception as error:
            found[index] = f"{type(error).__name__}: {error}"[:200]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0] or found[1]


_QUESTIONS: dict[str, Callable[[Shape, list[Any]], str]] = {
    "strides": _strides,
    "train": _train,
    "threads": _threads,
}


def _call(shape: Shape, arguments: list[Any]) -> list[torch.Tensor]:
    assert shape.model is not None
    with torch.no_grad():  # grad mode is per thread
        outputs = [output.clone() for output in flatten(shape.model(*tree_map(_copy, arguments)))]
    if any(output.is_cuda for output in outputs):
        torch_gpu.synchronize()
    return outputs


def _copy(value: Any) -> Any:
    """A copy with the same strides; an expanded tensor is used as it is."""
    if not isinstance(value, torch.Tensor) or 0 in value.stride():
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _turned(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return value
    return value.mT.contiguous().mT


def _flipped(value: Any) -> Any:
    return (
        value.flip(0)
        if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point()
        else value
    )


def _difference(expected: list[torch.Tensor], got: list[torch.Tensor]) -> str:
    """In words; empty if results are equal up to rounding."""
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            return "other shapes"
        wide = torch.complex128 if one.is_complex() else torch.float64
        first, second = one.to(wide), other.to(wide)
        size = torch.nan_to_num(first.abs(), posinf=0.0).square().mean().sqrt()
        near = (first == second) | ((first - second).abs() <= _SAME * (first.abs() + size))
        if not bool((near | (first.isnan() & second.isnan())).all()):
            return "another result"
    return ""
