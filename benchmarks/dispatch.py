"""How near the static dispatcher comes to its portfolio's oracle and to that of everything timed, and what it costs a call.

First a matrix is measured: every variant of an operation at many shapes, all taking turns within one process, round by round in
random order. Then portfolios and trees are built by the job's own code from 32 and from 128 of the shapes, and looked at on the
others, which nothing was chosen by. An oracle picks by half of the rounds and is timed by the other half, like everybody
else: the fastest of several noisy medians would look faster than it is. The matrix is kept, so that a later tree can be
studied without timing anything again.

    python -m benchmarks.dispatch --write                       # three operations, about 12 minutes on two cores
    python -m benchmarks.dispatch --tasks --device cuda --json matrix.json --seconds-total 500    # tasks of the catalogue; goes on
    python -m benchmarks.dispatch --matrix matrix.json          # studies a kept matrix
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from agent.bundle.domain import Domain, Expression, TensorInput
from agent.candidates import Candidate
from agent.dispatch.features import points_of
from agent.dispatch.tree import depth, leaves, member_at
from agent.portfolio import Entry, build_portfolio
from agent.portfolio.cover import cover
from agent.portfolio.table import tabulate
from benchmarks import dispatch_cost
from benchmarks.dispatch_matrix import Timed, TimeIsUp, measure, prepare
from benchmarks.dispatch_variants import CPU
from benchmarks.dispatch_verified import looked_at
from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused

_Z975 = 1.96


class Study:
    """One operation's matrix, seen as what a job would know of it and as the truth about its choices.

    Args:
        matrix: from `measure`.
        processors: multiprocessors of the GPU, 0 for a CPU.
    """

    def __init__(self, matrix: Mapping[str, Any], processors: int) -> None:
        self.processors = processors
        self.shapes: list[dict[str, int]] = list(matrix["shapes"])
        self.names = [one["name"] for one in matrix["variants"]]
        self.baselines = [place for place, one in enumerate(matrix["variants"]) if one["baseline"]]
        self.reference = next(place for place, one in enumerate(matrix["variants"]) if one["reference"])
        self.building = int(matrix["building"])
        logs = np.log(np.array(matrix["us"]))  # shapes x variants x rounds
        self.all = logs
        self.more: list[list[list[float]]] = matrix.get("more_us", [])
        self.chosen_by, self.timed_by = logs[:, :, 0::2], logs[:, :, 1::2]
        axes = [tuple(one) for one in matrix["inputs"]]
        self.dims = sorted({axis for one in axes for axis in one} or self.shapes[0])
        self.domain = Domain(
            dims={},
            inputs=len(axes),
            tensors=tuple(
                TensorInput(f"x{index}", tuple(Expression(1, (axis,), 0) for axis in one))
                for index, one in enumerate(axes)
            ),
            values=(),
            containers=(),
            constructor=(),
            dtypes=(),
            shapes=None,
            elements={},
        )

    def entries(self, places: Sequence[int]) -> list[Entry]:
        """What validation would say of every variant but the reference at these shapes."""
        found = []
        for column, name in enumerate(self.names):
            if column == self.reference:
                continue
            rows = [self._row(place, column) for place in places]
            logs = [math.log(row["speedup"]) for row in rows]
            summary = {"geomean_speedup": math.exp(statistics.fmean(logs)), "geomean_ci95": None}
            verdict = {"summary": summary, "shapes": rows, "environment": {}}
            origin = "compiler" if column in self.baselines else "human"
            found.append(Entry(Candidate(f"# {name}\n", origin, name), column, verdict))
        return found

    def _row(self, place: int, column: int) -> dict[str, Any]:
        medians = np.median(self.all[place], axis=1)
        best = min(self.baselines, key=lambda one: medians[one])
        middle, error = _ratio(self.all[place], best, column)
        return {
            "dims": self.shapes[place],
            "timed": True,
            "speedup": math.exp(middle),
            "ci95": [math.exp(middle - _Z975 * error), math.exp(middle + _Z975 * error)],
            "best_baseline": self.names[best],
            "baseline_us": math.exp(medians[best]),
            # All variants take turns within one process, so what processes differ by is no error here.
            "pairs": 1,
            "baselines": {
                "eager" if one == self.reference else self.names[one]: {"median_us": math.exp(medians[one])}
                for one in self.baselines
            },
        }

    def judged(self, places: Sequence[int]) -> dict[str, Any]:
        """Build from these shapes and look at the held-out ones."""
        entries = self.entries(places)
        portfolio = build_portfolio(entries, self.domain, self.dims, self.processors)
        held_out = range(self.building, len(self.shapes))
        members = [self.reference]
        if portfolio is not None:
            members += [entry.order for entry in portfolio.members]
        covering = [entries[column].order for column in cover(tabulate(entries)).members]
        picks = []
        for point in points_of([self.shapes[place] for place in held_out], self.domain):
            index = None if portfolio is None else member_at(portfolio.tree, point)
            picks.append(members[0] if index is None else members[1 + index])
        everything = list(range(len(self.names)))
        winner = members[1] if len(members) > 1 else members[0]
        to_member = self._against(picks, members)
        slower = [self._slower(place, pick) for place, pick in zip(held_out, picks, strict=True)]
        return {
            "timed_shapes": len(places),
            "members": [self.names[member] for member in members],
            "questions": 0 if portfolio is None else depth(portfolio.tree),
            "leaves": 1 if portfolio is None else sum(1 for _ in leaves(portfolio.tree)),
            "of_portfolio_oracle": _geomean(to_member),
            "of_portfolio_oracle_p5": math.exp(float(np.quantile(to_member, 0.05))),
            "of_all_oracle": _geomean(self._against(picks, everything)),
            "cover_of_all_oracle": _geomean(self._between([self.reference, *covering], everything)),
            "winner_alone_of_all_oracle": _geomean(self._against([winner] * len(picks), everything)),
            "speedup_over_best_baseline": _geomean(self._against(picks, self.baselines)),
            "slower_than_2_percent": statistics.fmean(slower),
            "held_out_shapes": len(picks),
            "verified": looked_at(self, picks, members, self.more) if self.more else None,
            "tree": None if portfolio is None else portfolio.told()["rules"],
        }

    def _oracle(self, place: int, columns: Sequence[int]) -> float:
        """Log time at a shape of the column that half of the rounds call the fastest, by the other half."""
        chosen = min(columns, key=lambda one: float(np.median(self.chosen_by[place, one])))
        return float(np.median(self.timed_by[place, chosen]))

    def _against(self, picks: Sequence[int], columns: Sequence[int]) -> list[float]:
        """Log of the oracle's time over the pick's, at each held-out shape."""
        return [
            self._oracle(place, columns) - float(np.median(self.timed_by[place, pick]))
            for place, pick in zip(range(self.building, len(self.shapes)), picks, strict=True)
        ]

    def _between(self, some: Sequence[int], columns: Sequence[int]) -> list[float]:
        places = range(self.building, len(self.shapes))
        return [self._oracle(place, columns) - self._oracle(place, some) for place in places]

    def _slower(self, place: int, pick: int) -> bool:
        """Whether the pick is more than 2 % slower than the best baseline with 95 % confidence."""
        medians = np.median(self.chosen_by[place], axis=1)
        best = min(self.baselines, key=lambda one: medians[one])
        middle, error = _ratio(self.timed_by[place], best, pick)
        return middle + _Z975 * error < math.log(0.98)


def _ratio(logs: Any, one: int, other: int) -> tuple[float, float]:
    """Median over rounds of log(one/other), and its standard error."""
    ratios = logs[one] - logs[other]
    middle = float(np.median(ratios))
    spread = 1.4826 * float(np.median(np.abs(ratios - middle)))
    return middle, spread * math.sqrt(math.pi / 2 / len(ratios))


def _geomean(logs: Sequence[float]) -> float:
    return math.exp(statistics.fmean(logs))


def study(matrices: Mapping[str, Any], processors: int) -> list[dict[str, Any]]:
    """Every operation from 32 and from all shapes to build from; 32 several times, from disjoint ones, since they are few."""
    rows = []
    for name, matrix in matrices.items():
        looked_at = Study(matrix, processors)
        groups = [list(range(begin, begin + 32)) for begin in range(0, looked_at.building - 31, 32)]
        groups += [list(range(looked_at.building))] if looked_at.building > 32 else []
        rows += [{"operation": name, **looked_at.judged(group)} for group in groups]
    return rows


def totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Over all operations, by the number of timed shapes: geometric means; the mean of the 5th percentiles and of the shares."""
    found = []
    for count in sorted({row["timed_shapes"] for row in rows}):
        some = [row for row in rows if row["timed_shapes"] == count]
        figures: dict[str, Any] = {"timed_shapes": count, "trees": len(some)}
        for name in (
            "of_portfolio_oracle",
            "of_all_oracle",
            "cover_of_all_oracle",
            "winner_alone_of_all_oracle",
        ):
            figures[name] = statistics.geometric_mean(row[name] for row in some)
        for name in ("of_portfolio_oracle_p5", "slower_than_2_percent"):
            figures[name] = statistics.fmean(row[name] for row in some)
        timed = [row["verified"] for row in some if row["verified"]]
        figures["verified"] = None
        if timed:
            figures["verified"] = {name: statistics.fmean(one[name] for one in timed) for name in timed[0]}
        found.append(figures)
    return found


