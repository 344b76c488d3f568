"""`kernelwright verify`: checks whether a bundle still performs here as its evidence says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from services.commands.terminal import AsJson, Bundle, MinimumTier, give_up, print_json, print_line

if TYPE_CHECKING:
    from agent.upkeep.verifying import Verification

EXITS = {"holds": 0, "regressed": 1, "unmeasured": 2}


def verify(
    bundle: Bundle,
    max_regression: Annotated[
        str, typer.Option(help="By how much a speedup may fall, such as 2% or 0.02.")
    ] = "2%",
    effort: Annotated[
        str, typer.Option(help="confirm (as the evidence was made) or screen (quicker, wider intervals).")
    ] = "confirm",
    as_json: AsJson = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: Annotated[Path | None, typer.Option(help="Folder for caches.")] = None,
) -> None:
    """Measure a bundle once more with the referee and compare with its evidence, after a change of torch, driver, power limit or GPU.

    Its code runs in the referee's sandbox alone. Exit status: 0 it holds, 1 it is slower or wrong, 2 it could not be measured.

    Example: kernelwright verify layernorm-kernelwright.zip --max-regression 5%
    """
    from agent.errors import UnreadableBundle
    from agent.upkeep.reading import read_bundle
    from agent.upkeep.verifying import verify as measure
    from evaluator.cli import progress_bar
    from evaluator.client import Referee
    from evaluator.errors import EvaluatorError

    if effort not in ("confirm", "screen"):
        raise typer.BadParameter(f"{effort!r} is neither confirm nor screen")
    allowed = share(max_regression)
    try:
        read = read_bundle(bundle)
        with (
            Referee(read.device, minimum_tier=minimum_tier, work_dir=work_dir) as referee,
            progress_bar() as bar,
        ):
            row = bar.add_task("starting", total=None)

            def tell(progress: dict[str, Any]) -> None:
                total = progress["total"] or None
                bar.update(row, description=progress["text"], completed=progress["done"], total=total)

            found = measure(read, referee, max_regression=allowed, effort=effort, on_progress=tell)
    except (UnreadableBundle, EvaluatorError, OSError) as error:
        give_up(f"could not be measured: {error}", EXITS["unmeasured"])
    if as_json:
        print_json(found.as_json(), indent=2)
    else:
        show(Console(), found)
    raise typer.Exit(EXITS[found.result])


def share(text: str) -> float:
    """Parse a share such as `2%` or `0.02`, at least 0 and below 1."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{text!r} is no share; write 2% or 0.02")
    return value


def show(console: Console, found: Verification) -> None:
    """Print the result for people."""
    color = {"holds": "green", "regressed": "red"}.get(found.result, "yellow")
    console.print(f"[bold {color}]{found.result}[/]: ", end="")
    for sentence in found.sentences:
        print_line(sentence, console)
    for change in found.changes:
        print_line(f"  changed: {change}", console)
    if not any(shape.now for shape in found.shapes):
        return
    against = "now / evidence" if found.against == "evidence" else "now / best baseline"
    table = Table("shape", "evidence", "now", against, "")
    for shape in found.shapes:
        dims = ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "as given"
        table.add_row(
            dims.replace("[", "\\["),
            _interval(shape.recorded),
            _interval(shape.now),
            "-"
            if shape.ratio is None
            else f"{shape.ratio[0]:.3f} ({shape.ratio[1]:.3f}-{shape.ratio[2]:.3f})",
            shape.status + (", stale" if shape.stale else ""),
        )
    console.print(table)


def _interval(measured: tuple[float, float, float] | None) -> str:
    if measured is None:
        return "-"
    return f"{measured[0]:.2f}x ({measured[1]:.2f}-{measured[2]:.2f})"
