"""KernelBench modules at the sizes in their files: is each judged, how fast, and how well does the reference agree with itself.

    python -m benchmarks.real_modules --kernelbench PATH --candidates FOLDER --minutes 9 --out FILE.json
    python -m benchmarks.real_modules --kernelbench PATH --candidates FOLDER --jobs 4 --only batch --out FILE.json
    python -m benchmarks.real_modules --kernelbench PATH --candidates FOLDER --plain --out FILE.json

The repository is read where it lies. Of its levels 1 to 3 some modules are drawn, and for each these candidates are judged as
``evaluate-batch`` would: the reference itself (``own``), the reference as a CUDA graph (``graph``), and
with ``--candidates`` a language model's file ``level1__NAME.py`` (``model``). Parts, each skipped where it has its rows already:

* ``fits``: one eager call of each module in a plain process, and the memory that it takes. Only modules that fit in half count.
* ``verdicts``: one referee, one candidate after the other.
* ``aa``: the reference against itself, eager against eager, at the file's own sizes.
* ``batch``: the same candidates through ``evaluate-batch`` with ``--jobs`` referees: candidates a minute, everything included.
* ``plain``: reference and model's candidate without any referee, timed by ``triton.testing.do_bench`` in a process a module.

``--out`` is written after every row. ``--minutes`` ends the run after the row at hand, and the same command goes on with the rest.
The first row of a module in a work folder is its first look; with later ones, baselines are kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.errors import ProposalFailed
from benchmarks.kernelbench_sample import Module, sample
from benchmarks.real_module_figures import crashed, own_speedup, rounded, row_of, show
from benchmarks.real_module_work import OutOfTime, Report, Work, candidate_source
from benchmarks.shared import ROOT
from evaluator.client import Referee
from evaluator.errors import RefereeLost
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring import calibration, measure
from evaluator.shapes.space import defaults
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import as_json

PARTS = ("fits", "verdicts", "aa", "batch", "plain")
KINDS = ("own", "graph", "model")
#: A row that takes longer is ended, and is a row all the same.
ROW_S = 300.0
#: After the end of the time given, a row at hand may take so much longer before it is given up, to be tried again.
_GRACE_S = 40.0
_PLAIN_S = 180.0


# -- fits --------------------------------------------------------------------------------------------------------------


def child(arguments: Sequence[str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """JSON lines of :mod:`benchmarks.plain_modules`, and how it failed, if it did."""
    command = [sys.executable, "-m", "benchmarks.plain_modules", *arguments]
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
        watchdog = threading.Timer(max(limit_s, 1.0), process.kill)
        watchdog.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                lines.append(json.loads(line))
        status = process.wait()
        watchdog.cancel()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1]
    return lines, "" if status == 0 else f"its process ended with status {status}: {last[:300]}"


def measure_fits(work: Work) -> None:
    """Which modules run plainly, and in how much memory; one that ends the process is a row, and the rest goes on."""
    found = work.report.content["modules"]
    while left := [module for module in work.modules if module.name not in found]:
        work.report.check()
        # A CPU's memory is measured as the process's, so each module gets one.
        batch = left if work.device == "cuda" else left[:1]
        rows, failure = child(
            ["fits", work.device, *(str(module.path) for module in batch)], work.report.left_s + _GRACE_S
        )
        for module, row in zip(batch, rows, strict=False):
            found[module.name] = {name: value for name, value in row.items() if name != "path"}
        if failure and len(rows) < len(batch) and work.report.left_s > 0:
            found[batch[len(rows)].name] = {"fits": False, "error": failure, "peak_bytes": None}
        work.report.save()
    due = work.due()
    work.say(f"{len(due)} of {len(work.modules)} modules run and fit in half of the device's memory")


# -- verdicts ----------------------------------------------------------------------------------------------------------


@contextmanager
def ended_in_time(report: Report, referee: Referee) -> Iterator[None]:
    """Kills the referee when a row takes too long, or the time given is over for good."""
    timer = threading.Timer(max(min(ROW_S, report.left_s + _GRACE_S), 1.0), referee.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def judge_all(work: Work) -> None:
    """A row for every module and kind that has none."""
    rows = work.report.content["rows"]
    known = work.report.content["modules"]
    todo = [
        (module, kind)
        for module in work.modules
        for kind in (work.kinds if known.get(module.name, {"fits": True})["fits"] else ("own",))
        if f"{module.name}/{kind}" not in rows
    ]
    if not todo:
        return
    started = time.monotonic()
    with Referee(work.device, work_dir=work.folder) as referee:
        work.report.know(referee.self_check()["device"])
        work.report.content["sessions"][-1]["referee_start_s"] = time.monotonic() - started
        for module, kind in todo:
            work.report.check()
            row = judge(work, referee, module, kind)
            if row is None:
                continue
            rows[f"{module.name}/{kind}"] = row
            work.report.save()
            stages = " ".join(f"{name} {spent:.1f}" for name, spent in row["stages_s"].items())
            work.say(
                f"{module.name} {kind}: {row['wall_s']:.1f} s, {row['verdict']}, {row['reason'][:200]}; {stages}"
            )


def judge(work: Work, referee: Referee, module: Module, kind: str) -> dict[str, Any] | None:
    """One row; None where there is no such candidate.

    Raises:
        OutOfTime: the row was given up at the end of the time given.
    """
    looked = work.folder / "looked" / module.name
    looked.parent.mkdir(parents=True, exist_ok=True)
    first_look = not looked.exists()
    started = time.monotonic()
    made_s = 0.0
    try:
        with ended_in_time(work.report, referee):
            source = candidate_source(work, module, kind)
            if source is None:
                return None
            made_s = time.monotonic() - started
            started = time.monotonic()
            looked.touch()
            verdict = referee.evaluate(
                TaskSource(module.name, module.source),
                CandidateSource(source, "external", kind),
                deadline_s=ROW_S,
                submitted=True,
            )
        row = row_of(as_json(verdict))
    except ProposalFailed as failure:
        work.report.content.setdefault("not_proposed", {})[f"{module.name}/{kind}"] = str(failure)[:500]
        return None
    except Exception as fault:  # noqa: BLE001 - whatever goes wrong is a row, never the end
        if isinstance(fault, RefereeLost) or not referee.alive:
            if work.report.left_s <= 0 and time.monotonic() - started < ROW_S:
                raise OutOfTime from None
            referee.restart()
        words = (
            "it took longer than this program waits"
            if isinstance(fault, RefereeLost)
            else type(fault).__name__
        )
        row = crashed(f"{words}: {fault}"[:500])
    row |= {"module": module.name, "kind": kind, "first_look": first_look, "session": work.report.session}
    return {**row, "wall_s": time.monotonic() - started, "made_s": made_s}


# -- the reference against itself --------------------------------------------------------------------------------------


def measure_agreement(work: Work) -> None:
    """A/A at the file's own sizes, for every module that has no run."""
    runs = work.report.content["aa"]
    todo = [module for module in work.due() if module.name not in runs]
    if not todo:
        return
    core = RefereeCore(work.device, work.folder, "landlock")
    try:
        work.report.know(core.fleet.environment())
        for module in todo:
            work.report.check()
            runs[module.name] = agree(core, TaskSource(module.name, module.source))
            work.report.save()
            work.say(f"A/A of {module.name}: {runs[module.name]}")
    finally:
        core.close()


