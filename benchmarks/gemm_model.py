"""Models of runtime, power and energy of products of matrices, asked about shapes that none of them saw; beside GPPerf's.

    python -m benchmarks.gemm_model --device cuda --seconds 500 --json gemm.json    measures; a second call goes on
    python -m benchmarks.gemm_model report gemm.json                                fits and prints; needs scikit-learn
    python -m benchmarks.gemm_model --seconds 60                                    all of it on this CPU, at small sizes

Measuring needs torch alone, so that it runs on a bare GPU node.
A quarter of the neighborhoods of shapes (`agent/performance/neighborhoods.py`) is held out; which kind of model is used is
decided in folds of the others. The file is written as measurements come, so a run may be cut and continued.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import gemm_measure
from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused
from evaluator.devices import open_device
from evaluator.energy.counters import Counter, open_counter
from evaluator.energy.windows import energy_of, idle_w
from evaluator.environment import measured_on
from evaluator.errors import EvaluatorError
from evaluator.timing.exclusive import DeviceLock

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
#: Share of the time for times; energy takes a second and a half a shape.
_TIMING_SHARE = 0.5
#: At one shape in so many all members are timed, at the others the baseline alone: its model wants many shapes, regret fewer.
_ALL_MEMBERS = 3
_WRITE_EVERY_S = 5.0
#: Shapes that are timed a second time.
_AGAIN = 40
_SETTINGS = {
    "cuda": {"shapes": 6000, "windows": 3, "most_windows": 8, "window_s": 0.25, "lead_s": 0.3},
    "cpu": {"shapes": 400, "windows": 3, "most_windows": 8, "window_s": 0.1, "lead_s": 0.05},
}
_NAMES = ("M", "N", "K")
Dims = gemm_measure.Dims


class Study:
    """One file of measurements.

    Args:
        path: the file; what it holds already is not measured again.
        device: ``cpu`` or ``cuda``.
        dtype: of the operands.
        seed: of the shapes.
        count: of the shapes; None for the device's own.
        console: where progress goes.

    Raises:
        EvaluatorError: the file is another study's.
    """

    def __init__(
        self, path: Path, device: str, dtype: str, seed: int, count: int | None, console: Console
    ) -> None:
        self.path, self._console = path, console
        self._dtype = getattr(torch, dtype)
        self._bench = gemm_measure.bench(device)
        self._device = open_device(device)
        settings = {"device": device, "dtype": dtype, "seed": seed, **_SETTINGS[device]}
        settings["shapes"] = count or settings["shapes"]
        self.state: dict[str, Any] = {
            "program": "benchmarks.gemm_model",
            "settings": settings,
            "environment": {**environment(), **measured_on(self._device)},
            "machine": gemm_measure.machine(device),
            "energy": {"counter": None, "why_not": None, "idle_w": None},
            "rows": [],
        }
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            for name in ("settings", "machine"):
                if before.get(name) != self.state[name]:
                    raise EvaluatorError(f"{path} was measured with another {name}; give another file")
            if before["environment"]["gpu_uuid"] != self.state["environment"]["gpu_uuid"]:
                raise EvaluatorError(f"{path} was measured on another GPU; give another file")
            before.pop("report", None)
            self.state = before
        self.settings = self.state["settings"]
        within = gemm_measure.RANGES[device]
        self._shapes = gemm_measure.shapes(self.settings["shapes"], within, seed)
        self._rows: dict[tuple[int, ...], dict[str, Any]] = {
            _key(row["dims"]): row for row in self.state["rows"]
        }
        self._written_s = time.monotonic()

    def measure(self, seconds: float) -> None:
        """Times first, then energy, for so many seconds at most."""
        counter = open_counter(self._device)
        self.state["energy"]["why_not"] = counter if isinstance(counter, str) else None
        share = 1.0 if isinstance(counter, str) else _TIMING_SHARE
        lock = DeviceLock(str(self.state["environment"]["gpu_uuid"] or "cpu"))
        with lock.exclusive(), torch.no_grad():
            began = time.monotonic()
            if not isinstance(counter, str):
                self._idle(counter)
            self._times(began + share * seconds)
            self._again()
            if not isinstance(counter, str):
                self._energies(counter, began + seconds)
        self._write(now=True)

    def _idle(self, counter: Counter) -> None:
        """Before anything warms the device up; with a context of CUDA, which raises what an idle GPU draws."""
        if self._bench.device == "cuda":
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        if self.state["energy"]["idle_w"] is None:
            self.state["energy"].update(counter=counter.name, idle_w=idle_w(counter))

    def _times(self, until_s: float) -> None:
        left = [dims for dims in self._shapes if _key(dims) not in self._rows]
        for number, dims in enumerate(left):
            if time.monotonic() > until_s:
                break
            before = self._device.clock()
            calls = gemm_measure.members(dims, self._dtype, self._bench.device)
            if sum(dims.values()) % _ALL_MEMBERS:
                calls = {"mm": calls["mm"]}
            row = {
                "dims": dims,
                "times_us": _rounded({name: self._bench.time_us(call) for name, call in calls.items()}),
                "sm_mhz": [clock.sm_mhz for clock in (before, self._device.clock()) if clock],
            }
            self._keep(row)
            if number % 50 == 0:
                self._bench.rest()
            if number % 200 == 199:
                self._console.print(
                    f"{len(self._rows)} shapes timed, {until_s - time.monotonic():.0f} s left"
                )

    def _again(self) -> None:
        """Some shapes once more, long after the first time: no model can be better than that."""
        for row in self.state["rows"][:_AGAIN]:
            if "again_us" not in row:
                call = gemm_measure.members(row["dims"], self._dtype, self._bench.device)["mm"]
                row.update(_rounded({"again_us": self._bench.time_us(call)}))
        self._bench.rest()

    def _energies(self, counter: Counter, until_s: float) -> None:
        windows = {
            "windows": self.settings["windows"],
            "most": self.settings["most_windows"],
            "seconds": self.settings["window_s"],
        }
        takes_s = self.settings["lead_s"] + windows["most"] * (windows["seconds"] + 0.1) + 0.3
        done = 0
        for dims in self._shapes:
            row = self._rows.get(_key(dims))
            if row is None or "energy" in row:
                continue
            if time.monotonic() + takes_s > until_s:
                break
            call = gemm_measure.members(dims, self._dtype, self._bench.device)["mm"]
            step = self._bench.step(call)
            idle = self.state["energy"]["idle_w"]
            found = energy_of(counter, step, idle, lead_s=self.settings["lead_s"], **windows)
            row["energy"] = _rounded(found.as_fields())
            clock = self._device.clock()
            row["energy"]["held_back"] = list(clock.reasons) if clock else []
            self._bench.rest()
            self._write()
            done += 1
        self._console.print(f"energy measured at {done} shapes more")

    def _keep(self, row: dict[str, Any]) -> None:
        self.state["rows"].append(row)
        self._rows[_key(row["dims"])] = row
        self._write()

    def _write(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._written_s > _WRITE_EVERY_S:
            write(self.path, self.state)
            self._written_s = time.monotonic()


def write(path: Path, state: dict[str, Any]) -> None:
    """One row a line, so that thousands of shapes are a file that can be kept; whole or not at all."""
    head = json.dumps({name: value for name, value in state.items() if name != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in state["rows"])
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]\n}}\n', encoding="utf-8")
    beside.replace(path)


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    """Five digits: nothing here is known to more."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in fields.items()
    }


