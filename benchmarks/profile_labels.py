"""Whether `profile` names the bottleneck of 20 tasks as `profile_labels.json` expects it, with reasons written beforehand.

Labels are for the device that the file names; on another one the table shows what differs and counts nothing.

    python -m benchmarks.profile_labels --device cuda --json profile_labels_found.json
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evaluator.client import Referee
from evaluator.errors import EvaluatorError
from evaluator.profiling import ceilings
from evaluator.profiling.profile import profile_task
from kernelbench_tasks import catalog

_LABELS = Path(__file__).with_suffix(".json")


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    only: Annotated[str, typer.Option(help="Tasks whose name contains this.")] = "",
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the profiles are written.")] = None,
) -> None:
    """Profiles each labelled task at its size."""
    expected = json.loads(_LABELS.read_text(encoding="utf-8"))
    rows = [row for row in expected["labels"] if only in row["task"]]
    table = Table("task", "expected", "found", "share", "agrees", "us", "device us", "roofline", "s")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, Referee(device, work_dir=Path(folder)) as referee:
        measured = ceilings.ceilings(Path(folder), device)
        for row in rows:
            started = time.monotonic()
            try:
                seen = profile_task(
                    referee,
                    catalog.load(row["task"]).source,
                    measured["rates"],
                    device=device,
                    dims=row["dims"],
                ).as_json()
            except EvaluatorError as error:
                seen = {"label": "failed", "sentences": [str(error)]}
            elapsed_s = time.monotonic() - started
            found.append({**row, "found": seen, "elapsed_s": round(elapsed_s, 1)})
            figures = [f"{seen[name] * 1e6:.1f}" if name in seen else "" for name in ("steady_s", "device_s")]
            table.add_row(
                row["task"],
                row["label"],
                seen["label"],
                f"{seen.get('share', 0):.2f}",
                str(seen.get("confirmed")),
                *figures,
                f"{seen.get('roofline', 0):.2f}",
                f"{elapsed_s:.1f}",
            )
            print(row["task"], row["label"], seen["label"], *seen["sentences"], sep="\n  ", flush=True)
            if as_json is not None:
                as_json.write_text(json.dumps({"ceilings": measured, "profiles": found}, indent=1))
    Console(width=150).print(table)
    name = measured["environment"]["device_name"]
    if expected["device"].rpartition(" ")[2] in str(name):
        right = sum(row["label"] == row["found"]["label"] for row in found)
        print(f"{right} of {len(found)} as expected on {name}")
    else:
        print(f"labels are for {expected['device']}, this is {name}: nothing is counted")


if __name__ == "__main__":
    typer.run(main)
