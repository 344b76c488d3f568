"""How much of what trees miss do the timed shapes hold? A forest is asked directly, and trees are grown from its predictions.

    python -m benchmarks.dispatch_forest docs/measurements/2026-11-23-dispatch-matrix-tasks-cuda-2.json     # some 10 minutes, no GPU

A forest of extremely randomized trees, fitted to the log times of all members at the shapes to build from, is no dispatcher:
nobody reads it, and a call of it costs more than most kernels. It says what can be known from so many shapes. Beside it are
trees whose questions may gain less than those of a job, and trees that are grown from the forest's predictions at many more sizes.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as Printed

from agent.dispatch.features import features_of, points_of
from agent.dispatch.tree import Node, leaves, member_at
from agent.performance.features import tier
from agent.portfolio import build_portfolio, growing
from agent.portfolio.cover import cover
from agent.portfolio.table import Array, Table, tabulate
from benchmarks.dispatch import Study

_TREES = 300
#: Standard error that predictions are given: far below what a question must gain.
_ERROR = 0.003
_TIERS = (1, 2, 4, 8, 16, 64, 128)
Shapes = Sequence[Mapping[str, Any]]


def numbers(shapes: Shapes) -> Array:
    """What the forest sees of each shape: sizes, their product, alignment, and how full the next power of two is."""
    rows = []
    for shape in shapes:
        sizes = [value for value in shape.values() if isinstance(value, int)]
        whole = [1 << (size - 1).bit_length() for size in sizes]
        rows.append(
            [
                *(math.log2(size) for size in sizes),
                math.log2(math.prod(sizes)),
                *(tier(size) for size in sizes),
                *(size / full for size, full in zip(sizes, whole, strict=True)),
                *(full.bit_length() for full in whole),
            ]
        )
    return np.array(rows, dtype=np.float64)


def further(shapes: Shapes, count: int, seed: int) -> list[dict[str, Any]]:
    """So many sizes between the least and the largest of these, on alignment tiers, none with more elements than the largest."""
    generator = random.Random(seed)
    names = [name for name, value in shapes[0].items() if isinstance(value, int)]
    ends = {name: (min(s[name] for s in shapes), max(s[name] for s in shapes)) for name in names}
    most = max(math.prod(shape[name] for name in names) for shape in shapes)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        shape = dict(generator.choice(shapes))
        for name, (low, high) in ends.items():
            step = generator.choice(_TIERS)
            size = math.exp(generator.uniform(math.log(low), math.log(high)))
            shape[name] = min(max(round(size / step) * step, low), high)
        if math.prod(shape[name] for name in names) <= most:
            found.append(shape)
    return found


@contextmanager
def least_gain(share: float) -> Iterator[None]:
    """Questions of trees that are grown meanwhile must gain so much."""
    before = growing._LEAST_GAIN, growing._LEAST_GAIN_OF_TWO, growing._FEW_SHAPES
    growing._LEAST_GAIN, growing._LEAST_GAIN_OF_TWO = math.log1p(share), math.log1p(2 * share)
    growing._FEW_SHAPES = 1 << 30  # whatever the number of shapes
    try:
        yield
    finally:
        growing._LEAST_GAIN, growing._LEAST_GAIN_OF_TWO, growing._FEW_SHAPES = before


def by_tree(study: Study, places: Sequence[int], asked: Sequence[int]) -> tuple[list[int], list[int], int]:
    """What a job's tree picks at the asked places, the portfolio's members, and how many leaves the tree has."""
    portfolio = build_portfolio(study.entries(places), study.domain, study.dims, study.processors)
    if portfolio is None:
        return [study.reference] * len(asked), [study.reference], 1
    members = [study.reference, *(entry.order for entry in portfolio.members)]
    picks = [
        members[0 if index is None else 1 + index]
        for index in (member_at(portfolio.tree, point) for point in _points(study, asked))
    ]
    return picks, members, _leaves(portfolio.tree)


def by_forest(study: Study, places: Sequence[int], asked: Sequence[int], members: Sequence[int]) -> list[int]:
    """The member of the least predicted time."""
    logs = np.median(study.all, axis=2)
    fitted = _forest(numbers([study.shapes[place] for place in places]), logs[list(places)])
    predicted = fitted.predict(numbers([study.shapes[place] for place in asked]))
    return [members[int(np.argmin(row[list(members)]))] for row in predicted]


def grown_from_forest(
    study: Study, places: Sequence[int], asked: Sequence[int], count: int, most_depth: int
) -> tuple[list[int], int]:
    """What a tree picks that was grown from the forest's predictions at so many further sizes, and its leaves."""
    entries = study.entries(places)
    table = tabulate(entries)
    members = list(cover(table).members) or [int(np.argmax(table.weights @ table.filled))]
    fitted = _forest(numbers(table.shapes), np.column_stack([table.reference, table.filled]))
    sizes = further(table.shapes, count, seed=0)
    predicted = fitted.predict(numbers(sizes))
    dense = Table(
        shapes=tuple(sizes),
        weights=np.full(count, 1 / count),
        entries=table.entries,
        gains=predicted[:, 1:],
        errors=np.full((count, len(entries)), _ERROR),
        reference=np.minimum(predicted[:, 0], 0.0),
        baseline_us=np.full(count, np.nan),
    )
    features = features_of(study.domain, study.dims, points_of(table.shapes, study.domain), study.processors)
    tree = growing.Grower(dense, members, points_of(sizes, study.domain), features, most_depth).grow()
    picks = [member_at(tree, point) for point in _points(study, asked)]
    return [study.reference if pick is None else entries[pick].order for pick in picks], _leaves(tree)


