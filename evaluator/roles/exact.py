"""The reference in float64, and in float64 with the operands of its products rounded to a precision tier."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from evaluator.precision import DEFAULT, TIERS
from evaluator.roles import calls
from evaluator.roles.blocks import flatten

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
#: Matrix products and the positions of their operands among the arguments (a bias is added, not multiplied).
_MATRIX_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::dot": (0, 1),
    "aten::vdot": (0, 1),
    "aten::linear": (0, 1),
}
#: What cuDNN computes in TF32 by default. A recurrent layer's weights appear twice, once in one piece with the
#: biases, which are small beside what is summed.
_CUDNN_PRODUCTS = {
    "aten::convolution": (0, 1),
    "aten::_convolution": (0, 1),
    "aten::convolution_backward": (0, 1, 2),
    "aten::_cudnn_rnn": (0, 1, 3, 4),
    "aten::_cudnn_rnn_backward": (0, 1, 3, 4, 6, 7),
}
#: In float64 cuDNN takes up to six times as long (and never less) as PyTorch's own way through matrix products
#: (H200), which needs more memory.
_CONVOLUTIONS = {"aten::convolution", "aten::_convolution", "aten::convolution_backward"}


class Arithmetic(TorchDispatchMode):
    """Inside it, requests for single precision get double precision, and the operands of products are rounded.

    A module that converts to float32 itself (``x.float()`` in a norm over bfloat16) would otherwise leave float64.
    Conversions to dtypes below float32 are kept: a module that quantizes does so on purpose.

    Args:
        widen: whether float32 and complex64 become float64 and complex128.
        tier: whose operands of products are rounded, as far as it allows that.
    """

    def __init__(self, *, widen: bool, tier: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._widen = widen
        self._bits = TIERS[tier].mantissa_bits
        matrices = {} if tier == DEFAULT else _MATRIX_PRODUCTS
        self._products = {} if self._bits is None else {**_CUDNN_PRODUCTS, **matrices}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._widen and kwargs.get("dtype") in _WIDER:
            kwargs["dtype"] = _WIDER[kwargs["dtype"]]
        positions = self._products.get(func._schema.name)
        if positions:
            args = tuple(
                self._operand(value) if index in positions else value for index, value in enumerate(args)
            )
        if self._widen and func._schema.name in _CONVOLUTIONS and args[0].is_cuda:
            with suppress(torch.OutOfMemoryError), torch.backends.cudnn.flags(enabled=False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _operand(self, value: Any) -> Any:
        """One operand, or the list of a recurrent layer's weights, rounded."""
        if isinstance(value, (list, tuple)):
            return [self._operand(one) for one in value]
        return rounded(value, self._bits) if isinstance(value, torch.Tensor) else value


