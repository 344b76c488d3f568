"""`device` (`ceilings` on a bare node): measures this machine's peak rates, stores them, and shows them as a
table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evaluator.commands.options import WorkDir, errors
from evaluator.errors import EvaluatorError
from evaluator.profiling import ceilings as measuring

#: Suffix of a name, the divisor of its figure, and the resulting unit.
_UNITS = (
    ("_bytes_per_s", 1e9, "GB/s"),
    ("_flops_per_s", 1e12, "TFLOP/s"),
    ("_per_s", 1e9, "G/s"),
    ("_s", 1e-6, "µs"),
)


def ceilings(
    device: Annotated[str, typer.Option(help="cpu or cuda; the GPU by default, if there is one.")] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again even if figures are stored.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on standard output.")] = False,
    work_dir: WorkDir = None,
) -> None:
    """Measure this device's peak rates: memory, caches, arithmetic by dtype, launches.

    Exit status: 0, or 2 if it cannot.
    """
    from evaluator.folders import default_work_dir

    try:
        found = measuring.ceilings(work_dir or default_work_dir(), pick(device), fresh=fresh)
    except EvaluatorError as error:
        errors.print(f"could not measure: {error}", markup=False)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(Console(), found)


def pick(device: str) -> str:
    """For ``auto`` the accelerator that responds, otherwise the CPU."""
    from evaluator.devices import BACKENDS, CPU

    if device != "auto":
        return device
    for backend in BACKENDS.values():
        try:
            if backend.is_accelerator and backend.open(None):
                return backend.name
        except EvaluatorError:
            continue
    return CPU.name


def show(console: Console, found: dict[str, Any]) -> None:
    """Prints the figures as a table, and what they were measured on."""
    environment = found["environment"]
    table = Table("ceiling", "measured", "unit", "at each size tried")
    for name, value in found["rates"].items():
        table.add_row(*_row(name, value), _sizes(name, found["tried"].get(name, ())))
    console.print(table)
    driver = f", driver {environment['driver']}" if environment.get("driver") else ""
    console.print(
        f"{environment['device_name']}{driver}, torch {environment['torch']}, measured at {found['measured_at']} in "
        f"{found['elapsed_s']} s; --fresh measures again",
        markup=False,
        highlight=False,
    )


def _sizes(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """``1024 MiB 3921, 2048 MiB 4012 (best)``: shows whether the best is on a plateau."""
    best = max((row["rate"] for row in rows), default=None)
    told = []
    for row in rows:
        size = (
            f"{row['size'] >> 20} MiB"
            if name.endswith("_bytes_per_s")
            else f"{row['size']}\N{SUPERSCRIPT TWO}"
        )
        told.append(f"{size} {_row(name, row['rate'])[1]}{' (best)' if row['rate'] == best else ''}")
    return ", ".join(told)


def _row(name: str, value: Any) -> tuple[str, str, str]:
    for ending, divisor, unit in _UNITS:
        if name.endswith(ending):
            words = name.removesuffix(ending).replace("_", " ")
            return (
                words,
                "-" if value is None else f"{value / divisor:.4g}",
                "not here" if value is None else unit,
            )
    if name == "cache_bytes":
        return "last cache", f"{value / (1 << 20):.4g}", "MiB"
    return name.replace("_", " "), str(value), ""
