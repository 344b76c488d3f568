"""What a profile says of one call: the bottleneck, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evaluator.counting import prefixed
from evaluator.profiling.counters import Counters

SCHEMA = "kernelwright.profile/1"
#: In names of ceilings: products of float32 as three of float16, which keep float32's bits.
THREE_FLOAT16 = "float32_as_three_float16"
_UNITS = (("_bytes_per_s", "B/s"), ("_flops_per_s", "FLOP/s"))
LABELS = ("compute", "memory", "launch", "synchronization")


@dataclass(frozen=True)
class Part:
    """A share of the time: of a kernel, a module or a Python line (0 for what no line stands behind)."""

    name: str
    seconds: float
    share: float
    calls: int
    bound: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What holds a call back.

    Attributes:
        label: one of :data:`LABELS`.
        share: of the time, 0 to 1, that the bottleneck explains.
        confirmed: the experiment that should agree did (None: there was none).
        steady_s: seconds per call.
        device_s: of them, what the device worked; on a CPU all.
        least_s: what the inputs, outputs and arithmetic take at the measured ceilings, everything fused.
        roofline: ``least_s`` over ``steady_s``.
        fusion_gain: bytes that all operations move over those that a fused one must, in time.
        sentences: for people and prompts, the bottleneck first.
        kernels, modules, lines: where the time goes, longest first.
        waits, breaks: line and what; see :class:`Measured`.
        counters: what ncu counted, on a GPU where ncu is; None elsewhere. The label does not rest on it.
        ceilings: the measured ones that ``least_s`` and the label rest on, by name, per second.
    """

    label: str
    share: float
    confirmed: bool | None
    steady_s: float
    device_s: float
    least_s: float
    roofline: float
    fusion_gain: float
    sentences: tuple[str, ...]
    kernels: tuple[Part, ...]
    modules: tuple[Part, ...]
    lines: tuple[Part, ...]
    waits: tuple[tuple[int, str, int], ...]
    transfers: tuple[tuple[int, str, int], ...]
    breaks: tuple[tuple[int, str], ...]
    graphs: int
    counters: Counters | None = None
    ceilings: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"schema": SCHEMA, **asdict(self)}


def ceilings_told(ceilings: Mapping[str, Any]) -> str:
    """The ceilings of a diagnosis in a line, from data that may be damaged: ``memory 4.01 TB/s, bfloat16 712 TFLOP/s``."""
    return ", ".join(
        f"{name.removesuffix(ending).replace('_', ' ')} {prefixed(rate, unit)}"
        for name, rate in ceilings.items()
        for ending, unit in _UNITS
        if name.endswith(ending) and isinstance(rate, int | float) and 0 < rate < 1e21
    )