def _key(dims: Dims) -> tuple[int, ...]:
    return tuple(dims[name] for name in _NAMES)


def fitted(state: dict[str, Any], kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """All models on the measurements: what `report` prints, for JSON.

    Args:
        state: of a study.
        kinds: of runtime models; all by default.
    """
    from agent.performance import comparison, demand, energy, models
    from agent.performance.features import Encoder

    item_bytes = torch.empty(0, dtype=getattr(torch, state["settings"]["dtype"])).element_size()
    machine = demand.Machine(state["machine"]["units"], state["machine"]["cache_bytes"])
    rows = state["rows"]
    shapes: list[dict[str, Any]] = [row["dims"] for row in rows]

    def demands(dims: demand.Dims) -> demand.Demand:
        return demand.product(dims, item_bytes)

    names = dict.fromkeys(name for row in rows for name in row["times_us"])
    ordered = sorted(names, key=lambda name: name != "mm")
    measured = {
        name: np.array([row["times_us"].get(name, math.nan) for row in rows], dtype=np.float64)
        for name in ordered
    }
    seed = state["settings"]["seed"]
    found = comparison.compare(
        shapes, measured, demands, machine, seed=seed, kinds=kinds or tuple(models.KINDS)
    )
    with_energy = [index for index, row in enumerate(rows) if "energy" in row]
    energies = None
    if with_energy:
        chosen = [shapes[index] for index in with_energy]
        energies = energy.compare(
            chosen,
            np.array([rows[index]["energy"]["joules"] for index in with_energy]),
            np.array([rows[index]["energy"]["power_w"] for index in with_energy]),
            found.testing[with_energy],
            measured["mm"][with_energy],
            found.fitted["mm"].predict,
            Encoder.of(shapes, demands, machine),
            seed,
        )
    twice = [row["again_us"] / row["times_us"]["mm"] - 1.0 for row in rows if "again_us" in row]
    spreads = [rows[index]["energy"]["spread"] for index in with_energy]
    return {
        "runtime": found.as_fields(),
        "energy": energies and energies.as_fields(),
        "again": {"p50": float(np.median(np.abs(twice))), "worst": float(np.max(np.abs(twice)))}
        if twice
        else None,
        "energy_spread_median": float(np.median(spreads)) if spreads else None,
        "gpperf": GPPERF,
        "bars": BARS,
    }


def show(state: dict[str, Any], report: dict[str, Any], console: Console) -> None:
    """The tables: ours beside GPPerf's."""
    runtime, energies = report["runtime"], report["energy"]
    table = Table(
        "model", "50 %", "90 %", "99 %", "worst", "regret 50 %", "99 %", "worst", "efficiency", "regressions",
        title=f"runtime at {runtime['test']} unseen shapes ({runtime['train']} seen, {runtime['neighborhoods']} neighborhoods)",
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
    console.print(
        "errors over all members; regret: time lost by running the member whose predicted time is least; regressions: choices more "
        "than 2 % slower than mm"
    )
    if report["again"]:
        again = report["again"]
        console.print(
            f"the same shapes timed again, later: {_percent(again['p50'])} off in the median, {_percent(again['worst'])} at most"
        )
    if energies:
        table = Table(
            "model", "energy 50 %", "90 %", "99 %", "worst", "power 50 %", "90 %", "99 %", "worst",
            title=f"energy at {energies['test']} unseen shapes ({energies['train']} seen); times are predicted, too",
        )  # fmt: skip
        for kind in energies["energy"]:
            cells = [
                _percent(energies[what][kind][at])
                for what in ("energy", "power")
                for at in ("p50", "p90", "p99", "worst")
            ]
            table.add_row(kind + (" (chosen)" if kind == energies["chosen"] else ""), *cells)
        console.print(table)
        console.print(
            f"windows of one measurement of energy differ by {_percent(report['energy_spread_median'])} in the median"
        )
    else:
        console.print(state["energy"]["why_not"] or "energy was measured at too few shapes for a model")
    console.print(_beside(runtime, energies))
    console.print(
        f"GPPerf: R² {GPPERF['runtime_r2']} for runtime and {GPPERF['power_r2']} for power; {GPPERF['what']} ({GPPERF['source']})"
    )


def _beside(runtime: dict[str, Any], energies: dict[str, Any] | None) -> Table:
    table = Table("figure", "here", "bar", "GPPerf states", title="beside GPPerf")
    mine = runtime["of_chosen"].get("mm") or {}
    chosen = energies["chosen"] if energies else ""
    joules = energies["energy"][chosen] if energies else {}
    watts = energies["power"][chosen] if energies else {}
    shared = "its test shapes are training shapes"
    for name, value, bar, theirs in (
        ("runtime of mm, median error", mine.get("p50"), BARS["runtime_median"], f"mean 15.6 %; {shared}"),
        ("runtime of mm, 90th percentile", mine.get("p90"), None, "not stated"),
        ("runtime of mm, 99th percentile", mine.get("p99"), BARS["runtime_p99"], "not stated"),
        ("runtime of mm, worst", mine.get("worst"), None, "not stated"),
        ("energy, median error", joules.get("p50"), BARS["energy_median"], "not stated"),
        ("power, median error", watts.get("p50"), None, f"5.4 %; {shared}"),
        ("power, 99th percentile", watts.get("p99"), None, "not stated"),
    ):
        held = bar is not None and value is not None
        verdict = f"{_percent(bar)} {'met' if value <= bar else 'missed'}" if held else _percent(bar)
        table.add_row(name, _percent(value), verdict, theirs)
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


app = typer.Typer(add_completion=False, help=__doc__)


@app.callback(invoke_without_command=True)
def measure(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seconds: Annotated[float, typer.Option(help="Measures for so long at most.")] = 60.0,
    shapes: Annotated[int | None, typer.Option(help="How many at most.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32; float32 on a CPU.")] = "",
    seed: Annotated[int, typer.Option(help="Of shapes and split.")] = 1,
    path: Annotated[Path | None, typer.Option("--json", help="File to write or to go on with.")] = None,
) -> None:
    """Measure; on a CPU the report follows at once."""
    if context.invoked_subcommand is not None:
        return
    console = Console(width=150)
    torch.manual_seed(seed)
    random.seed(seed)
    folder = ROOT / "docs" / "measurements"
    path = path or unused(folder / f"{datetime.now(UTC):%Y-%m-%d}-gemm-model-{device}.json")
    study = Study(
        path, device, dtype or ("bfloat16" if device == "cuda" else "float32"), seed, shapes, console
    )
    study.measure(seconds)
    console.print(f"{len(study.state['rows'])} shapes in {path.name}")
    # Minutes of fitting would keep a GPU waiting.
    if device == "cpu" and importlib.util.find_spec("sklearn"):
        report(path)
    else:
        console.print(
            f"fit the models with `python -m benchmarks.gemm_model report {path.name}`, where scikit-learn is installed"
        )


@app.command()
def report(path: Annotated[Path, typer.Argument(help="JSON of a measurement.")]) -> None:
    """Fit all models and print them beside GPPerf's figures."""
    console = Console(width=150)
    state = json.loads(path.read_text(encoding="utf-8"))
    state["report"] = fitted(state)
    show(state, state["report"], console)
    write(path, state)


if __name__ == "__main__":
    app()