def show(console: Console, rows: Sequence[Mapping[str, Any]], cost: Mapping[str, Any] | None) -> None:
    """The figures as tables."""
    table = Table(
        "operation",
        "timed",
        "members",
        "leaves",
        "of portfolio oracle",
        "p5",
        "of all oracle",
        "winner alone",
        ">2% slower",
        "verified",
        "its >2% slower",
    )
    for row in [*rows, *totals(rows)]:
        table.add_row(
            row.get("operation", "all"),
            str(row["timed_shapes"]),
            str(len(row["members"])) if "members" in row else "",
            str(row.get("leaves", "")),
            f"{row['of_portfolio_oracle']:.1%}",
            f"{row['of_portfolio_oracle_p5']:.1%}",
            f"{row['of_all_oracle']:.1%}",
            f"{row['winner_alone_of_all_oracle']:.1%}",
            f"{row['slower_than_2_percent']:.1%}",
            f"{row['verified']['of_portfolio_oracle']:.1%}" if row["verified"] else "",
            f"{row['verified']['slower_than_2_percent']:.1%}" if row["verified"] else "",
        )
    console.print(table)
    if cost is not None:
        told = Table("what dispatch adds to a call", "us")
        for name, nanoseconds in cost["added_ns"].items():
            told.add_row(name, f"{nanoseconds / 1e3:.2f}")
        console.print(told)


