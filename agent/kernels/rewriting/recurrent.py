"""Recurrent layers outside training are traced as one operation: torch would write out their steps, and fix how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_LAYERS = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}


@contextmanager
def recurrent_layers() -> Iterator[None]:
    """Within it, the library computes float32 layers that have neither dropout nor projections.

    Packed sequences, one behind the other, stay torch's.
    """
    functions: Any = torch._VF
    own = {name: getattr(functions, name) for name in _LAYERS}
    for name, function in own.items():
        setattr(functions, name, partial(_layer, function, _LAYERS[name]))
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(functions, name, function)


def _layer(function: Callable[..., Any], kind: str, *args: Any) -> Any:
    """What takes the place of a function by which `torch.nn` computes a layer; it is called for what the library does not compute."""
    if isinstance(args[3], list | tuple):  # packed: lengths come second, and the weights one place later
        return function(*args)
    x, states, weights, has_biases, layers, dropout, training, bidirectional, batch_first = args
    hx = list(states) if kind == "lstm" else [states]
    count = layers * (1 + bidirectional) * (4 if has_biases else 2)
    is_plain = len(weights) == count and not (dropout and training) and not torch.is_autocast_enabled("cuda")
    if not is_plain or any(one.dtype != torch.float32 for one in (x, *hx, *weights)):
        return function(*args)
    out, hidden, cells = torch.ops.kernelwright.recurrent(
        x, hx, list(weights), has_biases, layers, bidirectional, batch_first, kind
    )
    return (out, hidden, cells) if kind == "lstm" else (out, hidden)
