"""What stored verdicts say of runtimes: a column for the reference and one for each member, a row for each shape."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.performance.comparison import Compared, compare
from agent.performance.demand import Machine, grid

Row = Mapping[str, Any]
REFERENCE = "reference"
#: Fewer shapes, and what is held out is a handful.
FEWEST = 24
#: Kinds that fit a job's shapes in a second or two, the plainest first.
_KINDS = ("analytic", "tree", "boosted_residual")
#: Where a verdict does not say what the machine has, waves are of no use to a model, and it learns to do without them.
_CACHE_BYTES = 32 << 20


@dataclass(frozen=True)
class Runtimes:
    """Microseconds per call.

    Attributes:
        shapes: where something was timed; all have the same dimensions.
        times_us: by name (:data:`REFERENCE` first, then each candidate's SHA-256), one value per shape; not-a-number where
            a candidate was not timed.
    """

    shapes: tuple[Row, ...]
    times_us: dict[str, npt.NDArray[np.float64]]


def runtimes(verdicts: Sequence[Row]) -> Runtimes:
    """All timed shapes of some verdicts of one task and one device; of a shape timed twice the geometric mean counts."""
    shapes: dict[tuple[tuple[str, str], ...], Row] = {}
    logs: dict[str, dict[tuple[tuple[str, str], ...], list[float]]] = {REFERENCE: {}}
    names = _commonest_names(verdicts)
    for verdict in verdicts:
        name = str((verdict.get("candidate") or {}).get("sha256"))
        for row in verdict.get("shapes") or ():
            dims = row.get("dims")
            if not row.get("timed") or not isinstance(dims, Mapping) or frozenset(dims) != names:
                continue
            key = tuple(sorted((str(dim), repr(value)) for dim, value in dims.items()))
            shapes.setdefault(key, dims)
            for column, time in ((REFERENCE, row.get("baseline_us")), (name, row.get("candidate_us"))):
                if isinstance(time, (int, float)) and math.isfinite(time) and time > 0:
                    logs.setdefault(column, {}).setdefault(key, []).append(math.log(time))
    return Runtimes(
        tuple(shapes.values()),
        {
            column: np.array(
                [math.exp(np.mean(found[key])) if key in found else math.nan for key in shapes],
                dtype=np.float64,
            )
            for column, found in logs.items()
        },
    )


def _commonest_names(verdicts: Sequence[Row]) -> frozenset[str]:
    """The dimensions of most timed shapes; shapes that have others cannot be rows of the same table."""
    seen = Counter(
        frozenset(row["dims"])
        for verdict in verdicts
        for row in verdict.get("shapes") or ()
        if row.get("timed") and isinstance(row.get("dims"), Mapping) and row["dims"]
    )
    return seen.most_common(1)[0][0] if seen else frozenset()


def predictability(found: Runtimes, units: int) -> Compared | None:
    """How well times at unseen shapes follow from the others, member by member.

    Args:
        found: what was timed.
        units: multiprocessors of the GPU, or threads.

    Returns:
        None where there are too few shapes to hold some out, or scikit-learn is not installed (on a bare GPU node).
    """
    if len(found.shapes) < FEWEST or not all(map(find_spec, ("sklearn", "scipy"))):
        return None
    enough = {name: times for name, times in found.times_us.items() if np.isfinite(times).sum() >= FEWEST}
    if REFERENCE not in enough:
        return None
    try:
        return compare(found.shapes, enough, grid, Machine(max(units, 1), _CACHE_BYTES), kinds=_KINDS)
    except ValueError:
        return None
