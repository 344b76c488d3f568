"""Made-up verdicts and the domain that belongs to them. No figure of these is ever published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.candidates import Candidate
from agent.dispatch.domain import Domain, Expression, TensorInput, dims_key
from agent.portfolio import Entry
from evaluator.verdict import from_json

SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)


def entry(
    name: str,
    geomean: float,
    width: float = 0.02,
    *,
    origin: str = "human",
    order: int = 0,
    lines: int = 10,
    speedups: Sequence[float | None] | None = None,
    shapes: Sequence[dict[str, Any]] | None = None,
    eager: float = 0.5,
    error: float = 0.005,
) -> Entry:
    """A candidate that was timed at some shapes (or not, where its speedup is None).

    Args:
        geomean: of its summary.
        width: of the summary's interval, to each side.
        eager: speed of the plain reference against the best baseline, everywhere.
        error: half-width of each shape's interval, as a share.
    """
    dims = list(shapes or ({"n": size} for size in SIZES))
    rows: list[dict[str, Any]] = [
        {
            "dims": one,
            "split": "validation",
            "timed": True,
            "speedup": speedup,
            "ci95": [speedup * (1 - error), speedup * (1 + error)],
            "baseline_us": 10.0,
            "baselines": {"eager/2t": {"median_us": 10.0 / eager}},
        }
        for one, speedup in zip(dims, speedups or [geomean] * len(dims), strict=True)
        if speedup is not None
    ]
    summary = {"geomean_speedup": geomean, "geomean_ci95": [geomean - width, geomean + width]}
    verdict = {"verdict": "accepted", "summary": summary, "shapes": rows, "environment": {"threads": 2}}
    return Entry(Candidate(f"# {name}" + "\n" * lines, origin, name), order, from_json(verdict))


def domain(dims: Sequence[str] = ("n",), shapes: Sequence[dict[str, Any]] | None = None) -> Domain:
    """One tensor whose axes are the dimensions."""
    points = list(shapes or ({"n": size} for size in SIZES))
    return Domain(
        dims={name: {"min": 1, "max": 1 << 24, "multiple_of": 1, "default": 64} for name in dims},
        inputs=1,
        tensors=(TensorInput("x", tuple(Expression(1, (name,), 0) for name in dims)),),
        values=(),
        containers=(),
        constructor=(),
        dtypes=(("float32",), ("float16",)),
        shapes=None,
        elements={},
        dtypes_at={dims_key(point): (str(point.get("dtype", "float32")),) for point in points},
    )
