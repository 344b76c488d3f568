"""Reads a task process's description of its inputs and weights at one shape, and validates or copies all of it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from evaluator.content.pools import TensorInput
from evaluator.content.weights import redraw, redraw_on_device
from evaluator.devices.accelerator import GPU_TYPE, device_memory
from evaluator.errors import ProtocolViolation
from evaluator.input_structure import parse
from evaluator.oracle.numbers import from_float64, is_inexact
from evaluator.referee.memory.lending import Lender
from evaluator.referee.sides.shape_inputs import PlainInput, ShapeInputs, StateEntry
from evaluator.roles import frames, protocol
from evaluator.roles.arena import carrier
from evaluator.roles.frames import CallSpec, TensorMeta
from evaluator.roles.process import RoleProcess
from evaluator.roles.values import is_encoded

#: Draws of the task's own get_inputs() per shape, from which contents are mixed.
DRAWS = 3
_HAND_OVER_SECONDS = 60.0


def _meta(fields: dict[str, Any]) -> TensorMeta:
    """Checks a tensor description by sending it through the binary form, which validates everything."""
    encoded = frames.encode_meta(
        TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))
    )
    return frames.decode_meta(encoded, 0)


def read_inputs(
    process: RoleProcess,
    answer: dict[str, Any],
    keeper: Lender | None,
    *,
    training: bool,
    backward: bool,
) -> ShapeInputs:
    """What both sides get at a shape, from the answer to BUILD: copies of the draws, and redrawn weights.

    Args:
        process: the reference's; its memory holds the tensors.
        answer: untrusted JSON.
        keeper: on a GPU, lends the memory in which the process hands them over; None on a CPU.
        training: whether the module is called in train mode.
        backward: whether a call is forward and backward.

    Raises:
        KeyError, TypeError, ValueError, FrameError: the answer is not a valid answer to BUILD.
        ProtocolViolation: there is no tensor among the inputs, or memory that cannot be read.
    """
    like = process.modules[answer["like"]] if answer["like"] is not None else None
    described = [one for entry in answer["inputs"] for one in entry["tensors"]]
    metas = [_meta(one["meta"]) for one in described]
    spans = [
        (int(at), meta, _part(one["kept_bytes"], meta))
        for one, meta in zip(described, metas, strict=True)
        for at in one["addresses"]
    ]
    stored = [(int(entry["address"]), _meta(entry["meta"])) for entry in answer["state"]]
    if keeper is None:
        drawn = [process.read_memory(at, meta.span_bytes).view(carrier(meta.dtype)) for at, meta, _ in spans]
        made = [process.read_memory(at, meta.span_bytes).view(carrier(meta.dtype)) for at, meta in stored]
    else:
        lengths = [[kept for _, _, kept in spans], [meta.span_bytes for _, meta in stored]]
        drawn, made = _handed_over(process, keeper, lengths)
    taken = iter(drawn)
    inputs = iter(
        [
            TensorInput(
                meta,
                [next(taken) for _ in one["addresses"]],
                one["same"],
                parse(one["structure"], one["domain"], len(meta.shape)),
            )
            for one, meta in zip(described, metas, strict=True)
        ]
    )
    arguments: list[TensorInput | PlainInput] = []
    for entry in answer["inputs"]:
        tensors = [next(inputs) for _ in entry["tensors"]]
        if entry["value"] == {"tensor": 0} and len(tensors) == 1:
            arguments.append(tensors[0])
            continue
        if not is_encoded(entry["value"], len(tensors)):
            raise ValueError("an argument has no valid form")
        arguments.append(PlainInput(entry["value"], tuple(tensors)))
    state, trained, buffers = [], [], []
    # Parameters that share memory (tied weights) are drawn once.
    redrawn: dict[tuple[int, TensorMeta], StateEntry] = {}
    for entry, place, values in zip(answer["state"], stored, made, strict=True):
        name, meta = str(entry["name"]), place[1]
        if place not in redrawn:
            again = redraw if keeper is None else redraw_on_device
            new = values
            if not answer.get("redrawn"):
                new = again(name, values, meta.dtype, parameter=bool(entry["parameter"]))
            kept = new is values and not answer.get("redrawn")
            redrawn[place] = StateEntry(
                name, meta, np.ascontiguousarray(new) if keeper is None else new, kept
            )
        state.append(replace(redrawn[place], name=name, parameter=bool(entry["parameter"])))
        if entry["trained"] is True:
            trained.append(name)
        if entry["parameter"] is not True:
            buffers.append(name)
    if not all(is_encoded(value) for value in answer["init"]):
        raise ValueError("an init argument has no valid form")
    backwards = answer["upstream"] if backward else []
    call = CallSpec(
        training=training,
        backward=backward,
        differentiable=tuple(int(entry["output"]) for entry in backwards),
        gradients=tuple(trained) if backward else (),
        buffers=tuple(buffers) if training else (),
    )
    if like is not None:
        state, call = like.state, replace(call, gradients=like.call.gradients, buffers=like.call.buffers)
    upstream = tuple(_upstream(_meta(entry["meta"]), on_device=keeper is not None) for entry in backwards)
    leaves = [meta for meta in metas if is_inexact(meta.dtype)]
    leaves += [entry.meta for entry in state if entry.name in call.gradients]
    gradients_bytes = sum(meta.span_bytes for meta in leaves) if backward and keeper is not None else 0
    found = ShapeInputs(
        answer["init"],
        arguments,
        state,
        upstream,
        call,
        peak_bytes=_size(answer["peak_bytes"]) * (2 if backward else 1),
        outputs_bytes=_size(answer["outputs_bytes"]) + gradients_bytes,
        gradients_bytes=gradients_bytes,
    )
    if not found.given:
        raise ProtocolViolation("task_rejected", "get_inputs() returns no tensor: return at least one")
    return found


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError("a size in bytes is invalid")
    return value


def _part(value: Any, meta: TensorMeta) -> int:
    """Bytes of a draw that are handed over."""
    if type(value) is not int or not 0 <= value <= meta.span_bytes or value % meta.item_bytes:
        raise ValueError("a part of an input is invalid")
    return value


def _handed_over(process: RoleProcess, keeper: Lender, parts: list[list[int]]) -> list[list[Any]]:
    """Flat bytes on the device of tensors that the process copies to the referee's memory, by their lengths in
    bytes, part by part.
    """
    totals = [sum(map(_aligned, part)) for part in parts]
    regions = []
    try:
        for total in totals:
            regions.append(keeper.region(total))
        sizes = [region.length_bytes if total else 0 for region, total in zip(regions, totals, strict=True)]
        descriptors = tuple(region.descriptor for region in regions)
        process.request(protocol.HAND_OVER, {"bytes": sizes}, _HAND_OVER_SECONDS, descriptors)
        found: list[list[Any]] = []
        for region, part in zip(regions, parts, strict=True):
            at, tensors = 0, []
            for length in part:
                # Private: the process may still see the region.
                tensors.append(region.bytes[at : at + length].clone())
                at += _aligned(length)
            found.append(tensors)
        keeper.wait()
        return found
    finally:
        for region in regions:
            region.close()


def _aligned(length_bytes: int) -> int:
    return -(-length_bytes // device_memory.ALIGNMENT) * device_memory.ALIGNMENT


def _upstream(meta: TensorMeta, *, on_device: bool) -> TensorInput:
    """Upstream gradients of an output: independent normal numbers, drawn here."""
    if not is_inexact(meta.dtype):
        raise ValueError("an output that is not floating-point has no gradient")
    if on_device:
        import torch

        kind, size = getattr(torch, meta.dtype), meta.span_bytes // meta.item_bytes
        wide = torch.complex64 if kind.is_complex else torch.float32
        made = [torch.randn(size, dtype=wide, device=GPU_TYPE) for _ in range(DRAWS)]
        return TensorInput(meta, [values.to(kind).view(torch.uint8) for values in made])
    generator = np.random.default_rng(secrets.randbits(128))
    size = meta.span_bytes // meta.item_bytes
    draws = []
    for _ in range(DRAWS):
        values = generator.normal(size=size)
        if meta.dtype.startswith("complex"):
            values = values + 1j * generator.normal(size=size)
        draws.append(from_float64(values, meta.dtype))
    return TensorInput(meta, draws)