def rounded(values: torch.Tensor, bits: int | None) -> torch.Tensor:
    """Values rounded to nearest with ``bits`` explicit mantissa bits. The exponent's range is not cut.

    For real formats the range matters less: code that uses fp16 or fp8 scales its values, which does not affect a
    mantissa.
    """
    if bits is None or not (values.is_floating_point() or values.is_complex()):
        return values
    if values.is_complex():
        return torch.view_as_complex(rounded(torch.view_as_real(values.resolve_conj()).contiguous(), bits))
    mantissa, exponent = torch.frexp(values)
    steps = 2.0 ** (bits + 1)
    near = torch.ldexp(torch.round(mantissa * steps) / steps, exponent)
    return torch.where(torch.isfinite(values), near, values)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Real floating tensors in float64, complex ones in complex128; ``Module.double`` would not convert the
    latter.
    """
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Move:
    """How to move inputs, and weights, to see how much the result changes.

    Attributes:
        steps: relative distance per tensor among the arguments, 0 for those that stay.
        seed: of the signs, one per element.
        sign: 1 or -1; -1 moves everything the opposite way.
        weights: largest relative distance of parameters, which are moved too if it is not 0.
    """

    steps: list[float]
    seed: int
    sign: int
    weights: float = 0.0


def prepared(arguments: list[Any], move: Move | None, *, widen: bool) -> list[Any]:
    """The arguments in double precision (or their own), moved if requested, never in the memory of the given ones.

    An in-place module would otherwise change the input of the next result of the same request.
    """
    generators: dict[torch.device, torch.Generator] = {}
    steps = iter(move.steps if move else ())

    def prepare(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        given = value.detach()
        # float32 stays what it is where it is asked for: a move in float64 takes 25 bytes an element.
        wide = _widened(given) if widen or given.element_size() < 4 else given
        step = next(steps, 0.0)
        if step and move is not None:
            signs = _signs(wide, _generator_on(wide.device, generators, move.seed))
            wide = wide * signs.mul_(step * move.sign).add_(1.0)
        wide = wide if widen else wide.to(value.dtype)
        if wide is given:
            wide = given.clone()
        return wide.requires_grad_(value.requires_grad)

    return list(tree_map(prepare, arguments))


def _move_weights(model: nn.Module, own: nn.Module, move: Move) -> Callable[[], None]:
    """Moves a module's parameters in place, each by a rounding error of its own dtype in `own` or of the move's; returns what undoes it."""
    generators: dict[torch.device, torch.Generator] = {}
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def undo() -> None:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(before)

    try:
        with torch.no_grad():
            for weight, given in zip(model.parameters(), own.parameters(), strict=True):
                # Eight bits are too few to move, and have no arithmetic.
                if weight.element_size() < 2 or not (weight.is_floating_point() or weight.is_complex()):
                    continue
                kept.append((weight, weight.clone()))
                step = min(torch.finfo(given.dtype).eps, move.weights)
                signs = _signs(weight, _generator_on(weight.device, generators, move.seed + 1))
                weight.mul_(signs.mul_(step * move.sign).add_(1.0))
    except BaseException:
        undo()
        raise
    return undo


def _generator_on(
    device: torch.device, generators: dict[torch.device, torch.Generator], seed: int
) -> torch.Generator:
    if device not in generators:
        generators[device] = torch.Generator(device).manual_seed(seed)
    return generators[device]


def _signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """1 or -1 for each element, at random, on the same device: one bit of each byte of random numbers.

    In float64 for tensors of that precision, else in float32.
    """
    count = like.numel()
    numbers = torch.empty(-(-count // 8), dtype=torch.int64, device=like.device).random_(generator=generator)
    bits = numbers.view(torch.uint8)[:count].bitwise_and_(1)
    wide = like.dtype in (torch.float64, torch.complex128)
    signs = bits.to(torch.float64 if wide else torch.float32).mul_(2.0).sub_(1.0).view(like.shape)
    if like.dim() and like.shape[-1] > 1:
        # A row whose signs are all alike is only shifted, and a normalization does not notice that: one short row
        # in a hundred would be granted no rounding error at all.
        signs[..., 0] = -signs[..., 1]
    return signs


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """An output as the referee reads it: inexact ones in double precision, whatever dtype the module returned."""
    return _widened(tensor.detach().resolve_conj().resolve_neg()).contiguous()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """An output as the referee reads it: as it is, but 8 and 16 bits of a float, which NumPy may not know, in double precision."""
    if tensor.is_floating_point() and tensor.element_size() < 4:
        return widened(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def outputs(
    shape: Any, arguments: list[Any], own: Callable[..., Any] | None, tier: str, move: Move | None = None
) -> list[torch.Tensor]:
    """What a call must return, as exactly as it is known.

    Args:
        shape: the open shape; the widened model of its configuration is kept there.
        arguments: of the call, as the module gets them.
        own: the task's ``oracle(model, *inputs)``. It gets the model and the inputs in their own dtypes.
        tier: ``strict`` for the exact result; otherwise operands of products are rounded as in this tier.
        move: moves the inputs, and the weights if it says so.
    """
    exact = shape.exact
    if exact.model is None:
        exact.model = copy.deepcopy(shape.model)
        exact.initial = shape.initial
        if own is None:
            exact.model._apply(_widened)
            exact.initial = [_widened(tensor) for tensor in exact.initial]
    model: nn.Module = exact.model
    forward: Any = model
    if own is not None:
        task_oracle = own

        def forward(*inputs: Any) -> Any:
            return task_oracle(model, *inputs)

    arguments = prepared(arguments, move, widen=own is None)
    call = calls.make(forward, model, shape.spec, exact.initial)
    default = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if tier not in (DEFAULT, "strict"):
            # Fused attention would hide its products.
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if own is None:
            torch.set_default_dtype(torch.float64)
            stack.callback(torch.set_default_dtype, default)
        if move is not None and move.weights:
            stack.callback(_move_weights(model, shape.model, move))
        stack.enter_context(Arithmetic(widen=own is None, tier=tier))
        return [widened(tensor) for tensor in flatten(call(*arguments))]
