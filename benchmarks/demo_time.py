"""How long `make demo` takes from nothing: service start, first accepted candidate, bundle, re-check; and where the job's time goes.

    python -m benchmarks.demo_time --runs 3 --out docs/measurements/2026-11-26-demo-time.json

Each run has a data folder and a cache of its own, both empty: dependencies are installed, nothing is compiled. With `--warm` all
runs share a cache (the compiler's headers). Processor seconds are those of all processes of the demo, where this user may
make control groups; the load of others lengthens wall time, and these hardly.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
_PART = re.compile(r"^[│|]\s*(?P<name>[^│|]+?)\s*[│|]\s*(?P<seconds>[0-9.]+)\s*[│|]$", re.MULTILINE)
_VERDICTS = (
    "SELECT c.label, v.phase, v.word, v.body FROM verdicts v JOIN candidates c "
    "ON c.job_id = v.job_id AND c.sha256 = v.sha256 ORDER BY v.id"
)


class Account:
    """A control group (v1) that counts processor seconds; None where it cannot be made."""

    def __init__(self) -> None:
        self._folder: Path | None = _ACCOUNTS / f"kernelwright-demo-{os.getpid()}"
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError:
            self._folder = None

    def enter(self) -> None:
        """Called in the child before it becomes the demo."""
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float | None:
        """Used so far."""
        return int((self._folder / "cpuacct.usage").read_text()) / 1e9 if self._folder is not None else None

    def close(self) -> None:
        """Remove it."""
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()


def one_run(folder: Path, cache: Path, seconds: float) -> dict[str, Any]:
    """Run the demo once."""
    account = Account()
    command = [
        sys.executable,
        "-m",
        "services.demo",
        "--plain",
        "--data-dir",
        str(folder),
        "--seconds",
        str(seconds),
    ]
    began, busy = time.monotonic(), _busy_s()
    done = subprocess.run(
        command,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        preexec_fn=account.enter,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, cpu_s = time.monotonic() - began, account.seconds()
    busy_s = _busy_s() - busy
    account.close()
    if done.returncode != 0:
        raise SystemExit(f"the demo ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    parts = {found["name"]: float(found["seconds"]) for found in _PART.finditer(done.stdout)}
    return {
        "parts_s": parts,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1) if cpu_s is not None else None,
        "others_cpu_s": round(busy_s - cpu_s, 1) if cpu_s is not None else None,
        "verdicts": _verdicts(folder / "kernelwright.db"),
    }


def _busy_s() -> float:
    """Processor seconds of the whole machine."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _verdicts(database: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(database) as connection:
        rows = connection.execute(_VERDICTS).fetchall()
    found = []
    for label, phase, word, body in rows:
        verdict = json.loads(body)
        stages_s = {name: round(value, 1) for name, value in verdict["stages_s"].items() if value >= 0.05}
        timed = sum(bool(row.get("timed")) for row in verdict["shapes"])
        elapsed_s = round(verdict["elapsed_s"], 1)
        found.append(
            {
                "label": label,
                "phase": phase,
                "verdict": word,
                "elapsed_s": elapsed_s,
                "timed": timed,
                "stages_s": stages_s,
            }
        )
    return found


def main(
    runs: Annotated[int, typer.Option(help="How often.")] = 3,
    warm: Annotated[
        bool, typer.Option("--warm", help="Share a cache among runs, and fill it beforehand.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="See `make demo`.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="JSON.")] = None,
) -> None:
    """Time the demo."""
    found = []
    with tempfile.TemporaryDirectory(prefix="kernelwright-demo-time-") as name:
        folder = Path(name)
        for number in range(runs + warm):
            cache = folder / ("cache" if warm else f"cache-{number}")
            one = one_run(folder / f"data-{number}", cache, seconds)
            if number or not warm:
                found.append(one)
            print(
                json.dumps({key: value for key, value in one.items() if key != "verdicts"}), file=sys.stderr
            )
    table = Table(
        "part", "median seconds", "all", title="make demo, warm cache" if warm else "make demo, empty cache"
    )
    for part in found[0]["parts_s"]:
        every = [one["parts_s"][part] for one in found if part in one["parts_s"]]
        table.add_row(part, f"{statistics.median(every):.1f}", ", ".join(f"{value:.1f}" for value in every))
    Console().print(table)
    if out is not None:
        where = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        out.write_text(json.dumps({"environment": where, "warm": warm, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
