"""`kernelwright cost`: finds the measured device that serves a module's calls at the lowest cost.

    kernelwright cost on-h200-kernelwright.zip on-l4-kernelwright.zip

Each bundle holds one device's measurements; only shapes timed on all devices are compared. Prices come from the settings
(`KERNELWRIGHT_GPU_PRICES`, `KERNELWRIGHT_ENERGY_PRICE`), because none are built in; without them, only times and joules are shown.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluator.counting import counted
from services.commands.terminal import AsJson, print_json

if TYPE_CHECKING:
    from agent.performance.money import Serving
    from evaluator.verdict import Verdict

_EVIDENCE = "evidence.json"
_MOST_BYTES = 256 << 20
#: Phases in order of precedence for each shape: that of the delivered file first, then those of the candidates in it.
_PHASES = ("held_out", "validation", "screen")
_NO_PRICE = "no price set"


class Unreadable(Exception):
    """A file is not valid evidence; the message says why."""


def cost(
    bundles: Annotated[list[Path], typer.Argument(help="Bundles (zip or folder) or their evidence.json.")],
    as_json: AsJson = False,
) -> None:
    """Say which of the measured devices serves a module's calls cheapest. Exit 2 if the bundles cannot be compared."""
    from agent.performance.money import Prices, serving
    from services.settings import get_settings

    console = Console(stderr=True)
    settings = get_settings()
    try:
        found = [_evidence(path) for path in bundles]
        tasks = {str((one.get("task") or {}).get("sha256")) for one in found}
        if len(tasks) > 1:
            raise Unreadable("these bundles are of different modules, so that their calls cannot be compared")
    except Unreadable as problem:
        console.print(Text(str(problem)), soft_wrap=True)
        raise typer.Exit(2) from None
    lines = serving([_merged(one) for one in found], Prices(settings.gpu_prices, settings.energy_price))
    if not lines:
        console.print("No shape was timed on every device: there is nothing to compare.")
        raise typer.Exit(2)
    if as_json:
        print_json([{**asdict(line), "calls_per_dollar": line.calls_per_dollar} for line in lines])
        return
    Console().print(_table(lines))
    priced = {line.device for line in lines if line.usd_per_million is not None}
    missing = sorted({line.device for line in lines} - priced)
    if missing:
        console.print(
            Text(
                f"No price applies to {', '.join(missing)}: set KERNELWRIGHT_GPU_PRICES, by these names, and "
                "KERNELWRIGHT_ENERGY_PRICE only where joules were measured."
            )
        )


def _table(lines: list[Serving]) -> Table:
    table = Table(
        "device", "what runs", "µs per call", "J per call", "$ per million calls", "calls per $", "",
        title=f"mean over {counted(lines[0].shapes, 'shape')} that every device timed, by traffic where "
        "it is known",
    )  # fmt: skip
    for line in lines:
        table.add_row(
            Text(line.device),
            "optimized" if line.optimized else "reference",
            f"{line.call_us:,.1f}",
            "not measured" if line.joules is None else f"{line.joules:.3g}",
            _NO_PRICE if line.usd_per_million is None else f"{line.usd_per_million:.4g}",
            _NO_PRICE if line.calls_per_dollar is None else f"{line.calls_per_dollar:,.0f}",
            "cheapest" if line.is_cheapest else "",
        )
    return table


def _evidence(path: Path) -> dict[str, Any]:
    """Read a bundle's evidence.json; the bundle is untrusted."""
    try:
        if path.is_dir():
            text = (path / _EVIDENCE).read_bytes()
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if Path(entry.filename).name == _EVIDENCE]
                if len(entries) != 1 or entries[0].file_size > _MOST_BYTES:
                    raise Unreadable(f"{path} is no bundle: it must hold one {_EVIDENCE}")
                text = archive.read(entries[0])
        else:
            text = path.read_bytes()
        value = json.loads(text)
    except (OSError, ValueError, zipfile.BadZipFile, RecursionError) as error:
        raise Unreadable(f"{path} cannot be read as a bundle: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("verdicts"), list):
        raise Unreadable(f"{path} is no evidence of a bundle")
    return value


def _merged(evidence: Mapping[str, Any]) -> Verdict:
    """Merge all shapes at which the delivered file or its first member was timed into one verdict."""
    from evaluator.verdict import from_json

    verdicts = [one for one in evidence["verdicts"] if isinstance(one, dict)]
    members = evidence.get("members") or [{}]
    wanted = ((evidence.get("optimized") or {}).get("sha256"), members[0].get("sha256"))
    shapes: list[Any] = []
    for phase in _PHASES:
        for verdict in verdicts:
            if (
                verdict.get("phase") == phase
                and (verdict.get("candidate") or {}).get("sha256") in wanted
                and verdict.get("environment", {}).get("device_name")
                == evidence.get("environment", {}).get("device_name")
            ):
                shapes += [row for row in verdict.get("shapes") or () if isinstance(row, dict)]
    # The first entry for a shape counts.
    first = {json.dumps(row.get("dims"), sort_keys=True): row for row in reversed(shapes)}
    environment = evidence.get("environment")
    return from_json({"verdict": "accepted", "environment": environment, "shapes": list(first.values())})