def agree(core: RefereeCore, task: TaskSource) -> dict[str, Any]:
    """Log ratios of one run, or why there is none."""
    try:
        looked = core.lint(task, ROW_S)
        if not looked.ok:
            return {"why_not": looked.reason[:300]}
        session = core.session(TaskSource(task.name, looked.source))
        shape = session.open(defaults(session.space))
        with core.fleet.device_lock.exclusive():
            ratios, variant = calibration.run(
                session, shape, measure.effort_for("screen", gpu=core.fleet.gpu)
            )
    except Exception as failure:  # noqa: BLE001 - whatever goes wrong is a row, never the end
        return {"why_not": f"{type(failure).__name__}: {failure}"[:300]}
    return {"variant": variant, "log_ratios": rounded(ratios)}


# -- batch -------------------------------------------------------------------------------------------------------------


def run_batch(work: Work, jobs: int) -> None:
    """Everything once more through `evaluate-batch`, as far as the time goes; what an earlier run judged is not judged again."""
    work.report.check()
    folder = work.folder / "batch-of-all"
    folder.mkdir(parents=True, exist_ok=True)
    manifest, out = folder / "manifest.jsonl", folder / "results.jsonl"
    found = work.report.content["batch"]
    found.setdefault("rows", {})
    with manifest.open("w", encoding="utf-8") as file:
        for module in work.due():
            for kind in work.kinds:
                try:
                    source = candidate_source(work, module, kind)
                except ProposalFailed:
                    continue
                if source is not None and f"{module.name}/{kind}" not in found["rows"]:
                    line = {"id": f"{module.name}/{kind}", "task": {"source": module.source}}
                    file.write(
                        json.dumps({**line, "candidate": {"source": source}, "deadline_s": ROW_S}) + "\n"
                    )
    command = [
        sys.executable,
        "-m",
        "evaluator",
        "evaluate-batch",
        str(manifest),
        "--out",
        str(out),
        "--fresh",
    ]
    command += ["--device", work.device, "--jobs", str(jobs), "--work-dir", str(folder / "work")]
    before = len(out.read_text().splitlines()) if out.exists() else 0
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)
    try:
        process.wait(max(work.report.left_s, 1.0) if work.report.ends_at < float("inf") else None)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    elapsed_s = time.monotonic() - started
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for record in records[before:]:
        row = {**row_of(record["verdict"]), "wall_s": record["verdict"]["elapsed_s"]}
        found["rows"][record["id"]] = {
            name: row[name] for name in ("verdict", "reason", "wall_s", "stages_s")
        }
    run = {
        "jobs": jobs,
        "judged": len(records) - before,
        "elapsed_s": elapsed_s,
        "session": work.report.session,
    }
    found.setdefault("runs", []).append(run)
    work.report.save()
    work.say(f"batch: {run['judged']} candidates in {elapsed_s:.0f} s with {jobs} referees")


