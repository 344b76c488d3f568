"""Planted attacks: does each get the verdict that its own first lines announce, and is an honest one judged the same afterwards?

    python -m benchmarks.attacks --write
    python -m benchmarks.attacks --device cuda --out FOLDER

The files are those of `tests/attacks`; on a GPU those that need one and those that do not. One that is right and only
tries to look fast must not come out above 1.05. An honest candidate is judged before the first and after each.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agent.compiler.cuda_graph import cuda_graph_source
from benchmarks.shared import MEASUREMENTS, ROOT, Out, environment, quiet, write_new
from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.attacks.test_candidates import HERE, SHAPES, TASK, expectation
from tests.attacks.test_candidates_large_cuda import LARGE_SHAPES, LARGE_TASK

LIMIT = 1.05
_HONEST = (HERE / "candidates" / "honest.py").read_text(encoding="utf-8")
_FIRST = {"visible": [{"rows": 64, "cols": 96}], "adversarial": []}
_PRODUCT = {
    "visible": [{"rows": 512, "inner": 512, "cols": 512, "dtype": "float32"}],
    "adversarial": [{"rows": 3, "inner": 17, "cols": 33, "dtype": "float32"}],
}
#: Files that would otherwise be waited for.
_DEADLINES_S = {"hangs": 8.0, "endless_kernel": 25.0}


def planted(device: str) -> list[Path]:
    """Every file, those for a GPU last."""
    folders = [
        "candidates",
        *(["candidates_cuda", "candidates_large", "candidates_twins"] if device == "cuda" else []),
    ]
    return [path for folder in folders for path in sorted((HERE / folder).glob("*.py"))]


def attacked(path: Path, source: str) -> tuple[TaskSource, dict[str, list[dict[str, Any]]]]:
    """The task and the shapes that a file attacks."""
    if path.parent.name == "candidates_large":
        return LARGE_TASK, LARGE_SHAPES
    named = re.search(r"^# task: (\w+)$", source, re.MULTILINE)
    return (
        (TASK, SHAPES) if named is None else (TaskSource(named[1], catalog.load(named[1]).source), _PRODUCT)
    )


def submitted(path: Path, source: str) -> str:
    """What the referee gets of a file: itself, or the CUDA graph that is made of it."""
    return (
        cuda_graph_source(source, path.stem, "ModelNew") if path.parent.name == "candidates_twins" else source
    )


def judge(core: RefereeCore, path: Path) -> dict[str, Any]:
    """One file's verdict beside what it announces."""
    source = path.read_text(encoding="utf-8")
    words, rule = expectation(source)
    task, shapes = attacked(path, source)
    started = time.monotonic()
    request = Request(
        task,
        CandidateSource(submitted(path, source), "external", path.stem),
        shapes=shapes,
        deadline_s=_DEADLINES_S.get(path.stem, 90.0),
    )
    verdict = core.evaluate(request, quiet)
    rules = [finding.rule for finding in verdict.findings]
    geomean = verdict.summary.geomean_speedup
    gains = "\n# gains: nothing\n" in source and geomean is not None and geomean > LIMIT
    return {
        "name": path.stem,
        "expected": words,
        "finding": rule,
        "verdict": verdict.verdict,
        "findings": rules,
        "geomean_speedup": geomean,
        "reason": verdict.reason,
        "detail": verdict.detail.replace(f"{ROOT}/", "")[-600:],
        "as_announced": verdict.verdict in words and (rule is None or rule in rules) and not gains,
        "elapsed_s": time.monotonic() - started,
    }


def honest(core: RefereeCore) -> str:
    """The verdict of an honest candidate at one small shape."""
    request = Request(TASK, CandidateSource(_HONEST, "human", "honest"), shapes=_FIRST)
    return core.evaluate(request, quiet).verdict


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[str, typer.Option(help="Files whose name contains this.")] = "",
    begin: Annotated[str, typer.Option(help="The first file, to go on where --limit ended.")] = "",
    limit: Annotated[float, typer.Option(help="Begin no new file after so many seconds.")] = 1e9,
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """Judge every planted attack; exit 1 when one gets another verdict than it announces."""
    console = Console(width=180)
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        core = RefereeCore(device, Path(folder), "landlock")
        try:
            before = honest(core)
            every = planted(device)
            stems = [path.stem for path in every]
            for path in every[stems.index(begin) if begin else 0 :]:
                if only not in path.stem:
                    continue
                if time.monotonic() - started > limit:
                    console.print(f"the time is up before {path.stem}")
                    break
                row = {**judge(core, path), "honest_afterwards": honest(core)}
                rows.append(row)
                held = row["as_announced"] and row["honest_afterwards"] == before == "accepted"
                console.print(
                    f"{'held' if held else '[red]NOT HELD[/]'} {row['name']}: {row['verdict']}, "
                    f"{row['geomean_speedup'] or '-'}, then honest: {row['honest_afterwards']}; {row['reason'][:160]}",
                    highlight=False,
                )
            facts = core.fleet.environment()
        finally:
            core.close()
    failed = [row["name"] for row in rows if not row["as_announced"]]
    harmed = [row["name"] for row in rows if row["honest_afterwards"] != before]
    console.print(
        f"{len(rows) - len(failed)} of {len(rows)} as announced; not: {', '.join(failed) or 'none'}; the next honest "
        f"candidate was judged otherwise after: {', '.join(harmed) or 'none'}"
    )
    if write:
        report = {
            "program": "benchmarks.attacks",
            "settings": {"device": device, "only": only},
            "environment": {**environment(), **facts},
            "not_as_announced": failed,
            "harmed_the_next": harmed,
            "rows": rows,
        }
        write_new(out, f"attacks-{device}", report)
    raise typer.Exit(1 if failed or harmed else 0)


if __name__ == "__main__":
    typer.run(main)
