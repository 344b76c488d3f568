"""Models fitted to one file of measured products, and their figures beside GPPerf's.

Everything is done twice where the file says which kernels the library ran: from the shape alone, and told that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gemm_kernels import told as told_by

#: What GPPerf's authors state, and what their script does.
GPPERF = {
    "source": "pavlyhalim/GPPerf, arXiv 2411.16954",
    "what": "RTX 4070, CUTLASS float32 kernels, 16,128 runs at 36 shapes, random forest; rows are split, so that each test shape "
    "is also a training shape",
    "runtime_r2": 0.98,
    "runtime_mean": 0.1557,
    "power_r2": 0.78,
    "power_median": 0.0542,
}
BARS = {"runtime_median": 0.05, "runtime_p99": 0.25, "energy_median": 0.06}


def fitted(state: dict[str, Any], kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """All models on the measurements: what `report` prints, for JSON.

    Args:
        state: of a study.
        kinds: of runtime models; all by default.
    """
    rows = state["rows"]
    twice = [row["again_us"] / row["times_us"]["mm"] - 1.0 for row in rows if "again_us" in row]
    spreads = [row["energy"]["spread"] for row in rows if "energy" in row]
    return {
        **_modeled(state, kinds, told=False),
        "told": _modeled(state, kinds, told=True) if all(row.get("kernels") for row in rows) else None,
        "again": {"p50": float(np.median(np.abs(twice))), "worst": float(np.max(np.abs(twice)))}
        if twice
        else None,
        "energy_spread_median": float(np.median(spreads)) if spreads else None,
        "gpperf": GPPERF,
        "bars": BARS,
    }


def _modeled(state: dict[str, Any], kinds: tuple[str, ...] | None, *, told: bool) -> dict[str, Any]:
    from agent.performance import comparison, demand, energy, models
    from agent.performance.features import Encoder, Told

    item_bytes = torch.empty(0, dtype=getattr(torch, state["settings"]["dtype"])).element_size()
    machine = demand.Machine(state["machine"]["units"], state["machine"]["cache_bytes"])
    rows = state["rows"]
    shapes: list[dict[str, Any]] = [row["dims"] for row in rows]
    kernels = {tuple(row["dims"].values()): row.get("kernels", []) for row in rows}

    def demands(dims: demand.Dims) -> demand.Demand:
        return demand.product(dims, item_bytes)

    def of_kernels(dims: demand.Dims) -> Told:
        return told_by(machine.units, kernels[tuple(dims.values())], dims)

    more = of_kernels if told else None
    names = dict.fromkeys(name for row in rows for name in row["times_us"])
    ordered = sorted(names, key=lambda name: name != "mm")
    measured = {
        name: np.array([row["times_us"].get(name, math.nan) for row in rows], dtype=np.float64)
        for name in ordered
    }
    seed = state["settings"]["seed"]
    chosen_kinds = kinds or tuple(models.KINDS)
    found = comparison.compare(shapes, measured, demands, machine, seed=seed, kinds=chosen_kinds, told=more)
    with_energy = [index for index, row in enumerate(rows) if "energy" in row]
    energies = None
    if with_energy:
        energies = energy.compare(
            [shapes[index] for index in with_energy],
            np.array([rows[index]["energy"]["joules"] for index in with_energy]),
            np.array([rows[index]["energy"]["power_w"] for index in with_energy]),
            found.testing[with_energy],
            measured["mm"][with_energy],
            found.fitted["mm"].predict,
            Encoder.of(shapes, demands, machine, more),
            seed,
        )
    return {"runtime": found.as_fields(), "energy": energies and energies.as_fields()}


def show(state: dict[str, Any], report: dict[str, Any], console: Console) -> None:
    """The tables: ours beside GPPerf's."""
    _tables(report, "from the shape alone", console)
    if report["told"]:
        _tables(report["told"], "told which kernel the library runs there", console)
    console.print(
        "errors over all members; regret: time lost by running the member whose predicted time is least; regressions: choices more "
        "than 2 % slower than mm"
    )
    if report["again"]:
        again = report["again"]
        console.print(
            f"the same shapes timed again, later: {_percent(again['p50'])} off in the median, {_percent(again['worst'])} at most"
        )
    if report["energy"]:
        console.print(
            f"windows of one measurement of energy differ by {_percent(report['energy_spread_median'])} in the median"
        )
    else:
        console.print(state["energy"]["why_not"] or "energy was measured at too few shapes for a model")
    console.print(_beside(report, report["told"]))
    console.print(
        f"GPPerf: R² {GPPERF['runtime_r2']} for runtime and {GPPERF['power_r2']} for power; {GPPERF['what']} ({GPPERF['source']})"
    )


