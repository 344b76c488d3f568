"""Does every task of the catalogue run at all of its strata? Draws the four splits and every stratum, and opens each shape once.

    python -m benchmarks.strata --device cpu --only softmax
    python -m benchmarks.strata --device cuda --part 2/4 --seconds-total 400 --json b.json
    python -m benchmarks.strata merge a.json b.json --json strata.json

The reference runs at each shape as the referee runs it (inputs, weights drawn anew, one call, and again to see that it
repeats). A shape where it does not is a failure with its sentence. The file is written after every task, so a run may be cut and
taken up again with `--skip-known`. Exit 1 if a shape failed.
"""

from __future__ import annotations

import json
import queue
import tempfile
import time
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.exemplars_cpu import ROOT, environment
from benchmarks.referee import unused
from evaluator.errors import RoleFailure
from evaluator.referee.core import RefereeCore
from evaluator.referee.open_shape import freeze_dims
from evaluator.referee.task_session import TaskSession
from evaluator.shapes.drawing import Drawn
from evaluator.shapes.sampler import SPLITS
from evaluator.shapes.space import IntegerDim
from evaluator.shapes.strata import draw_every
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog

#: After so long a shape has failed.
SHAPE_SECONDS = 30.0


def wanted(session: TaskSession) -> tuple[list[tuple[str, Drawn]], list[str]]:
    """Every shape with its split (``strata`` for those beyond the splits), none twice; and the strata beyond the caps."""
    shapes = [(split, drawn) for split in SPLITS for drawn in session.drawn.draw(split)]
    dropped: list[str] = []
    if any(isinstance(dim, IntegerDim) for dim in session.space.values()):
        every, dropped = draw_every(session.space, session.task.sha256, session.drawn.sampler().limits)
        shapes += [("strata", drawn) for drawn in every]
    return list({freeze_dims(drawn.dims): (split, drawn) for split, drawn in reversed(shapes)}.values())[
        ::-1
    ], dropped


def run_task(core: RefereeCore, name: str, most: int) -> dict[str, Any]:
    """One task: its shapes with the seconds that each took, what failed, and what was not run."""
    started = time.monotonic()
    task = catalog.load(name)
    row: dict[str, Any] = {"task": name, "level": task.level, "failures": [], "beyond_caps": []}
    row |= {"remarks": [], "not_run": 0, "shapes": []}
    source = TaskSource(name, task.source)
    try:
        session = TaskSession(core.fleet, source)
    except RoleFailure as failure:
        row["failures"].append(f"{failure.word}: {failure.sentence}")
    else:
        try:
            shapes, row["beyond_caps"] = wanted(session)
            row["remarks"] = [text for split in SPLITS if (text := session.drawn.sampler().remark(split))]
            row["drawing_s"] = round(time.monotonic() - started, 3)
            row["not_run"] = max(len(shapes) - most, 0)
            for split, drawn in shapes[:most]:
                at = opened(session, split, drawn)
                if at["failure"].startswith("out_of_memory") and core.fleet.room.widen(source.sha256):
                    # As an evaluation does: the task may have more, and its process begins again.
                    session.close()
                    session = TaskSession(core.fleet, source)
                    at = opened(session, split, drawn)
                row["shapes"].append(at)
                if session.process.dead:
                    session.close()
                    session = TaskSession(core.fleet, source)
        except RoleFailure as failure:
            row["failures"].append(f"{failure.word}: {failure.sentence}")
        finally:
            session.close()
    row["failures"] += [
        f"{at['stratum']} {at['dims']}: {at['failure']}" for at in row["shapes"] if at["failure"]
    ]
    row["elapsed_s"] = round(time.monotonic() - started, 3)
    return row


def opened(session: TaskSession, split: str, drawn: Drawn) -> dict[str, Any]:
    """One shape; the sentence of its failure is empty if the reference ran there."""
    started = time.monotonic()
    session.process.expires_at = started + SHAPE_SECONDS
    failure = ""
    try:
        with session.trial(drawn.dims):
            pass
    except RoleFailure as error:
        failure = f"{error.word}: {error.sentence}"[:400]
    except torch.OutOfMemoryError as error:
        failure = f"out_of_memory: the referee itself: {error}"[:400]
    took = round(time.monotonic() - started, 4)
    return {"split": split, "stratum": drawn.stratum, "dims": drawn.dims, "s": took, "failure": failure}