def figures(
    study: Study, picks: Sequence[int], members: Sequence[int], asked: Sequence[int]
) -> dict[str, float]:
    """Of the portfolio's oracle, its 5th percentile, of everything's oracle, and the share that is confidently slower."""

    def against(columns: Sequence[int]) -> list[float]:
        return [
            study._oracle(place, columns) - float(np.median(study.timed_by[place, pick]))
            for place, pick in zip(asked, picks, strict=True)
        ]

    portfolio = against(sorted({*members, *picks}))
    return {
        "portfolio": statistics.fmean(portfolio),
        "p5": math.exp(float(np.quantile(portfolio, 0.05))),
        "all": statistics.fmean(against(range(len(study.names)))),
        "slower": statistics.fmean(
            study._slower(place, pick) for place, pick in zip(asked, picks, strict=True)
        ),
    }


def _forest(known: Array, values: Array) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(_TREES, random_state=0).fit(known, values)


def _points(study: Study, places: Sequence[int]) -> list[Any]:
    return points_of([study.shapes[place] for place in places], study.domain)


def _leaves(tree: Node) -> int:
    return sum(1 for _ in leaves(tree))


def compared(
    study: Study, places: Sequence[int], asked: Sequence[int], further_sizes: int
) -> dict[str, dict[str, float]]:
    """Each way's figures at the asked places, built from the others."""
    found: dict[str, dict[str, float]] = {}
    picks, members, count = by_tree(study, places, asked)
    found["a job's tree"] = {**figures(study, picks, members, asked), "leaves": count}
    for share in (0.01, 0.005, 0.0025):
        with least_gain(share):
            picks, own, count = by_tree(study, places, asked)
        found[f"questions that gain {share:.2%}"] = {**figures(study, picks, own, asked), "leaves": count}
    if further_sizes:
        picks = by_forest(study, places, asked, members)
        found["a forest, asked directly"] = {**figures(study, picks, members, asked), "leaves": math.nan}
        with least_gain(0.0005):
            picks, count = grown_from_forest(study, places, asked, further_sizes, most_depth=8)
        found["a tree of its predictions"] = {**figures(study, picks, members, asked), "leaves": count}
    return found


def main(
    matrix: Annotated[Path, typer.Argument(help="Of `benchmarks.dispatch`.")],
    only: Annotated[str, typer.Option(help="These operations (commas).")] = "",
    sizes: Annotated[int, typer.Option(help="Further sizes at which the forest is asked.")] = 1500,
) -> None:
    """Print what each way reaches at the held-out shapes, and in folds of the shapes to build from."""
    kept = json.loads(matrix.read_text(encoding="utf-8"))
    processors = int(kept["environment"].get("processors") or 0)
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name, operation in kept["operations"].items():
        if only and name not in only.split(","):
            continue
        study = Study(operation, processors)
        building = list(range(study.building))
        held_out = range(study.building, len(study.shapes))
        shuffled = random.Random(5).sample(building, len(building))
        parts = [shuffled[start::4] for start in range(4)]
        looks = [("held out", building, list(held_out))]
        for place, part in enumerate(parts):
            beside = parts[(place + 1) % 4]
            for where, known in (
                ("folds", sorted(set(building) - set(part))),
                ("folds, half", sorted([*part, *beside])),
                ("folds, a quarter", sorted(part)),
            ):
                asked = part if where == "folds" else sorted(set(building) - set(known))
                looks.append((where, known, asked))
        for where, known, asked in looks:
            found = compared(study, known, asked, sizes if where == "held out" else 0)
            for way, one in found.items():
                rows.setdefault((where, way), []).append(one)
    table = Printed(
        "asked at", "built by", "of portfolio oracle", "p5", "of all oracle", ">2% slower", "leaves"
    )
    for (where, way), some in rows.items():
        mean = {name: statistics.fmean(one[name] for one in some) for name in some[0]}
        table.add_row(
            where,
            way,
            f"{math.exp(mean['portfolio']):.1%}",
            f"{mean['p5']:.1%}",
            f"{math.exp(mean['all']):.1%}",
            f"{mean['slower']:.1%}",
            "" if math.isnan(mean["leaves"]) else f"{mean['leaves']:.1f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    typer.run(main)
