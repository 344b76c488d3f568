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
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks import gemm_measure, gemm_report
from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused
from evaluator.devices import open_device
from evaluator.energy.counters import Counter, open_counter
from evaluator.energy.windows import energy_of, idle_w
from evaluator.environment import measured_on
from evaluator.errors import EvaluatorError
from evaluator.timing.exclusive import DeviceLock

#: Share of the time for times; energy takes a second a shape.
_TIMING_SHARE = 0.42
#: At one shape in so many all members are timed, at the others the baseline alone: its model wants many shapes, regret fewer.
_ALL_MEMBERS = 3
_WRITE_EVERY_S = 5.0
#: Shapes in one session of the profiler.
_PROFILED = 100
#: Shapes that are timed a second time.
_AGAIN = 40
_SETTINGS = {
    "cuda": {"shapes": 6000, "windows": 2, "most_windows": 6, "window_s": 0.2, "lead_s": 0.2},
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
            self._kernels()
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

    def _kernels(self) -> None:
        """What the library runs at each shape: known from one call there that nobody times."""
        left = (
            [row for row in self.state["rows"] if "kernels" not in row]
            if self._bench.device == "cuda"
            else []
        )
        for start in range(0, len(left), _PROFILED):
            part = left[start : start + _PROFILED]
            names = gemm_measure.kernels([row["dims"] for row in part], self._dtype)
            for row, found in zip(part, names, strict=True):
                row["kernels"] = found
            self._bench.rest()
        self._write(now=True)
        named = sum(bool(row.get("kernels")) for row in self.state["rows"])
        self._console.print(f"kernels known at {named} of {len(self.state['rows'])} shapes")

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
def report(
    path: Annotated[Path, typer.Argument(help="JSON of a measurement.")],
    split: Annotated[int | None, typer.Option(help="Seed of another split; then nothing is written.")] = None,
) -> None:
    """Fit all models and print them beside GPPerf's figures."""
    console = Console(width=150)
    state = json.loads(path.read_text(encoding="utf-8"))
    if split is not None:
        state["settings"]["seed"] = split
        gemm_report.show(state, gemm_report.fitted(state), console)
        return
    state["report"] = gemm_report.fitted(state)
    gemm_report.show(state, state["report"], console)
    write(path, state)


if __name__ == "__main__":
    app()
