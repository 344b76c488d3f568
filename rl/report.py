"""`python -m rl.report RUN`: the run's report, one HTML file that needs nothing else, and its figures for TensorBoard.

Everything in it is read from the run's folder (docs/training-runs.md). The ablation table compares with other runs of which
`rl.evaluate` has made comparisons, or shows a replay's arms and claims.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agent.runs.files import Run, RunUnknown, run_in
from evaluator.keeping import replacing
from rl.errors import DataError, JournalError, RLError
from rl.journal import Journal
from rl.reports.page import arms_of, html

_HACKS = "kernelwright.hacks/1"
_MOST_BYTES = 32 << 20


def main(
    run: Annotated[Path, typer.Argument(help="A stage's output folder.")],
    comparison: Annotated[
        Path | None,
        typer.Option(help="A folder of `rl.evaluate`; its comparison is copied into the run's folder."),
    ] = None,
    ablation: Annotated[
        list[Path] | None,
        typer.Option(help="Other runs' folders with comparisons, or one JSON file of a replay."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; `report.html` in the run's folder by default.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write the figures as TensorBoard scalars into this folder, too.")
    ] = None,
) -> None:
    """Write a run's report."""
    try:
        if comparison is not None:
            source = comparison / "comparison.json"
            if not source.is_file():
                raise DataError(f"{comparison} holds no comparison.json; `python -m rl.evaluate` writes one")
            with replacing(run / "comparison.json") as file:
                file.write(source.read_text(encoding="utf-8", errors="replace"))
        found = run_in(run, run.resolve().name)
        page = html(found, _ablation(ablation or [], found), _hacks(run))
        target = out or run / "report.html"
        with replacing(target) as file:
            file.write(page)
        if tensorboard is not None:
            write_scalars(found, tensorboard)
    except RunUnknown:
        raise _ended(f"{run} holds no run: neither metrics.jsonl nor config.json is there") from None
    except (RLError, OSError) as error:
        raise _ended(str(error)) from None
    Console().print(str(target), markup=False, highlight=False, soft_wrap=True)


def _ended(why: str) -> typer.Exit:
    # No markup: names of folders may hold brackets.
    Console(stderr=True).print(why, style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2)


def write_scalars(run: Run, folder: Path) -> int:
    """The run's figures as TensorBoard events; how many were written.

    Raises:
        DataError: the package `tensorboard` is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DataError(
            "TensorBoard's events need the package `tensorboard`, of kernelwright[rl]: pip install tensorboard"
        ) from None
    written = 0
    writer: Any = SummaryWriter(str(folder))
    try:
        for step in run.steps:
            for name, value in step.figures.items():
                if value is not None:
                    writer.add_scalar(f"{run.overview.stage or 'run'}/{name}", value, step.number)
                    written += 1
    finally:
        writer.close()
    return written


def _ablation(given: list[Path], own: Run) -> dict[str, Any]:
    files = [path for path in given if path.is_file()]
    if files:
        if len(given) > 1:
            raise DataError("--ablation takes one file of a replay, or folders of runs")
        return _read(files[0])
    comparisons = {own.overview.name: own.comparison} if given else {}
    for path in given:
        try:
            comparisons[path.name] = run_in(path, path.name).comparison
        except RunUnknown:
            raise DataError(f"{path} holds no run") from None
    return arms_of(comparisons)


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is larger than {_MOST_BYTES} bytes")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path} is no JSON") from None
    return found if isinstance(found, dict) else {}


def _hacks(run: Path) -> list[tuple[str, str, int]]:
    """Kinds and rules in the run's database of hacks, with how many files each has; [] without a database."""
    path = run / "hacks.journal"
    if not path.is_file():
        return []
    try:
        with Journal(path, _HACKS, write=False) as journal:
            times = Counter(
                (str(one.get("kind"))[:20], str(one.get("rule"))[:100])
                for one in journal.records
                if "rule" in one
            )
    except JournalError:
        return [("damaged", "the database cannot be read", 0)]
    return [(*name, count) for name, count in times.most_common(50)]


if __name__ == "__main__":
    typer.run(main)