def _tables(report: dict[str, Any], how: str, console: Console) -> None:
    runtime, energies = report["runtime"], report["energy"]
    table = Table(
        "model", "50 %", "90 %", "99 %", "worst", "regret 50 %", "99 %", "worst", "efficiency", "regressions",
        title=f"runtime at {runtime['test']} unseen shapes ({runtime['train']} seen, {runtime['neighborhoods']} neighborhoods), {how}",
    )  # fmt: skip
    lines = [
        (kind, runtime["errors"][kind].get("all"), runtime["regret"][kind]) for kind in runtime["errors"]
    ]
    lines.append(("chosen in training", runtime["of_chosen"].get("all"), runtime["regret_of_chosen"]))
    for name, errors, regret in lines:
        table.add_row(
            name,
            *(_percent(errors and errors[at]) for at in ("p50", "p90", "p99", "worst")),
            *(_percent(regret and regret[at]) for at in ("p50", "p99", "worst", "efficiency", "regressions")),
        )
    console.print(table)
    if not energies:
        return
    table = Table(
        "model", "energy 50 %", "90 %", "99 %", "worst", "power 50 %", "90 %", "99 %", "worst",
        title=f"energy at {energies['test']} unseen shapes ({energies['train']} seen), {how}; times are predicted, too",
    )  # fmt: skip
    for kind in energies["energy"]:
        cells = [
            _percent(energies[what][kind][at])
            for what in ("energy", "power")
            for at in ("p50", "p90", "p99", "worst")
        ]
        table.add_row(kind + (" (chosen)" if kind == energies["chosen"] else ""), *cells)
    console.print(table)


def _figures(report: dict[str, Any]) -> tuple[float | None, ...]:
    runtime, energies = report["runtime"], report["energy"]
    mine = runtime["of_chosen"].get("mm") or {}
    chosen = energies["chosen"] if energies else ""
    joules = energies["energy"][chosen] if energies else {}
    watts = energies["power"][chosen] if energies else {}
    return (
        *(mine.get(at) for at in ("p50", "p90", "p99", "worst")),
        *(joules.get(at) for at in ("p50", "p90")),
        *(watts.get(at) for at in ("p50", "p99")),
    )


def _beside(report: dict[str, Any], told: dict[str, Any] | None) -> Table:
    table = Table("figure", "shape alone", "told the kernel", "bar", "GPPerf states", title="beside GPPerf")
    shared = "its test shapes are training shapes"
    lines = (
        ("runtime of mm, median error", BARS["runtime_median"], f"mean 15.6 %; {shared}"),
        ("runtime of mm, 90th percentile", None, "not stated"),
        ("runtime of mm, 99th percentile", BARS["runtime_p99"], "not stated"),
        ("runtime of mm, worst", None, "not stated"),
        ("energy, median error", BARS["energy_median"], "not stated"),
        ("energy, 90th percentile", None, "not stated"),
        ("power, median error", None, f"5.4 %; {shared}"),
        ("power, 99th percentile", None, "not stated"),
    )
    alone = _figures(report)
    with_it = _figures(told) if told else (None,) * len(alone)
    for (name, bar, theirs), one, other in zip(lines, alone, with_it, strict=True):
        table.add_row(name, _against(one, bar), _against(other, bar), _percent(bar), theirs)
    return table


def _against(value: float | None, bar: float | None) -> str:
    if value is None or bar is None:
        return _percent(value)
    return f"{_percent(value)} {'met' if value <= bar else 'missed'}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