# -- plain -------------------------------------------------------------------------------------------------------------


def measure_plainly(work: Work) -> None:
    """Milliseconds without a referee, beside the referee's ratio at the same sizes."""
    found = work.report.content["plain"]
    table = Table(
        "module", "eager ms", "compiled ms", "candidate ms", "plain ratio", "referee's", title="timed plainly"
    )
    for module in work.due():
        path = work.candidates / f"{module.name}.py" if work.candidates else None
        if path is None or not path.exists():
            continue
        if module.name not in found:
            work.report.check()
            rows, failure = child(["times", work.device, str(module.path), str(path)], _PLAIN_S)
            found[module.name] = rows[0] if rows else {"ms": {}, "errors": {"all": failure}}
            found[module.name].pop("path", None)
            work.report.save()
        table.add_row(module.name[:40], *plain_cells(work, module, found[module.name]))
    work.console.print(table)


def plain_cells(work: Work, module: Module, row: dict[str, Any]) -> list[str]:
    """Times and both ratios."""
    times = row["ms"]
    cells = [
        f"{times[name]:.3f}" if name in times else "" for name in ("eager", "compile_default", "candidate")
    ]
    best = min((times[name] for name in ("eager", "compile_default") if name in times), default=None)
    ratio = best / times["candidate"] if best and "candidate" in times else None
    judged = work.report.content["rows"].get(f"{module.name}/model")
    referee = own_speedup(judged) if judged else None
    cells.append(f"{ratio:.2f}x" if ratio else next(iter(row["errors"].values()), "")[:60])
    return [*cells, f"{referee:.2f}x" if referee else judged["verdict"] if judged else ""]


# -- the program -------------------------------------------------------------------------------------------------------


def main(
    kernelbench: Annotated[Path, typer.Option(help="A copy of KernelBench.")],
    count: Annotated[int, typer.Option(help="Modules drawn.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 7,
    part: Annotated[str, typer.Option(help="Only these of those drawn: 0:20 is the first twenty.")] = ":",
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    candidates: Annotated[Path | None, typer.Option(help="Folder with a model's files.")] = None,
    minutes: Annotated[float | None, typer.Option(help="End after the row at hand.")] = None,
    only: Annotated[str, typer.Option(help=f"Parts: {', '.join(PARTS)}.")] = "fits,verdicts,aa",
    kinds: Annotated[str, typer.Option(help="Candidates.")] = ",".join(KINDS),
    jobs: Annotated[int, typer.Option(help="Referees of the batch; adds the part batch.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="The part plain alone.")] = False,
    work_dir: Annotated[
        Path | None, typer.Option(help="Of the referees: an empty one makes first looks.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The JSON; continued if it is there.")] = None,
) -> None:
    """Judge KernelBench modules at their own sizes."""
    parts = {"plain"} if plain else {*only.split(","), *(["batch"] if jobs else [])}
    wanted = tuple(kind for kind in KINDS if kind in kinds.split(","))
    if unknown := (parts - set(PARTS)) | (set(kinds.split(",")) - set(KINDS)):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}")
    ends_at = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    report = Report(out, ends_at)
    report.begin(
        {"count": count, "seed": seed, "device": device, "parts": sorted(parts), "kinds": list(wanted)}
    )
    folder = work_dir or Path(tempfile.gettempdir()) / f"kernelwright-real-modules-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    modules = sample(kernelbench, count, seed)[slice(*(int(end) if end else None for end in part.split(":")))]
    work = Work(device, modules, wanted, candidates, folder, report, Console(width=200))
    steps = {
        "fits": lambda: measure_fits(work),
        "verdicts": lambda: judge_all(work),
        "aa": lambda: measure_agreement(work),
        "batch": lambda: run_batch(work, jobs or 4),
        "plain": lambda: measure_plainly(work),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for part in PARTS:
            if part in parts:
                steps[part]()
    except OutOfTime:
        work.say("the time given is over; the same command goes on with the rest")
    finally:
        show(report.content, work.console)
        report.save()
    held = [bar["held"] for bar in report.content["bars"]]
    raise typer.Exit(1 if False in held else 0)


if __name__ == "__main__":
    typer.run(main)
