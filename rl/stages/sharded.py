"""Sampling from a model whose weights FSDP 2 keeps in main memory between uses.

Such a model says that it is on the CPU, and transformers' `generate` moves there what it is asked; when a layer is used, its weights
are on the GPU. torch itself marks the model, so that `generate` keeps ranks together until the last one's completions have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule


@contextmanager
def sampling(model: Any, device: torch.device) -> Iterator[None]:
    """While a model samples, it says that it is where it computes. Has no effect on a model that FSDP 2 does not hold.

    Args:
        model: what is asked to generate.
        device: of this rank.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    # The class is FSDP's own, made for models of this kind: what is set there hides transformers' property and goes without a trace.
    kind: Any = type(model)
    kind.device = property(lambda _: device)
    try:
        yield
    finally:
        del kind.device
