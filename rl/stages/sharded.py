"""Sampling from a model whose weights FSDP 2 keeps in main memory between uses.

Such a model says that it is on the CPU, and transformers' `generate` moves there what it is asked; when a layer is used, its weights
are on the GPU. torch itself marks the model, so that `generate` keeps ranks together until the last one's completions have ended.

With adapters the model that `generate` runs is one inside of the outermost that FSDP holds, and goes past the outermost one's forward, where
FSDP begins: then the whole `generate` is a forward to FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method


@contextmanager
def sampling(model: Any, device: torch.device) -> Iterator[None]:
    """While a model samples, it says that it is where it computes. Has no effect on a model that FSDP 2 does not hold.

    Args:
        model: what is asked to generate; with adapters PEFT's model around it.
        device: of this rank.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    outer: Any = model
    inner: Any = outer.get_base_model() if hasattr(outer, "get_base_model") else outer
    if inner is not outer:
        register_fsdp_forward_method(outer, "generate")
    # On the class, since a property of the instance is none.
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
