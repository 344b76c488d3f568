"""Describes an open task: its space, the shapes that will be judged, inputs, outputs and weights."""

from __future__ import annotations

from typing import Any

from evaluator.content.pools import TensorInput
from evaluator.description import Description
from evaluator.referee.session.task_session import TaskSession
from evaluator.shapes.sampler import SPLITS
from evaluator.shapes.space import as_fields, defaults
from evaluator.shapes.traffic import parse_traffic

#: Extra validation shapes, for portfolios: with those of the split, at least as many as a dispatcher needs.
_FURTHER = 28


def describe(session: TaskSession, traffic: list[Any] | None = None) -> Description:
    """The shape space and the shapes of every split except the held-out one, with descriptors at its own size.

    Args:
        session: of the task.
        traffic: weighted shapes that replace the task's own.

    Raises:
        RoleFailure: the task does not run at its default shape, or the traffic is outside its space.
    """
    known = parse_traffic(traffic, session.space) if traffic else session.traffic
    drawn = {
        split: [] if split == "held_out" else session.drawn.draw(split, traffic=known) for split in SPLITS
    }
    shapes = {split: [one.dims for one in part] for split, part in drawn.items()}
    shape = session.open(defaults(session.space))
    return Description(
        dims=as_fields(session.space),
        direction=session.direction,
        training=session.training,
        precision=session.precision,
        inputs=tuple(
            _tensor(one)
            if isinstance(one, TensorInput)
            else {"value": one.value, "tensors": [_tensor(tensor) for tensor in one.tensors]}
            for one in shape.inputs.arguments
        ),
        outputs=tuple({"dtype": meta.dtype, "shape": list(meta.shape)} for meta in shape.output_metas),
        parameters=sum(entry.meta.elements for entry in shape.inputs.state),
        shapes=shapes,
        strata={split: [one.stratum for one in part] for split, part in drawn.items()},
        further=tuple(one.dims for one in session.drawn.sampler().further(_FURTHER)),
        processors=session.fleet.processors,
        device_name=str(session.fleet.device.facts().get("device_name") or ""),
        traffic=tuple({"dims": dims, "weight": weight} for dims, weight in known.rows),
    )


def _tensor(tensor: TensorInput) -> dict[str, Any]:
    """An input's form and, if it has one, the structure that every content keeps."""
    fields: dict[str, Any] = {"dtype": tensor.meta.dtype, "shape": list(tensor.meta.shape)}
    return {**fields, "keeps": tensor.structure.words} if tensor.structure.words else fields
