"""`python -m evaluator`: judge candidates on a machine that has nothing but torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evaluator.commands.ceilings import ceilings
from evaluator.commands.doctor import doctor
from evaluator.commands.evaluate_batch import evaluate_batch
from evaluator.commands.lint import lint
from evaluator.commands.options import Fresh, MinimumTier, TaskFile, WorkDir, errors, text_of
from evaluator.commands.profile import profile
from evaluator.commands.shapes import shapes
from evaluator.counting import counted
from evaluator.errors import EvaluatorError
from evaluator.folders import default_work_dir, verdicts_folder
from evaluator.precision import with_precision
from evaluator.request import Request
from evaluator.shapes.sampler import SPLITS
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import ShapeResult, Summary, Verdict, by_size, compiled_words
from evaluator.verdict import as_json as verdict_json

app = typer.Typer(
    help="The referee: checks a candidate against its task at many shapes and times it against the best baseline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_SHOWN_KERNELS = 6
#: A relative half-width of a shape's interval beyond which the machine counts as noisy.
_NOISY = 0.1
_EFFORTS = ("screen", "confirm")


@app.callback()
def _main() -> None:
    """The referee of Kernelwright."""


@app.command()
def evaluate(
    task: TaskFile,
    candidate: Annotated[Path, typer.Argument(help="Candidate file: ModelNew.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    effort: Annotated[str, typer.Option(help="screen (quick) or confirm (to the full interval).")] = "screen",
    splits: Annotated[
        str, typer.Option(help="Comma-separated: visible, validation, held_out, adversarial.")
    ] = ("visible,adversarial"),
    as_json: Annotated[bool, typer.Option("--json", help="The verdict as JSON on standard output.")] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
    precision: Annotated[
        str | None, typer.Option(help="default, strict, tf32, bf16, fp16 or fp8, instead of the file's.")
    ] = None,
    fresh: Fresh = False,
    energy: Annotated[
        bool,
        typer.Option(
            "--energy", help="With confirm: also measure joules per call; a minute each at three shapes."
        ),
    ] = False,
) -> None:
    """Judge one candidate.

    `accepted` means that it is correct at every shape; whether it is faster is the speedup beside it, which may be below 1.

    Exit status: 0 accepted, 1 rejected, 2 could not judge.
    """
    chosen = [split.strip() for split in splits.split(",") if split.strip()]
    for option, given, known in (("effort", [effort], _EFFORTS), ("splits", chosen, SPLITS)):
        for name in given:
            if name not in known:
                errors.print(f"--{option}: {name!r} is none of {', '.join(known)}", markup=False)
                raise typer.Exit(2)
    sources = text_of(task), text_of(candidate)
    try:
        reference = with_precision(TaskSource(task.stem, sources[0]), precision)
    except ValueError as error:
        errors.print(f"--precision: {error}", markup=False)
        raise typer.Exit(2) from None
    try:
        proposal = CandidateSource(sources[1], "external", candidate.name)
        request = Request(reference, proposal, effort, tuple(chosen), submitted=True, energy=energy)
        verdict = _verdict(request, device, minimum_tier, work_dir or default_work_dir(), fresh=fresh)
    except EvaluatorError as error:
        errors.print(f"could not judge: {error}")
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(verdict_json(verdict), indent=2))
    else:
        print_verdict(Console(), verdict)
    raise typer.Exit({"accepted": 0, "not_judged": 2, "task_rejected": 2}.get(verdict.verdict, 1))


def _verdict(request: Request, device: str, minimum_tier: str, work_dir: Path, *, fresh: bool) -> Verdict:
    """Returns the stored verdict if there is one, without starting a referee, which takes seconds."""
    from evaluator.client import Referee
    from evaluator.devices import open_device
    from evaluator.verdict_store import VerdictStore

    if not fresh and not request.energy:
        kept = VerdictStore(verdicts_folder(work_dir)).answer(request, open_device(device), minimum_tier)
        if kept is not None:
            return kept
    with Referee(device, minimum_tier=minimum_tier, work_dir=work_dir) as referee, progress_bar() as bar:
        row = bar.add_task("starting", total=None)

        def show(progress: dict[str, Any]) -> None:
            bar.update(
                row,
                description=progress["text"],
                completed=progress["done"],
                total=progress["total"] or None,
            )

        return referee.judge(request, on_progress=show)


def progress_bar() -> Progress:
    """A progress bar on standard error that disappears when done; for the progress of `Referee.evaluate`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
    )


