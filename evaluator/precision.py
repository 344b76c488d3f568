"""Precision tiers: what the operands of a task's products may be rounded to, on both sides.

A tier bounds the error and names no method: a kernel that puts a product together from several of lower precision is right in
every tier that its error fits. How far each tier lets a result go is in :mod:`evaluator.oracle.tolerance`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from evaluator.sources import TaskSource

#: What PyTorch does unless it is told otherwise; a file that says nothing means this.
DEFAULT = "default"


class Tier(NamedTuple):
    """One tier.

    Attributes:
        words: what it allows.
        matrix_tf32: whether float32 products of matrices may be computed in TF32 (``torch.backends.cuda.matmul.allow_tf32``).
        cudnn_tf32: the same of what cuDNN computes: convolutions and recurrent layers (``torch.backends.cudnn.allow_tf32``).
        mantissa_bits: explicit bits that an operand keeps where it may be rounded, None where it may not.
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
    """The tier that a task's file names. The file is not parsed: a tier that it computes is taken for :data:`DEFAULT`."""
    found: list[str] = _DECLARATION.findall(source)
    return found[-1] if found else DEFAULT


def with_precision(task: TaskSource, tier: str | None) -> TaskSource:
    """The task in the tier that a request names, which overrides the file's; the same task where that changes nothing.

    The tier is written into the file, so that whatever is kept for a task (verdicts, baselines) is kept for its tier, and a
    bundle's reference says in which tier it was judged.

    Raises:
        ValueError: there is no such tier.
    """
    if tier is None or tier == declared(task.source):
        return task
    if tier not in TIERS:
        raise ValueError(f"{tier!r} is no precision; use one of {', '.join(TIERS)}")
    return TaskSource(task.name, f'{task.source.rstrip()}\n\n\nPRECISION = "{tier}"\n')


def rounds_operands(tier: str, *, gpu: bool) -> bool:
    """Whether a tier allows more than strict arithmetic does. A CPU has no TF32, so that the default there is strict."""
    return TIERS[tier].mantissa_bits is not None and (gpu or tier != DEFAULT)
