"""Precision tiers: how far the operands of a task's products may be rounded, on both sides.

A tier bounds the error and prescribes no method: a kernel that combines several lower-precision products passes in
every tier that its error fits. :mod:`evaluator.oracle.tolerance` has the resulting tolerance.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from evaluator.sources import TaskSource

#: PyTorch's default settings; they apply to a file that declares no tier.
DEFAULT = "default"


class Tier(NamedTuple):
    """One tier.

    Attributes:
        words: what it allows.
        matrix_tf32: whether float32 matrix products may use TF32 (``torch.backends.cuda.matmul.allow_tf32``).
        cudnn_tf32: the same for cuDNN: convolutions and recurrent layers (``torch.backends.cudnn.allow_tf32``).
        mantissa_bits: explicit bits that a rounded operand keeps, None if it may not be rounded.
    """

    words: str
    matrix_tf32: bool
    cudnn_tf32: bool
    mantissa_bits: int | None


TIERS = {
    DEFAULT: Tier("products of matrices in float32, convolutions and recurrent layers in TF32 on a GPU", False, True, 10),
    "strict": Tier("all products in float32", False, False, None),
    "tf32": Tier("all products in TF32 on a GPU", True, True, 10),
    "bf16": Tier("operands of products in bfloat16", True, True, 7),
    "fp16": Tier("operands of products in float16", True, True, 10),
    "fp8": Tier("operands of products in float8", True, True, 3),
}  # fmt: skip
_DECLARATION = re.compile(r"^PRECISION\s*(?::[^=\n]*)?=\s*[\"'](\w*)[\"']", re.MULTILINE)


def declared(source: str) -> str:
    """The tier that a task's file declares. The file is not parsed: a computed tier counts as :data:`DEFAULT`."""
    found: list[str] = _DECLARATION.findall(source)
    return found[-1] if found else DEFAULT


def with_precision(task: TaskSource, tier: str | None) -> TaskSource:
    """The task with the tier of a request, which overrides the file's. The same task if nothing changes.

    The tier is written into the file, so that everything stored for a task (verdicts, baselines) is stored per
    tier, and a bundle's reference states its tier.

    Raises:
        ValueError: there is no such tier.
    """
    if tier is None or tier == declared(task.source):
        return task
    if tier not in TIERS:
        raise ValueError(f"{tier!r} is not a precision; use one of {', '.join(TIERS)}")
    return TaskSource(task.name, f'{task.source.rstrip()}\n\n\nPRECISION = "{tier}"\n')


def rounds_operands(tier: str, *, gpu: bool) -> bool:
    """Whether a tier allows more than strict arithmetic. A CPU has no TF32, so its default is strict."""
    return TIERS[tier].mantissa_bits is not None and (gpu or tier != DEFAULT)
