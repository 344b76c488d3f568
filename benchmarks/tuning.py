"""What successive halving costs and finds, against timing every setting at full length: 128 settings of one real kernel.

Both run in the sandbox through the tuner's own program (`agent/strategy/sandboxed/tune_program.py`), in one process, taking
turns, with the device's clock held; compiling is done before and counts for neither. Whether a setting is as good as the best is
asked again afterwards: what halving chose and what was fastest at full length are timed in turns, in a fresh order each time,
since the fastest of 128 timings is fast by luck, too. A referee judges the candidate as it is and with what was chosen.

    python -m benchmarks.tuning --device cpu --json tuning.json            # about 5 minutes on two cores
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.strategy import tuner, tuning
from agent.strategy.tunables import declared, setting_key, substituted
from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource

_MOST_COST, _MOST_LOSS = 0.25, 0.01
_FINALISTS = 4

TASK = '''
import torch
import torch.nn as nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(64, 8192, default=2048), "cols": Dim(64, 8192, default=1536)}


class Model(nn.Module):
    """A scaled transposition: what its tiles are decides how fast it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2.0).t().contiguous()


def get_inputs(rows: int = 2048, cols: int = 1536) -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]


def get_init_inputs() -> list:
    return []
'''
SHAPES: dict[str, list[dict[str, Any]]] = {
    "cpu": [{"rows": 1024, "cols": 768}, {"rows": 2048, "cols": 257}],
    # larger, or a call would be a launch and nothing else
    "cuda": [{"rows": 8192, "cols": 6144}, {"rows": 8192, "cols": 2049}],
}

CPP = '''
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {
    "TILE_ROWS": [1, 2, 4, 8, 16, 32, 64, 128],
    "TILE_COLS": [1, 2, 4, 8, 16, 32, 64, 128],
    "ALONG_INPUT": [0, 1],
}
TILE_ROWS = 1
TILE_COLS = 1
ALONG_INPUT = 1

SOURCE = r"""
extern "C" void transposed(const float* x, float* y, long rows, long cols, long tile_rows, long tile_cols, long along) {
  #pragma omp parallel for
  for (long r = 0; r < rows; r += tile_rows) {
    long r_end = r + tile_rows < rows ? r + tile_rows : rows;
    for (long c = 0; c < cols; c += tile_cols) {
      long c_end = c + tile_cols < cols ? c + tile_cols : cols;
      if (along)
        for (long i = r; i < r_end; ++i)
          for (long j = c; j < c_end; ++j) y[j * rows + i] = 2.0f * x[i * cols + j];
      else
        for (long j = c; j < c_end; ++j)
          for (long i = r; i < r_end; ++i) y[j * rows + i] = 2.0f * x[i * cols + j];
    }
  }
}
"""
_path = load_inline(
    name="transposed_kernel",
    cpp_sources=SOURCE,
    is_python_module=False,
    no_implicit_headers=True,
    extra_cflags=["-O3", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)
_library = ctypes.CDLL(_path)
_library.transposed.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *([ctypes.c_long] * 5)]
_library.transposed.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty(x.shape[1], x.shape[0])
        _library.transposed(x.data_ptr(), y.data_ptr(), *x.shape, TILE_ROWS, TILE_COLS, ALONG_INPUT)
        return y