def run_part(device: str, names: list[str], most: int, until: float, results: Any, jobs: int) -> None:
    """In a process of its own: tasks one after another, each result handed over at once; ends with None."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            core = RefereeCore(device, Path(folder), "landlock", referees=jobs)
            try:
                results.put(core.fleet.environment())
                for name in names:
                    if time.time() > until:
                        break
                    results.put(run_task(core, name, most))
            finally:
                core.close()
    finally:
        results.put(None)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Tasks whose name contains this.")] = "",
    most: Annotated[int, typer.Option(help="Shapes per task; what is beyond is counted.")] = 80,
    part: Annotated[
        str, typer.Option(help="Which of how many parts of the catalogue, such as 2/4: for several GPUs.")
    ] = "1/1",
    jobs: Annotated[int, typer.Option(help="Referees side by side.")] = 1,
    seconds_total: Annotated[float, typer.Option(help="No task is begun later than this.")] = 3600.0,
    path: Annotated[
        Path | None, typer.Option("--json", help="Results; by default a file of today in docs/measurements.")
    ] = None,
    skip_known: Annotated[
        bool, typer.Option(help="Keep the tasks that the file has, run the others.")
    ] = False,
) -> None:
    """Open every task at all of its shapes; exit 1 when one fails."""
    if context.invoked_subcommand:
        return
    path = path or unused(
        ROOT / "docs" / "measurements" / f"{datetime.now(UTC):%Y-%m-%d}-strata-{device}.json"
    )
    rows: list[dict[str, Any]] = []
    if skip_known and path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    known = {row["task"] for row in rows}
    place, _, count = part.partition("/")
    if not (place.isdigit() and count.isdigit() and 1 <= int(place) <= int(count)):
        raise typer.BadParameter(f"--part {part}: give one such as 2/4")
    mine = catalog.list_tasks()[int(place) - 1 :: int(count)]
    names = [task.name for task in mine if only in task.name and task.name not in known]
    spawning = get_context("spawn")
    results = spawning.Queue()
    until = time.time() + seconds_total
    # Every process has a share of each level.
    parts = [names[number::jobs] for number in range(jobs)]
    workers = [
        spawning.Process(target=run_part, args=(device, part, most, until, results, jobs)) for part in parts
    ]
    for worker in workers:
        worker.start()
    facts: dict[str, Any] = {}
    running = len(workers)
    while running:
        try:
            result = results.get(timeout=5.0)
        except queue.Empty:
            running = sum(worker.is_alive() for worker in workers)
            continue
        if result is None:
            running -= 1
        elif "task" not in result:
            facts = result
        else:
            rows.append(result)
            write(
                path,
                {"device": device, "most": most, "jobs": jobs, "part": part},
                {**environment(), **facts},
                rows,
            )
            print(f"{len(rows)}/{len(names) + len(known)} {line(result)}", flush=True)
    for worker in workers:
        worker.join()
    left = len(names) + len(known) - len(rows)
    failures = sum(len(row["failures"]) for row in rows)
    print(
        f"{len(rows)} tasks, {sum(len(row['shapes']) for row in rows)} shapes, {failures} failures; "
        f"{sum(bool(row['beyond_caps']) for row in rows)} tasks with strata beyond the caps; {left} tasks not begun"
    )
    raise typer.Exit(1 if failures or any(worker.exitcode for worker in workers) else 0)


@app.command()
def merge(
    pieces: Annotated[list[Path], typer.Argument(help="JSON files of several parts.")],
    path: Annotated[Path, typer.Option("--json", help="Where all of them are written.")],
) -> None:
    """One file of several parts; exit 1 when a shape failed or a task of the catalogue is in none of them."""
    read = [json.loads(piece.read_text(encoding="utf-8")) for piece in pieces]
    rows = {row["task"]: row for report in read for row in report["rows"]}
    write(
        path, {"parts": [report["settings"] for report in read]}, read[0]["environment"], list(rows.values())
    )
    missing = [task.name for task in catalog.list_tasks() if task.name not in rows]
    failures = sum(len(row["failures"]) for row in rows.values())
    shapes = sum(len(row["shapes"]) for row in rows.values())
    print(f"{len(rows)} tasks, {shapes} shapes, {failures} failures; not run: {', '.join(missing) or 'none'}")
    raise typer.Exit(1 if failures or missing else 0)


def write(path: Path, settings: dict[str, Any], where: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The report so far, whole at any time."""
    report = {"program": "benchmarks.strata", "settings": settings, "environment": where}
    report |= {"tasks": len(rows), "rows": sorted(rows, key=lambda row: (row["level"], row["task"]))}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report) + "\n", encoding="utf-8")
    part.replace(path)


def line(row: dict[str, Any]) -> str:
    """A task in a line of text."""
    beyond = f"; beyond the caps: {', '.join(row['beyond_caps'])}" if row["beyond_caps"] else ""
    not_run = f"; {row['not_run']} shapes not run" if row["not_run"] else ""
    failed = "".join(f"\n    {failure}" for failure in row["failures"])
    return f"{row['task']}: {len(row['shapes'])} shapes in {row['elapsed_s']:.1f} s{beyond}{not_run}{failed}"


if __name__ == "__main__":
    app()
