"""Where the correctness checks of an evaluation spend their time, by request: nothing is timed for speed here.

    python -m benchmarks.correctness
    python -m benchmarks.correctness --device cuda --large 4 --largest 16777216

The candidate is the library's kernel for the task. The first evaluation opens the shapes and makes the expectations of
all of them; in the later ones those of small shapes are known.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import library_candidate
from benchmarks.referee import quiet, small_shapes
from evaluator.referee.core import RefereeCore
from evaluator.referee.evaluation import Evaluation, Request
from evaluator.roles import runner
from evaluator.roles.process import RoleProcess
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog

_NAMES = {number: name for name, number in vars(runner).items() if name.isupper() and isinstance(number, int)}
Seen = dict[tuple[str, str], list[float]]


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Notes the seconds that the referee waits for each answer while it checks for correctness."""
    receive, check_all = RoleProcess.receive, Evaluation._check_all

    def received(process: RoleProcess, operation: int, sequence: int, deadline_s: float) -> bytes:
        started = time.perf_counter()
        try:
            return receive(process, operation, sequence, deadline_s)
        finally:
            seen[process.name, _NAMES.get(operation, "?")].append(time.perf_counter() - started)

    def checked(evaluation: Evaluation, shapes: Any) -> None:
        RoleProcess.receive = received  # type: ignore[method-assign]
        try:
            check_all(evaluation, shapes)
        finally:
            RoleProcess.receive = receive  # type: ignore[method-assign]

    Evaluation._check_all = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        Evaluation._check_all = check_all  # type: ignore[method-assign]


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    shapes: Annotated[int, typer.Option(help="Small shapes, at most 2^18 elements each.")] = 16,
    large: Annotated[int, typer.Option(help="Large shapes.")] = 0,
    largest: Annotated[int, typer.Option(help="Elements of each of those.")] = 1 << 22,
    runs: Annotated[int, typer.Option(help="Evaluations after the first.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the shapes.")] = 1,
) -> None:
    """Measure the correctness stage."""
    console = Console(width=110)
    source = catalog.load("layernorm_relu_add").source
    task = TaskSource("layernorm_relu_add", source)
    candidate = CandidateSource(library_candidate(source, device), "human", "library")
    chosen = small_shapes(shapes, seed) + [
        {"rows": largest // 1024 - number, "cols": 1024, "dtype": "float32"} for number in range(large)
    ]
    request = Request(task, candidate, "screen", ("adversarial",), {"adversarial": chosen})
    stages_s, answers = [], []
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        core.fleet.warm_up()
        try:
            for _ in range(runs + 1):
                seen: Seen = defaultdict(list)
                with watched(seen):
                    verdict = core.evaluate(request, quiet)
                if verdict["verdict"] != "accepted":
                    raise SystemExit(f"not accepted: {verdict['reason']}")
                stages_s.append(verdict["stages_s"]["correctness"])
                answers.append(seen)
        finally:
            core.close()
    later = ", ".join(f"{stage_s:.2f}" for stage_s in stages_s[1:])
    console.print(
        f"correctness at {len(chosen)} shapes: first {stages_s[0]:.2f} s, later {later} s, "
        f"median {statistics.median(stages_s[1:]):.2f} s"
    )
    table = Table("role", "request", "first: how many", "ms", "last: how many", "ms")
    for key in sorted(answers[0], key=lambda key: -sum(answers[0][key])):
        cells = [text for seen in (answers[0], answers[-1]) for text in _cells(seen.get(key, []))]
        table.add_row(*key, *cells)
    console.print(table)


def _cells(elapsed_s: list[float]) -> tuple[str, str]:
    return str(len(elapsed_s)), f"{1e3 * sum(elapsed_s):.1f}"


if __name__ == "__main__":
    typer.run(main)