'''

TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

TUNABLES = {
    "TILE_ROWS": [16, 32, 64, 128],
    "TILE_COLS": [16, 32, 64, 128],
    "WARPS": [1, 2, 4, 8],
    "STAGES": [1, 3],
}
TILE_ROWS = 16
TILE_COLS = 16
WARPS = 1
STAGES = 1


@triton.jit
def transposed(x, y, rows, cols, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    c = tl.program_id(1) * TILE_COLS + tl.arange(0, TILE_COLS)
    inside = (r[:, None] < rows) & (c[None, :] < cols)
    tile = tl.load(x + r[:, None] * cols + c[None, :], mask=inside)
    tl.store(y + c[:, None] * rows + r[None, :], tl.trans(tile * 2.0), mask=tl.trans(inside))


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        y = torch.empty(cols, rows, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(rows, TILE_ROWS), triton.cdiv(cols, TILE_COLS))
        transposed[grid](x, y, rows, cols, TILE_ROWS, TILE_COLS, num_warps=WARPS, num_stages=STAGES)
        return y
"""

#: Takes the place of the tuner's own `main()`: everything before it is the tuner's.
PASSES = """
def main():
    request = json.loads(Path("request.json").read_text())
    stand_in()
    settings = [one["setting"] for one in request["variants"]]
    with torch.inference_mode():
        began_s = time.monotonic()
        bench = Bench(request)
        for setting in settings:  # compiled and checked before any clock runs
            bench.objective(setting, 0.0)
        ready_s = time.monotonic() - began_s
        passes = []
        for number in range(request["rounds"]):
            for what in ("halving", "full") if number % 2 == 0 else ("full", "halving"):
                began_s = time.monotonic()
                found = halve(settings, bench.objective, **({"rungs": ((1.0, 0.0),)} if what == "full" else {}))
                elapsed_s = time.monotonic() - began_s
                passes.append({
                    "pass": what, "elapsed_s": elapsed_s, "cost": found.cost, "timings": len(found.trials),
                    "setting": found.setting, "elapsed_us": found.elapsed_us,
                    "trials": [[one.setting, one.share, one.elapsed_us] for one in found.trials],
                })
        full = {}
        for one in passes:
            if one["pass"] == "full":
                for setting, _, elapsed_us in one["trials"]:
                    if elapsed_us is not None:
                        full.setdefault(json.dumps(setting, sort_keys=True), []).append(elapsed_us)
        fastest = sorted(full, key=lambda key: statistics.median(full[key]))[: request["finalists"]]
        chosen = {json.dumps(one["setting"], sort_keys=True) for one in passes if one["pass"] == "halving"}
        finalists = sorted({*fastest, *chosen})
        final = {key: [] for key in finalists}
        for turn in request["turns"]:
            for place in turn:
                if place < len(finalists):
                    final[finalists[place]].append(bench.objective(json.loads(finalists[place]), 0.25))
    answer = {"ready_s": ready_s, "failures": bench.failures, "passes": passes, "final": final}
    Path("out").mkdir(exist_ok=True)
    Path("out/tuned.json").write_text(json.dumps(answer))


main()
"""


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rounds: Annotated[int, typer.Option(help="How often each of the two runs.")] = 2,
    turns: Annotated[int, typer.Option(help="Turns of the last comparison.")] = 12,
    deadline_s: Annotated[float, typer.Option(help="Seconds for all of it.")] = 580.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the figures are written.")] = None,
) -> None:
    """Tunes one kernel in both ways and compares what they cost and found."""
    source = TRITON if device == "cuda" else CPP
    tunables = declared(source)
    assert tunables is not None
    settings = tunables.settings(128, random.Random(0))
    assert len(settings) == 128
    generator = random.Random(0)
    places = list(range(_FINALISTS + rounds))
    request = {
        "device": device,
        "full_s": tuner.FULL_S,
        "shapes": SHAPES[device],
        "variants": [{"setting": one, "source": substituted(source, one)} for one in settings],
        "rounds": rounds,
        "finalists": _FINALISTS,
        "turns": [generator.sample(places, len(places)) for _ in range(turns)],
    }
    files = {
        "task.py": TASK,
        "request.json": json.dumps(request),
        "tuning.py": Path(tuning.__file__).read_text(),
    }
    program = tuner.PROGRAM.read_text()
    begin = program.index("def main() -> None:")
    with tempfile.TemporaryDirectory() as folder, Referee(device, work_dir=Path(folder)) as referee:
        environment = referee.self_check()["device"]
        ran = referee.run_tool(
            program[:begin] + PASSES, files, deadline_s=deadline_s, device=device == "cuda", timed=True
        )
        if "tuned.json" not in ran.outputs:
            raise SystemExit(
                f"the tuner ended without an answer ({ran.status}): {ran.stdout[-2000:]}{ran.stderr}"
            )
        answer = json.loads(ran.outputs["tuned.json"])
        compared = _compared(answer)
        answer["judged"] = _judged(referee, source, answer)
    if as_json is not None:
        report = {
            "environment": environment,
            "device": device,
            "shapes": SHAPES[device],
            "full_s": tuner.FULL_S,
        }
        as_json.write_text(json.dumps({**report, **compared, **answer}, indent=1))
    _show(answer, compared, environment)


def _compared(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Cost and loss of each pass of halving: in full lengths, in seconds, and against the best of the last comparison."""
    full_s = statistics.median(one["elapsed_s"] for one in answer["passes"] if one["pass"] == "full")
    final_us = {key: statistics.median(times) for key, times in answer["final"].items()}
    best = min(final_us, key=lambda key: final_us[key])
    rows = []
    for one in answer["passes"]:
        if one["pass"] == "halving":
            key = setting_key(one["setting"])
            # Turn by turn: what drifts, drifts for both.
            ratios = [
                mine / other for mine, other in zip(answer["final"][key], answer["final"][best], strict=True)
            ]
            rows.append(
                {
                    "setting": one["setting"],
                    "share_of_lengths": one["cost"] / len(_full(answer)["trials"]),
                    "share_of_seconds": one["elapsed_s"] / full_s,
                    "slower_than_best": statistics.median(ratios) - 1,
                }
            )
    met = all(
        max(row["share_of_lengths"], row["share_of_seconds"]) <= _MOST_COST
        and row["slower_than_best"] <= _MOST_LOSS
        for row in rows
    )
    return {"best": json.loads(best), "final_us": final_us, "halving": rows, "bar_met": met}


def _full(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A pass that timed everything."""
    found: Mapping[str, Any] = next(one for one in answer["passes"] if one["pass"] == "full")
    return found


def _judged(referee: Referee, source: str, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the referee says of the file as it is, and with what the first pass of halving chose."""
    chosen = next(one["setting"] for one in answer["passes"] if one["pass"] == "halving")
    rows = []
    for label, text in (("as it is", source), ("tuned", substituted(source, chosen))):
        verdict = referee.evaluate(
            TaskSource("transposed", TASK),
            CandidateSource(text, origin="external", label=label),
            splits=("visible",),
            shapes={"visible": SHAPES[referee.device]},
        )
        times_us = [row.candidate_us for row in verdict.shapes if row.timed]
        rows.append(
            {
                "label": label,
                "verdict": verdict.verdict,
                "reason": verdict.reason,
                "candidate_us": times_us,
                "geomean_speedup": verdict.summary.geomean_speedup,
            }
        )
    return rows


def _show(answer: Mapping[str, Any], compared: Mapping[str, Any], environment: Any) -> None:
    table = Table("pass", "timings", "full lengths", "s", "chosen", "us")
    for one in answer["passes"]:
        table.add_row(
            one["pass"],
            str(one["timings"]),
            f"{one['cost']:.1f}",
            f"{one['elapsed_s']:.1f}",
            tuning.words(one["setting"]),
            f"{one['elapsed_us']:.1f}",
        )
    console = Console(width=150)
    console.print(table)
    for row in compared["halving"]:
        console.print(
            f"halving: {row['share_of_lengths']:.1%} of the lengths, {row['share_of_seconds']:.1%} of the seconds; "
            f"{tuning.words(row['setting'])} is {row['slower_than_best']:+.2%} slower than the best, {tuning.words(compared['best'])}"
        )
    for row in answer["judged"]:
        speed = row["geomean_speedup"]
        console.print(
            f"referee, {row['label']}: {row['verdict']}"
            + (f", {speed:.2f}x" if speed else f" ({row['reason']})")
        )
    console.print(f"ready after {answer['ready_s']:.0f} s, {len(answer['failures'])} settings do not work")
    console.print(f"bar {'met' if compared['bar_met'] else 'MISSED'}; {environment}")


if __name__ == "__main__":
    typer.run(main)
