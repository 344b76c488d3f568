"""A shape that is open in a role, and its tensors over memory that the referee shares."""

from __future__ import annotations

import mmap
import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

from evaluator.roles import blocks, frames
from evaluator.roles.protocol import ContractError


def meta_of(tensor: torch.Tensor) -> frames.TensorMeta:
    """Description of a strided tensor. Raises ContractError for anything that has no plain memory."""
    if tensor.layout is not torch.strided:
        raise ContractError(f"a tensor with layout {tensor.layout} is not supported")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in frames.DTYPES:
        raise ContractError(f"tensors of dtype {name} are not supported")
    if tensor.dim() > frames.MAX_DIMENSIONS:
        raise ContractError(f"tensors of more than {frames.MAX_DIMENSIONS} dimensions are not supported")
    if tensor.is_conj() or tensor.is_neg():
        raise ContractError("a lazily conjugated or negated tensor is not supported: return x.resolve_conj()")
    return frames.TensorMeta(name, tuple(tensor.shape), tuple(tensor.stride()))


def meta_json(meta: frames.TensorMeta) -> dict[str, Any]:
    """JSON form of a tensor description."""
    return {"dtype": meta.dtype, "shape": list(meta.shape), "strides": list(meta.strides)}


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What must be the same at every call of a block.

    Faster than a whole description, because the clock is running.
    """
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.layout


#: Weights with more bytes are not duplicated for each shape.
_HEAVY_BYTES = 64 << 20


class Exact:
    """The float64 twin of a module, made on first use."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.initial: list[torch.Tensor] = []


class Shape:
    """One open shape: a module, its arena and the arguments bound to each slot.

    Shapes of one configuration share a module if its weights are large, so that they exist once. Otherwise each
    shape has its own module: a candidate that keeps state for one module and uses it for another is then noticed.
    """

    def __init__(self) -> None:
        #: What the referee shares: host memory, or bytes on the device.
        self.arena: mmap.mmap | torch.Tensor | None = None
        self.model: nn.Module | None = None
        self.inputs: list[Any] = []
        self.forwards: dict[str, Any] = {}
        #: The slots that were needed so far, and the referee's description of all of them.
        self.slots: list[blocks.Slot] = []
        self.binding: dict[str, Any] = {}
        self.outputs: list[list[torch.Tensor]] = []
        #: Outputs of earlier timed calls that are kept alive, by the referee's numbers.
        self.held: dict[int, list[torch.Tensor]] = {}
        self.captured: dict[str, blocks.Captured] = {}
        self.spec = frames.CallSpec()
        self.initial: list[torch.Tensor] = []
        self.exact = Exact()
        #: Original weights that are temporarily changed, see :func:`renew`.
        self.weights_before: dict[str, torch.Tensor] = {}
        #: Reference only: the encoded arguments of the constructor.
        self.configuration = ""

    @property
    def is_heavy(self) -> bool:
        """Whether its module, which is ready to be called, has so many weights that other shapes use it too."""
        if self.model is None or not self.forwards:
            return False
        weights_bytes: int = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        return weights_bytes > _HEAVY_BYTES

    def share(self, other: Shape) -> None:
        """Uses the module of another shape from now on."""
        self.model, self.exact = other.model, other.exact
        self.spec, self.initial = other.spec, other.initial
        self.forwards = {"eager": other.forwards["eager"]}

    def view(self, offset: int, meta: frames.TensorMeta) -> torch.Tensor:
        """A tensor over the arena's bytes."""
        dtype: torch.dtype = getattr(torch, meta.dtype)
        elements = meta.span_bytes // meta.item_bytes
        if elements == 0:
            return torch.empty_strided(meta.shape, meta.strides, dtype=dtype)
        assert self.arena is not None
        if isinstance(self.arena, torch.Tensor):
            return typed(self.arena, offset, meta)
        flat = torch.frombuffer(self.arena, dtype=dtype, count=elements, offset=offset)
        return flat.as_strided(meta.shape, meta.strides)


def typed(memory: torch.Tensor, offset: int, meta: frames.TensorMeta) -> torch.Tensor:
    """A tensor over bytes on the device."""
    dtype: torch.dtype = getattr(torch, meta.dtype)
    flat = memory[offset : offset + meta.span_bytes].view(dtype)
    return flat.as_strided(meta.shape, meta.strides)


def read_meta(fields: dict[str, Any]) -> frames.TensorMeta:
    """A tensor description from the form that :func:`meta_json` makes."""
    return frames.TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with ``requires_grad``, if its dtype allows that."""
    return tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def renew(shape: Shape, names: list[str], seed: int | None, *, quietly: bool, one_row: bool) -> None:
    """Changes weights in place between calls, as a training step or a loaded checkpoint does, or restores them.

    Each is multiplied by factors of 0.5 to 1.5, one for each first index.

    Args:
        shape: open in this process; its original weights are kept with it meanwhile.
        names: of the weights, in the state dict.
        seed: of the factors, the same in every process; None restores the weights.
        quietly: writes below autograd's version counters, as custom optimizers and some loaders do.
        one_row: all but one of the first indices keep their values, so that these do not reveal the change.
    """
    assert shape.model is not None
    # Buffers that every call begins with are copied into the module from here.
    state = {
        **shape.model.state_dict(keep_vars=True),
        **dict(zip(shape.spec.buffers, shape.initial, strict=True)),
    }
    shape.exact.model = None  # the float64 twin is rebuilt
    if seed is None:
        # Version counters report it: what was derived from the changed weights must be rebuilt.
        with torch.no_grad():
            for name, values in shape.weights_before.items():
                state[name].copy_(values)
        shape.weights_before = {}
        return
    shape.weights_before = {name: state[name].detach().clone() for name in names}
    for name in names:
        weight = state[name]
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        rows = weight.shape[0] if weight.dim() else 1
        factors = generator.uniform(0.5, 1.5, rows).astype(np.float32)
        if one_row:
            changed = generator.integers(rows)
            factors[:] = np.where(np.arange(rows) == changed, generator.choice([0.5, 1.5]), 1.0)
        wide = torch.from_numpy(factors).to(weight.device).to(_real(weight))
        wide = wide.reshape([rows] + [1] * (weight.dim() - 1)) if weight.dim() else wide.reshape([])
        if quietly:
            weight.data.mul_(wide)
        else:
            with torch.no_grad():
                weight.mul_(wide)
        if name in shape.spec.buffers:
            weight.add_(0.1 * (wide - 1.0).abs())  # buffers often begin as zeros; variances stay positive


def _real(weight: torch.Tensor) -> torch.dtype:
    """What a weight can be multiplied by without changing its dtype."""
    return weight.real.dtype if weight.is_complex() else weight.dtype
