"""Which kernels really ran, as reported by a disposable process of the candidate: own, compiler, library, or none.

The process belongs to the candidate, so all of it only describes: it is validated, shortened, and never changes a
score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from evaluator.integrity.static import Analysis, clean
from evaluator.roles.protocol import OWN
from evaluator.verdict import KernelShare

KINDS = ("own", "compiler", "library", "none")
_MAX_ROWS = 256
_SHOWN_ROWS = 12
_NAME_LENGTH = 120
_MAX_TIME_US = 1e9
_MAX_CALLS = 1_000_000
#: Least share of the time for an operation to count as part of the win.
_COUNTS_SHARE = 0.05

#: Operations that move no data: they allocate, query, or make views.
_IDLE = frozenset(
    f"aten::{name}"
    for name in """alias as_strided chunk contiguous detach empty empty_like empty_strided expand flatten is_nonzero item
    lift_fresh movedim narrow new_empty numpy_T permute reshape resolve_conj resolve_neg select slice split squeeze t to
    transpose unbind unflatten unsqueeze view view_as _unsafe_view _reshape_alias _local_scalar_dense""".split()
)
_COMPILED_GPU = re.compile(r"^triton_(?:poi|red|per|tem|for|spl|mm|unk)_")
_COMPILED_CPU = re.compile(r"^## Call CompiledFxGraph|^(?:cpp_fused|graph_\d+_cpp_fused)")
_LIBRARY_GPU = re.compile(
    r"\bat::|\bat_cuda_detail\b|cublas|cudnn|cutlass|\bsm\d\d_|ampere_|hopper_|nvjet|xmma|gemm|gemv|flash|pytorch_|\bcub::|thrust"
)
_MOVES = re.compile(r"^Mem(?:cpy|set)\b")


@dataclass(frozen=True)
class Observation:
    """The operations of one call at one shape.

    Attributes:
        kernels: by time, longest first; shares of everything observed.
        operations: every library operation with its calls, without times.
        own_calls: how often the candidate's own kernels were called as their language calls them, so that they can be replaced.
        runs_own: its own kernels ran, also where it launches what was compiled past the calls of its language.
        compiled: code of torch's compiler ran.
        graphs: CUDA graphs that were launched.
        narrow: something was computed in a narrower type than the inputs have.
    """

    kernels: tuple[KernelShare, ...]
    operations: frozenset[tuple[str, int]]
    own_calls: int
    runs_own: bool
    compiled: bool
    graphs: int
    narrow: bool

    def share(self, kind: str) -> float:
        """Share of the time spent in one kind."""
        return sum(kernel.share for kernel in self.kernels if kernel.kind == kind)


def read(answer: Any, analysis: Analysis, *, gpu: bool) -> Observation:
    """Checks what the process sent and classifies it.

    Raises:
        ValueError: it has another form.
    """
    try:
        own = {
            clean(name, _NAME_LENGTH): _count(calls)
            for name, calls in list(answer["own"].items())[:_MAX_ROWS]
        }
        rows = []
        for name, on_device, time_us, calls in answer["rows"][:_MAX_ROWS]:
            if bool(on_device) is gpu:
                rows.append((clean(name, 400), _number(time_us), _count(calls)))
        graphs = _count(answer["graphs"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not the form of an observation: {type(error).__name__}") from None
    names = {*analysis.kernels, *own}
    kernels: dict[tuple[str, str], list[float]] = {}
    for name, time_us, calls in rows:
        kind = _kind_gpu(name, names, bool(own)) if gpu else _kind_cpu(name)
        if kind is not None:
            entry = kernels.setdefault((kind, _short(name)), [0.0, 0])
            entry[0] += time_us
            entry[1] += calls
    total_us = sum(entry[0] for entry in kernels.values())
    listed = [
        KernelShare(name, kind, round(time_us / total_us, 4) if total_us else 0.0, int(calls))
        for (kind, name), (time_us, calls) in kernels.items()
    ]
    listed.sort(key=lambda kernel: -kernel.share)
    return Observation(
        tuple(listed[:_SHOWN_ROWS]),
        frozenset((kernel.name, kernel.calls) for kernel in listed if kernel.kind == "library"),
        min(sum(own.values()), _MAX_CALLS),
        any(own.values()) or any(kernel.kind == "own" for kernel in listed),
        answer.get("compiled") is True,
        graphs,
        answer.get("narrow") is True,
    )


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError("not a finite number")
    return min(max(number, 0.0), _MAX_TIME_US)


def _count(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not a count")
    return min(max(value, 0), _MAX_CALLS)


def _kind_cpu(name: str) -> str | None:
    if name.startswith(OWN):
        return "own"
    if _COMPILED_CPU.match(name):
        return "compiler"
    if "::" not in name or name.startswith("c10d::"):
        return None  # bookkeeping of the profiler and the compiler
    return "none" if name in _IDLE else "library"


def _kind_gpu(name: str, names: Iterable[str], builds: bool) -> str | None:
    if name.startswith(OWN):
        return None  # the range around a call of its own, not a kernel
    if _MOVES.match(name):
        return "none"
    plain = _short(name)
    if plain in names:
        return "own"
    if _COMPILED_GPU.match(name):
        return "compiler"
    if _LIBRARY_GPU.search(name):
        return "library"
    return "own" if builds else "library"


def _short(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    if name.startswith(OWN):
        return name.removeprefix(OWN)[:_NAME_LENGTH]
    if name.startswith("## Call CompiledFxGraph"):
        return "compiled graph"
    plain = re.sub(r"^(?:void|static|int|float)\s+", "", name)
    if not plain.startswith("aten::"):
        plain = re.split(r"[<(]", plain, maxsplit=1)[0] or plain
    return plain.strip()[:_NAME_LENGTH]


def labels(seen: list[Observation], decoy: bool, reference: Observation | None) -> tuple[str, ...]:
    """What kind of win it is.

    Args:
        seen: one observation per shape.
        decoy: its own kernels turned out not to matter.
        reference: what the reference runs at the first of these shapes, if it was observed.
    """
    found = []
    if any(one.runs_own for one in seen) and not decoy:
        found.append("own_kernel")
    if any(one.share("library") >= _COUNTS_SHARE for one in seen):
        found.append("library_call")
    if reference is not None and seen and seen[0].operations != reference.operations:
        found.append("graph_rewrite")
    if any(one.narrow for one in seen):
        found.append("precision_change")
    if any(one.graphs for one in seen):
        found.append("launch_overhead_removal")
    if any(one.compiled or one.share("compiler") for one in seen):
        found.append("compiler")
    return tuple(found)