def operations(device: str, tasks: bool) -> Sequence[Timed]:
    """What is measured on a device."""
    if tasks:
        from benchmarks.dispatch_tasks import task_operations

        return task_operations(device)
    if device == "cuda":
        from benchmarks.dispatch_variants_cuda import CUDA

        return CUDA
    return CPU


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    tasks: Annotated[
        bool, typer.Option(help="Tasks of the catalogue, in place of three operations.")
    ] = False,
    only: Annotated[str, typer.Option(help="These operations (commas).")] = "",
    building: Annotated[int, typer.Option(help="Shapes to build from.")] = 128,
    held_out: Annotated[int, typer.Option(help="Shapes to look at.")] = 100,
    rounds: Annotated[int, typer.Option(help="Blocks of each variant at each shape.")] = 12,
    more_rounds: Annotated[
        int, typer.Option(help="Further ones at the held-out shapes, for the verified mode.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 1,
    seconds_total: Annotated[float, typer.Option(help="No shape is begun later.")] = 1e9,
    prepare_only: Annotated[bool, typer.Option(help="Compile what is needed and end.")] = False,
    part: Annotated[str, typer.Option(help="Compile for part i of n of the shapes (`i/n`).")] = "1/1",
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="Where the matrix is kept, operation by operation; goes on with it."),
    ] = None,
    matrix: Annotated[Path | None, typer.Option(help="A kept matrix, instead of a new one.")] = None,
    cost: Annotated[bool, typer.Option(help="Measure what a call costs, too.")] = True,
    write: Annotated[bool, typer.Option(help="Write JSON to docs/measurements.")] = False,
) -> None:
    """Measure a matrix, or take a kept one, and study the dispatcher on it."""
    console = Console(width=150)
    until_s = time.monotonic() + seconds_total
    where = {**environment(), "device": device}
    if device == "cuda" and matrix is None:
        where["device_name"] = torch.cuda.get_device_name()
        where["processors"] = torch.cuda.get_device_properties(0).multi_processor_count
    wanted = (
        []
        if matrix
        else [one for one in operations(device, tasks) if not only or one.name in only.split(",")]
    )
    if prepare_only:
        for operation in wanted:
            at, parts = map(int, part.split("/"))
            prepare(operation, building + held_out, seed, device, (at, parts))
        return
    kept: dict[str, Any] = {
        "program": "benchmarks.dispatch",
        "environment": where,
        "rounds": rounds,
        "operations": {},
    }
    if begun := matrix or (json_path if json_path and json_path.exists() else None):
        kept = json.loads(begun.read_text(encoding="utf-8"))
    for operation in wanted:
        if operation.name in kept["operations"]:
            continue
        begin = time.monotonic()
        try:
            found = measure(operation, (building, held_out), rounds, seed, device, until_s, more_rounds)
        except TimeIsUp as end:
            console.print(f"time is up at {end}")
            break
        kept["operations"][operation.name] = found
        console.print(f"{operation.name}: timed in {time.monotonic() - begin:.0f} s, load {_load()}")
        if json_path:
            json_path.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    kind = f"{'-tasks' if tasks else ''}-{kept['environment']['device']}"
    if write and matrix is None:
        _write(console, f"dispatch-matrix{kind}", kept, indent=None)
    rows = study(kept["operations"], int(kept["environment"].get("processors") or 0))
    costs = dispatch_cost.measure(device) if cost else None
    if rows:
        show(console, rows, costs)
    if write:
        report = {
            "program": "benchmarks.dispatch",
            "settings": {"building": building, "held_out": held_out, "rounds": rounds, "seed": seed},
            "matrix_environment": kept["environment"],
            "environment": where,
            "trees": rows,
            "totals": totals(rows),
            "cost": costs,
        }
        _write(console, f"dispatch{kind}", report, indent=1)


def _load() -> str:
    return Path("/proc/loadavg").read_text().split()[0]


def _write(console: Console, name: str, value: Any, indent: int | None) -> None:
    path = unused(ROOT / "docs" / "measurements" / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json")
    path.write_text(json.dumps(value, indent=indent) + "\n", encoding="utf-8")
    console.print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
