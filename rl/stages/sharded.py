"""Sampling from a model whose weights FSDP 2 offloads to main memory between uses.

Such a model reports the CPU as its device, and transformers' `generate` moves its inputs there, although a layer's weights are on the
GPU when it runs. torch itself marks the model; `generate` then keeps the ranks in step until the last completion has ended.

With adapters, `generate` runs a model inside the outermost FSDP module and bypasses that module's forward, where FSDP's hooks start.
In this case the whole `generate` is registered with FSDP as a forward method.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method


@contextmanager
def sampling(model: Any, device: torch.device) -> Iterator[None]:
    """Make a model report its compute device while it samples. Has no effect unless FSDP 2 wraps the model.

    Args:
        model: the model that generates, or PEFT's wrapper around it.
        device: this rank's device.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    outer: Any = model
    inner: Any = outer.get_base_model() if hasattr(outer, "get_base_model") else outer
    if inner is not outer:
        register_fsdp_forward_method(outer, "generate")
    # Set it on the class, since properties do not work on instances.
    kind: Any = type(inner)
    said, own = kind.device, kind.__dict__.get("device")
    kind.device = property(lambda asked: device if asked is inner else said.fget(asked))
    try:
        yield
    finally:
        if own is None:
            del kind.device
        else:
            kind.device = own
        if inner is not outer:
            del outer.generate
