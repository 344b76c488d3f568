"""Reads what a task's process says of its inputs and weights at one shape; all of it is checked or copied here."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from evaluator.content.pools import Array, TensorInput
from evaluator.content.weights import redraw
from evaluator.errors import ProtocolViolation
from evaluator.oracle.numbers import from_float64, is_inexact
from evaluator.referee.shape_inputs import CallPlan, PlainInput, ShapeInputs, StateEntry
from evaluator.roles import frames
from evaluator.roles.arena import carrier
from evaluator.roles.frames import TensorMeta
from evaluator.roles.process import RoleProcess
from evaluator.roles.values import is_encoded

#: Draws of the task's own get_inputs() per shape, over which contents are rolled.
DRAWS = 3


def _meta(fields: dict[str, Any]) -> TensorMeta:
    """Checks a tensor description by sending it through the binary form, which validates everything."""
    encoded = frames.encode_meta(
        TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))
    )
    return frames.decode_meta(encoded, 0)


def read_inputs(
    process: RoleProcess, answer: dict[str, Any], *, training: bool, backward: bool
) -> ShapeInputs:
    """What both sides get at a shape, from the answer to BUILD: copies of the draws, weights drawn anew.

    Args:
        process: the reference's; its memory holds the tensors.
        answer: untrusted JSON.
        training: whether the module is called in train mode.
        backward: whether a call is forward and backward.

    Raises:
        KeyError, TypeError, ValueError, FrameError: the answer is not what BUILD answers.
        ProtocolViolation: there is no tensor among the inputs, or memory that cannot be read.
    """
    arguments: list[TensorInput | PlainInput] = []
    for entry in answer["inputs"]:
        tensors = [_read_tensor(process, described) for described in entry["tensors"]]
        if entry["value"] == {"tensor": 0} and len(tensors) == 1:
            arguments.append(tensors[0])
            continue
        if not is_encoded(entry["value"], len(tensors)):
            raise ValueError("an argument has no valid form")
        arguments.append(PlainInput(entry["value"], tuple(tensors)))
    state, trained, buffers = [], [], []
    # Parameters that share memory (tied weights) are drawn once.
    drawn: dict[tuple[int, TensorMeta], Array] = {}
    kept: set[tuple[int, TensorMeta]] = set()
    for entry in answer["state"]:
        name, meta = str(entry["name"]), _meta(entry["meta"])
        at = int(entry["address"])
        if (at, meta) not in drawn:
            made = values = process.read_memory(at, meta.span_bytes).view(carrier(meta.dtype))
            if not answer.get("redrawn"):
                values = redraw(name, values, meta.dtype, parameter=bool(entry["parameter"]))
                if values is made:
                    kept.add((at, meta))
            drawn[at, meta] = np.ascontiguousarray(values)
        state.append(StateEntry(name, meta, drawn[at, meta], (at, meta) in kept))
        if entry["trained"] is True:
            trained.append(name)
        if entry["parameter"] is not True:
            buffers.append(name)
    if not all(is_encoded(value) for value in answer["init"]):
        raise ValueError("an init argument has no valid form")
    described = answer["upstream"] if backward else []
    call = CallPlan(
        training=training,
        backward=backward,
        differentiable=tuple(int(entry["output"]) for entry in described),
        gradients=tuple(trained) if backward else (),
        buffers=tuple(buffers) if training else (),
    )
    upstream = tuple(_upstream(_meta(entry["meta"])) for entry in described)
    inputs = ShapeInputs(answer["init"], arguments, state, upstream, call)
    if not inputs.given:
        raise ProtocolViolation("task_rejected", "get_inputs() returns no tensor: return at least one")
    return inputs


def _read_tensor(process: RoleProcess, described: dict[str, Any]) -> TensorInput:
    meta = _meta(described["meta"])
    addresses = [int(address) for address in described["addresses"]]
    if len(addresses) != DRAWS:
        raise ValueError("an input has the wrong number of draws")
    draws = [process.read_memory(at, meta.span_bytes).view(carrier(meta.dtype)) for at in addresses]
    return TensorInput(meta, draws)


def _upstream(meta: TensorMeta) -> TensorInput:
    """Upstream gradients of an output: independent normal numbers, drawn here."""
    if not is_inexact(meta.dtype):
        raise ValueError("an output that is not floating has no gradient")
    generator = np.random.default_rng(secrets.randbits(128))
    size = meta.span_bytes // meta.item_bytes
    draws = []
    for _ in range(DRAWS):
        values = generator.normal(size=size)
        if meta.dtype.startswith("complex"):
            values = values + 1j * generator.normal(size=size)
        draws.append(from_float64(values, meta.dtype))
    return TensorInput(meta, draws)
