"""What both sides get at one shape: constructor arguments, weights, call arguments, and how a call is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput
from evaluator.oracle.numbers import is_inexact
from evaluator.referee.memory.sizes import ShapeNeeds, slot_bytes
from evaluator.roles.arena import carrier
from evaluator.roles.frames import CallSpec, TensorMeta

#: Inputs are small with at most this many elements, and at most this fraction of the weights.
_WEIGHTS_A_VALUE = 16
#: A link on a GPU has 4096 threads.
_MOST_RENEWED = {False: 1 << 18, True: 1 << 16}


@dataclass(frozen=True)
class PlainInput:
    """A non-tensor argument in its encoded form. ``tensors`` are those within it, referenced by number."""

    value: Any
    tensors: tuple[TensorInput, ...] = ()


@dataclass(frozen=True)
class StateEntry:
    """One entry of a state dict, a `parameter` or a buffer, with its values: redrawn, or `kept` as the module made
    them.

    Tied entries share one values object. Values are flat, in the carrier dtype on the host or as bytes on a GPU.
    """

    name: str
    meta: TensorMeta
    values: Any
    kept: bool = False
    parameter: bool = False


@dataclass(frozen=True)
class ShapeInputs:
    """What both sides get at one shape.

    Attributes:
        init: encoded arguments of the constructor.
        arguments: of forward.
        state: the weights.
        upstream: gradients of the outputs, if a call is forward and backward; tensors like the inputs.
        call: what a call is.
        peak_bytes: GPU memory that one call of the reference takes beside inputs and weights, as its process
            reports; 0 on a CPU.
        outputs_bytes: the part of it that is returned.
        gradients_bytes: the gradients among the outputs.
    """

    init: list[Any]
    arguments: list[TensorInput | PlainInput]
    state: list[StateEntry]
    upstream: tuple[TensorInput, ...] = ()
    call: CallSpec = field(default_factory=CallSpec)
    peak_bytes: int = 0
    outputs_bytes: int = 0
    gradients_bytes: int = 0

    @property
    def given(self) -> list[TensorInput]:
        """The tensors among the arguments of forward."""
        found: list[TensorInput] = []
        for argument in self.arguments:
            found += [argument] if isinstance(argument, TensorInput) else argument.tensors
        return found

    @property
    def tensors(self) -> list[TensorInput]:
        return [*self.given, *self.upstream]

    def name_of(self, output: int, count: int) -> str:
        """A name for an output of a call; empty if there is only one."""
        leaves = [
            number for number, tensor in enumerate(self.given, 1) if is_inexact(tensor.meta.dtype)
        ] * self.call.backward
        first_buffer = count - len(self.call.buffers)
        first_parameter = first_buffer - len(self.call.gradients)
        first_input = first_parameter - len(leaves)
        if output >= first_buffer:
            return f"buffer {self.call.buffers[output - first_buffer]!r} after the call"
        if output >= first_parameter:
            return f"gradient of parameter {self.call.gradients[output - first_parameter]!r}"
        if output >= first_input:
            return f"gradient of input {leaves[output - first_input]}"
        return f"output {output + 1}" if first_input > 1 or count > first_input else ""

    def on_host(self) -> ShapeInputs:
        """The same with contents and weights in host memory, as a process without a device needs them."""
        state = [
            entry
            if isinstance(entry.values, np.ndarray)
            else replace(entry, values=entry.values.cpu().numpy().view(carrier(entry.meta.dtype)))
            for entry in self.state
        ]
        arguments = [
            argument.on_host()
            if isinstance(argument, TensorInput)
            else replace(argument, tensors=tuple(tensor.on_host() for tensor in argument.tensors))
            for argument in self.arguments
        ]
        upstream = tuple(tensor.on_host() for tensor in self.upstream)
        return replace(self, arguments=arguments, state=state, upstream=upstream)

    def renew_small(self, gpu: bool) -> None:
        """Makes the chain replace all of every input that is small beside the weights.

        If only few elements change, many calls can be computed ahead at once and corrected afterwards. That pays
        off if a call mostly reads weights. There the inputs are small enough to be replaced entirely within the
        clock.
        """
        weights = sum(entry.meta.elements for entry in self.state)
        for tensor in self.tensors:
            tensor.renewed = tensor.rollable and tensor.size <= min(
                weights // _WEIGHTS_A_VALUE, _MOST_RENEWED[gpu]
            )

    @property
    def needs(self) -> ShapeNeeds:
        """The GPU memory that one call takes."""
        weights_bytes = sum(entry.meta.span_bytes for entry in self.state)
        outputs_bytes = self.outputs_bytes or self.peak_bytes
        return ShapeNeeds(
            slot_bytes(self.tensors), outputs_bytes, self.peak_bytes, weights_bytes, self.gradients_bytes
        )

    @property
    def input_bytes(self) -> int:
        return sum(tensor.meta.span_bytes for tensor in self.tensors)


def numbered(inputs: ShapeInputs) -> list[Any]:
    """The encoded arguments of a call, with tensors numbered consecutively."""
    encoded: list[Any] = []
    used = 0
    for argument in inputs.arguments:
        if isinstance(argument, TensorInput):
            encoded.append({"tensor": used})
            used += 1
        else:
            encoded.append(_shifted(argument.value, used))
            used += len(argument.tensors)
    return encoded + [{"tensor": used + number} for number in range(len(inputs.upstream))]


def _shifted(value: Any, by: int) -> Any:
    """An encoded value with ``by`` added to the numbers of its tensors."""
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tensor":
        return {tag: content + by}
    if tag in ("list", "tuple"):
        return {tag: [_shifted(item, by) for item in content]}
    if tag == "dict":
        return {tag: {key: _shifted(item, by) for key, item in content.items()}}
    return value


def bound(inputs: ShapeInputs, offsets: list[int], pool_offsets: list[int]) -> dict[str, Any]:
    """What a role must know to make the arguments of the first slot, as JSON.

    Args:
        inputs: of the shape.
        offsets: of each tensor in the shared memory.
        pool_offsets: of the legal values with which each may be refreshed.
    """
    leaves = len(inputs.given) if inputs.call.backward else 0
    return {
        "tensors": [
            {"meta": asdict(tensor.meta), "offset": offset, "leaf": position < leaves}
            for position, (tensor, offset) in enumerate(zip(inputs.tensors, offsets, strict=True))
        ],
        "arguments": numbered(inputs),
        "refresh": [
            [
                position,
                offset,
                tensor.meta.dtype,
                tensor.pool.size,
                tensor.refresh_stride,
                int(tensor.keeps_zeros),
            ]
            for position, (tensor, offset) in enumerate(zip(inputs.tensors, pool_offsets, strict=True))
            if tensor.rollable
        ],
    }
