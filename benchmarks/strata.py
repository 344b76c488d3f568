"""Does every task of the catalogue run at every shape that the referee draws for it?

    python -m benchmarks.strata --device cuda --out strata.json --seconds-total 500

Of each task the shapes of every split are opened as the referee opens them: the module is built, its weights are drawn anew, inputs
are drawn three times, and it runs and must repeat itself. Nothing is compared or timed. Stopped, or out of time, the same command
goes on with the tasks that are not in the file yet. The exit status is 1 when a task does not run somewhere.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluator.errors import RoleFailure
from evaluator.referee.core import RefereeCore
from evaluator.shapes.sampler import SPLITS
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog


def looked_at(core: RefereeCore, task: catalog.CatalogTask) -> dict[str, Any]:
    """One task at all shapes that are drawn for it."""
    started = time.monotonic()
    answer: dict[str, Any] = {"shapes": {}, "failed": []}
    try:
        session = core.session(TaskSource(task.name, task.source))
        drawn = {split: session.sample(split) for split in SPLITS}
    except RoleFailure as failure:
        return {**answer, "failed": [{"dims": None, "why": failure.sentence}], "seconds": 0.0}
    for split, shapes in drawn.items():
        answer["shapes"][split] = len(shapes)
        for dims in shapes:
            try:
                with session.trial(dims):
                    pass
            except RoleFailure as failure:
                answer["failed"].append({"split": split, "dims": dims, "why": failure.sentence})
                session = core.session(TaskSource(task.name, task.source))
    return {**answer, "seconds": round(time.monotonic() - started, 2)}


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="JSON file to write, or to go on with.")] = Path("strata.json"),
    only: Annotated[str, typer.Option(help="Tasks whose name contains this.")] = "",
    seconds_total: Annotated[float, typer.Option(help="No further task is begun after so long.")] = 3600.0,
) -> None:
    """Judges the tasks one after another."""
    until = time.monotonic() + seconds_total
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"tasks": {}}
    rows: dict[str, Any] = known["tasks"]
    wanted = [task for task in catalog.list_tasks() if only in task.name]
    with tempfile.TemporaryDirectory() as work_dir:
        core = RefereeCore(device, Path(work_dir), "landlock")
        try:
            environment = core.self_check()["device"]
            if rows and known["environment"] != environment:
                raise typer.BadParameter(f"{out} was written somewhere else; name another file")
            for task in wanted:
                if task.name in rows or time.monotonic() > until:
                    continue
                rows[task.name] = looked_at(core, task)
                document = {"environment": environment, "tasks": rows}
                out.write_text(json.dumps(document, indent=1), encoding="utf-8")
                print(_line(task.name, rows[task.name]), flush=True)
        finally:
            core.close()
    shapes = sum(sum(row["shapes"].values()) for row in rows.values())
    spent_s = sum(row["seconds"] for row in rows.values())
    left = sum(task.name not in rows for task in wanted)
    bad = {name: row for name, row in rows.items() if row["failed"] or not sum(row["shapes"].values())}
    print(f"{len(rows)} tasks at {shapes} shapes in {spent_s:.0f} s: {len(bad)} fail, {left} still to do")
    for name, row in bad.items():
        print(_line(name, row))
    raise typer.Exit(1 if bad else 0)


def _line(name: str, row: dict[str, Any]) -> str:
    said = f"{name}: {sum(row['shapes'].values())} shapes in {row['seconds']:.1f} s"
    return "\n".join(
        [said, *(f"    fails at {failure['dims']}: {failure['why']}" for failure in row["failed"])]
    )


if __name__ == "__main__":
    typer.run(main)