def print_verdict(console: Console, verdict: Verdict) -> None:
    """Prints a verdict as a table."""
    color = "green" if verdict.verdict == "accepted" else "red"
    console.print(f"[bold {color}]{verdict.verdict}[/]: ", end="")
    console.print(verdict.reason, markup=False, highlight=False)
    if verdict.reused:
        console.print(f"judged here at {verdict.measured_at}; --fresh judges it again", highlight=False)
    for finding in verdict.findings:
        console.print(f"  {finding.severity} {finding.rule}: {finding.evidence}", markup=False)
    if verdict.labels:
        console.print(f"  kind of win: {', '.join(verdict.labels)}".replace("_", " "), markup=False)
    for kernel in verdict.kernels[:_SHOWN_KERNELS]:
        words = f"  {kernel.share:6.1%}  {kernel.kind:<8}  {kernel.name}  ({kernel.calls} per call)"
        console.print(words, markup=False, highlight=False)
    if verdict.detail:
        console.print(verdict.detail, markup=False, highlight=False)
    timed = [shape for shape in verdict.shapes if shape.timed]
    if not timed:
        return
    table = Table(
        "shape", "split", "best baseline", "baseline µs", "candidate µs", "speedup", "95 % interval", ""
    )
    for shape in timed:
        assert shape.ci95 is not None
        low, high = shape.ci95
        table.add_row(
            ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "-",
            shape.split + (f", {shape.stratum}" if shape.stratum else ""),
            shape.best_baseline,
            f"{shape.baseline_us:.1f}",
            f"{shape.candidate_us:.1f}",
            f"{shape.speedup:.2f}x",
            f"{low:.2f}-{high:.2f}",
            shape.decision,
        )
    console.print(table)
    for words in compiled_words(shape.baselines for shape in timed):
        console.print(f"  {words}", markup=False, highlight=False)
    console.print(headline(verdict.summary), markup=False, highlight=False)
    if words := noise(timed):
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    _print_energy(console, verdict)
    environment = verdict.environment
    aa = verdict.timing["aa"]
    agreement = f"A/A {aa['median']:.4f}" if aa else "A/A not measured"
    console.print(
        f"{environment['device_name']}, torch {environment['torch']}, precision {verdict.precision}, "
        f"sandbox tier {environment['sandbox_tier']}, {agreement}",
        markup=False,
    )


def headline(summary: Summary) -> str:
    """The headline figure, by which candidates are ranked, the shapes it covers, and the strata beside it."""
    assert summary.geomean_ci95 is not None
    low, high = summary.geomean_ci95
    words = f"{summary.geomean_speedup:.2f}x [{low:.2f}, {high:.2f}]"
    if traffic := summary.traffic:
        words += (
            f" weighted by traffic, over {counted(traffic['shapes'], 'shape')} ({traffic['share']:.0%} of it); their calls together run "
            f"{traffic['time_speedup']:.2f}x as fast"
        )
    strata = by_size(summary.by_stratum)
    return words + (f"; by size: {strata}" if strata else "")


def noise(timed: Sequence[ShapeResult]) -> str:
    """A sentence if a shape's interval is wider than `_NOISY`; otherwise empty.

    The headline's interval is no measure of noise: it also covers the choice of shapes.
    """
    wide = [math.sqrt(row.ci95[1] / row.ci95[0]) - 1 for row in timed if row.ci95]
    if max(wide) <= _NOISY:
        return ""
    return (
        f"the machine is noisy: intervals of single shapes are up to ±{100 * max(wide):.0f} %; "
        "`doctor` looks for causes, `--effort confirm` measures longer"
    )


def _print_energy(console: Console, verdict: Verdict) -> None:
    """Prints joules, if they were measured."""
    energy = verdict.energy or {}
    if energy.get("why_not"):
        console.print(energy["why_not"], markup=False, highlight=False)
    for shape in verdict.shapes:
        joules = shape.energy
        if not joules:
            continue
        where = ", ".join(f"{name}={value}" for name, value in shape.dims.items()) or "-"
        if joules.get("why_not"):
            console.print(f"energy at {where}: {joules['why_not']}", markup=False, highlight=False)
            continue
        old, new = joules["baseline"], joules["candidate"]
        console.print(
            f"energy at {where}: {new['joules']:.3g} J per call against {old['joules']:.3g} J ({joules['ratio']:.2f}x less, "
            f"{joules['low']:.2f} to {joules['high']:.2f} over {counted(joules['quads'], 'quad')}), without idle power "
            f"{new['joules_above_idle']:.3g} against {old['joules_above_idle']:.3g} J",
            markup=False,
            highlight=False,
        )


app.command()(evaluate_batch)
app.command()(lint)
app.command()(doctor)
app.command()(shapes)
app.command()(ceilings)
app.command()(profile)


@app.command(hidden=True)
def referee(
    device: Annotated[str, typer.Option()] = "cpu",
    work_dir: Annotated[str, typer.Option()] = "",
    minimum_tier: Annotated[str, typer.Option()] = "landlock",
    client_pid: Annotated[int, typer.Option()] = 0,
    verdicts_dir: Annotated[str, typer.Option()] = "",
    referees: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """The process behind evaluator.client; speaks JSON lines on standard input and output."""
    from evaluator.daemon import serve

    serve(device, work_dir, minimum_tier, client_pid, verdicts_dir, referees)
