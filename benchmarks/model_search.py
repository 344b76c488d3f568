"""What a language model adds: one attempt, the best of several, rounds of search; the library alone, the model alone, both.

    python -m benchmarks.model_search run --kernelbench PATH --device cuda --model NAME --work out/search
    python -m benchmarks.model_search requests out/search > requests.jsonl
    python -m benchmarks.model_search run ... --answers answers.jsonl
    python -m benchmarks.model_search table out/search --write

Tasks are 24 modules of KernelBench's levels 1 to 3 and 8 forward tasks of the catalogue, in bfloat16 alone, both drawn by
``random.Random(13).sample``, or those named by ``--tasks``. Each is one job of the agent (`benchmarks.origins`, origin ``both``):
the model's first attempts are asked for before anything is judged, the library's and the compiler's candidates are judged, then
the model's, then rounds of search go on from all of them. `run` ends with requests in files, `requests` collects those of all jobs
(the format of OpenAI's Batch API), and the same `run` with their answers goes on.

The model's candidates may call the library, which prompts describe on a GPU, and its rounds go on from the best of all, so "model" is
what a job with one brings beyond its own best library candidate; it is not a model without the library.

When a job has ended, or with `--confirm` when it waits for answers, the best candidate of each arm is chosen by the validation shapes,
where all arms were judged alike, and judged once at the held-out shapes by `confirm`. An arm without an accepted candidate counts
as 1.0x: its user keeps the reference.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent.candidates import Candidate
from agent.messages import Reply
from agent.providers.batch import REQUESTS
from agent.providers.list_prices import ListPrice, list_price
from agent.records import Records
from agent.stores.folder import FolderStore
from benchmarks.kernelbench_sample import sample
from benchmarks.origins import (
    Answers,
    Device,
    HeldOut,
    Index,
    Rounds,
    Runs,
    Samples,
    Seat,
    SecondsTotal,
    Settings,
    Validation,
    Visible,
    Work,
    of_machines,
    reports_in,
    rows_in,
    work_through,
)
from benchmarks.origins_summary import FINAL, geomean, interval_over_tasks
from benchmarks.shared import MEASUREMENTS, ROOT, write_new
from evaluator.precision import with_precision
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog

_SEED, _MODULES, _TASKS = 13, 24, 8
_MODEL = "llm"
#: Whose list prices are assumed.
PRICED = ("claude-opus-5", "gpt-5.5")
_REPAIRED = " repaired"
#: What each arm may choose from: a candidate's origin and label.
ARMS: dict[str, Callable[[Candidate], bool]] = {
    "library": lambda one: one.origin in ("human", "compiler"),
    "model, one attempt": lambda one: _is_first(one) and re.search(r" #1\b", one.label) is not None,
    "model, best attempt": lambda one: _is_first(one),
    "model": lambda one: one.origin == _MODEL,
    "both": lambda one: True,
}


def _is_first(one: Candidate) -> bool:
    return one.origin == _MODEL and " #" in one.label and _REPAIRED not in one.label


class Study(Runs):
    """Jobs of which each arm's best candidate is judged in the end."""

    def can_go_on(self, row: Mapping[str, Any] | None, name: str, origin: str) -> bool:
        """Also one that waits, if its arms are wanted."""
        return super().can_go_on(row, name, origin) or (
            self.settings.confirm and row is not None and row["state"] == "waiting" and "arms" not in row
        )

    def add_least(self, task: TaskSource, row: dict[str, Any]) -> None:
        """Nothing: a profile at each held-out shape, for a figure that no table here shows."""

    def add_more(self, task: TaskSource, row: dict[str, Any], store: FolderStore) -> None:
        """Adds ``arms``, by name: label, sha256 and held-out figures of the chosen candidate, or None; and ``asked``."""
        row["asked"] = _asked(store)
        if row["state"] not in FINAL and not (self.settings.confirm and row["state"] == "waiting"):
            return
        arms, judged = dict[str, Any](), dict[str, dict[str, Any]]()
        described = self.referee.describe(task)
        source = TaskSource(task.name, described.source or task.source)
        held_out = {"held_out": self._shapes(task)["held_out"]} if described.ok else None
        for name, chosen in chosen_by_arm(store).items():
            if chosen is not None and chosen.sha256 not in judged:
                verdict = self.referee.evaluate(
                    source,
                    CandidateSource(chosen.source, chosen.origin, chosen.label),
                    effort="confirm",
                    splits=("held_out",),
                    shapes=held_out,
                )
                if verdict.verdict == "not_judged":
                    row["state"] = "not confirmed"  # the next run confirms again
                    row["reason"] = verdict.reason
                    return
                judged[chosen.sha256] = {
                    "label": chosen.label,
                    "sha256": chosen.sha256,
                    "verdict": verdict.verdict,
                    "reason": verdict.reason,
                    **asdict(verdict.summary),
                }
            arms[name] = judged[chosen.sha256] if chosen is not None else None
        row["arms"] = arms


def chosen_by_arm(store: FolderStore) -> dict[str, Candidate | None]:
    """Each arm's fastest candidate at the validation shapes; None where none was accepted."""
    speedups: dict[str, float] = {}
    proposed = [one for one in store.candidates() if one.label != "optimized.py"]
    for one in proposed:
        verdict = store.verdict(one.sha256, "validation")
        if verdict is not None and verdict.verdict == "accepted" and verdict.summary.geomean_speedup:
            speedups[one.sha256] = verdict.summary.geomean_speedup
    return {
        name: max(
            (one for one in proposed if is_in(one) and one.sha256 in speedups),
            key=lambda one: speedups[one.sha256],
            default=None,
        )
        for name, is_in in ARMS.items()
    }


def _asked(store: FolderStore) -> dict[str, Any]:
    """What the model was asked and cost: requests, tokens of prompts and answers, and the word of its candidates' screens."""
    records = Records(store)
    replies = [one for name in records.requests() if isinstance(one := records.outcome(name), Reply)]
    screens = [
        store.verdict(one.sha256, "screen")
        for one in store.candidates()
        if one.origin == _MODEL and one.label != "optimized.py"
    ]
    return {
        "requests": len(replies),
        "prompt_tokens": sum(one.prompt_tokens for one in replies),
        "completion_tokens": sum(one.completion_tokens for one in replies),
        "words": dict(Counter(one.verdict for one in screens if one is not None)),
    }


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry per arm over jobs that ended: geometric mean with its interval over tasks, how many are faster, and the slowest."""
    totals = []
    for name in ARMS:
        found = [row["arms"][name] for row in rows]
        speedups = [_speedup(one) for one in found]
        certain = [one for one in found if _speedup(one) > 1.0 and one and one["geomean_ci95"][0] > 1.0]
        totals.append(
            {
                "arm": name,
                "tasks": len(found),
                "geomean_speedup": geomean(speedups),
                "geomean_ci95": interval_over_tasks(speedups),
                "faster": len(certain),
                "worst": min(speedups, default=None),
                "rejected": sum(one is not None and one["verdict"] != "accepted" for one in found),
            }
        )
    return totals


def cost_usd(asked: Mapping[str, Any], price: ListPrice) -> float:
    """What a job's tokens would cost at this price."""
    given, made = price.usd_per_million_tokens
    return (asked["prompt_tokens"] * given + asked["completion_tokens"] * made) / 1e6


def gain(rows: Sequence[Mapping[str, Any]], over: str) -> dict[str, Any]:
    """How much faster both together are than one arm, over jobs that ended."""
    ratios = [_speedup(row["arms"]["both"]) / _speedup(row["arms"][over]) for row in rows]
    return {"over": over, "ratio": geomean(ratios), "ci95": interval_over_tasks(ratios)}


def _speedup(one: Mapping[str, Any] | None) -> float:
    """Of a chosen candidate at the held-out shapes; 1 where there is none, or where it was refused there."""
    return float(one["geomean_speedup"] or 1.0) if one and one["verdict"] == "accepted" else 1.0


def show(rows: Sequence[Mapping[str, Any]], console: Console) -> dict[str, Any]:
    """Prints a line per task and per arm; returns the totals."""
    tasks = Table("task", "state", *ARMS, "candidates", "tokens", "device s", title="held out")
    for row in rows:
        arms, asked = row.get("arms") or {}, row["asked"]
        words = ", ".join(f"{count} {word}" for word, count in sorted(asked["words"].items()))
        tasks.add_row(
            row["task"],
            row["state"],
            *(_told(arms.get(name)) for name in ARMS),
            words,
            str(asked["prompt_tokens"] + asked["completion_tokens"]),
            f"{row['device_s']:.0f}",
        )
    console.print(tasks)
    ended = [row for row in rows if row.get("arms")]
    if not ended:
        return {}
    arms, gains = summarize(ended), [gain(ended, name) for name in ("library", "model")]
    table = Table(
        "arm", "tasks", "speedup", "95 % interval", "faster with certainty", "worst", "refused held out"
    )
    for one in arms:
        low, high = one["geomean_ci95"] or (0.0, 0.0)
        table.add_row(
            one["arm"],
            str(one["tasks"]),
            f"{one['geomean_speedup'] or 0:.2f}x",
            f"{low:.2f} to {high:.2f}",
            str(one["faster"]),
            f"{one['worst'] or 0:.2f}x",
            str(one["rejected"]),
        )
    console.print(table)
    for one in gains:
        low, high = one["ci95"] or (0.0, 0.0)
        console.print(
            f"both over {one['over']}: {one['ratio'] or 0:.2f}x [{low:.2f}, {high:.2f}]", highlight=False
        )
    tokens = [row["asked"]["prompt_tokens"] + row["asked"]["completion_tokens"] for row in ended]
    costs: dict[str, float] = {}
    for model in PRICED:
        if price := list_price(model):
            costs[model] = statistics.median(cost_usd(row["asked"], price) for row in ended)
            told = (
                f"at the list price of {model}, read on {price.read_on}: ${costs[model]:.2f} a task (median)"
            )
            console.print(told, highlight=False)
    median = {
        "tokens": statistics.median(tokens),
        "device_s": statistics.median(row["device_s"] for row in ended),
        "usd_at_list_price": costs,
    }
    console.print(
        f"{len(ended)} of {len(rows)} jobs judged at held-out shapes; medians: {median['tokens']} tokens, {median['device_s']} s of the device",
        highlight=False,
    )
    return {"arms": arms, "gains": gains, "medians": median}


def _told(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    if one["verdict"] != "accepted":
        return str(one["verdict"])
    return f"{one['geomean_speedup']:.2f}x" if one["geomean_speedup"] else ""


def in_half(source: str) -> str:
    """A task of the catalogue with bfloat16 as its only dtype: most that have it name float32 first, and are judged in that."""
    source = re.sub(r'("dtype": Choice\()[^)]*\)', r'\1"bfloat16")', source)
    return source.replace('dtype: str = "float32"', 'dtype: str = "bfloat16"')


def drawn(kernelbench: Path | None, names: Sequence[str], precision: str | None = None) -> dict[str, str]:
    """The study's tasks, or those that are named, by name; with a tier for the modules of KernelBench, which name none.

    Raises:
        typer.BadParameter: a task is unknown.
    """
    modules = sample(kernelbench, _MODULES, _SEED) if kernelbench is not None else []
    known = {one.name: with_precision(TaskSource(one.name, one.source), precision).source for one in modules}
    half = sorted(
        task.name
        for task in catalog.list_tasks()
        if "bfloat16" in (source := catalog.load(task.name).source) and "forward_backward" not in source
    )
    known |= {name: in_half(catalog.load(name).source) for name in random.Random(_SEED).sample(half, _TASKS)}
    if not names:
        return known
    listed = {task.name for task in catalog.list_tasks()} - known.keys()
    known |= {name: catalog.load(name).source for name in names if name in listed}
    if unknown := [name for name in names if not any(one.startswith(name) for one in known)]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}")
    return {name: source for name, source in known.items() if name.startswith(tuple(names))}


app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def run(
    model: Annotated[str, typer.Option(help="Name of the model, for the record.")],
    device: Device = "cpu",
    index: Index = None,
    seat: Seat = "1/1",
    kernelbench: Annotated[Path | None, typer.Option(help="A copy of KernelBench.")] = None,
    tasks: Annotated[str, typer.Option(help="Only these, or those whose names begin so (commas).")] = "",
    precision: Annotated[
        str | None, typer.Option(help="Of KernelBench's modules: default, strict or tf32.")
    ] = None,
    visible: Visible = 2,
    validation: Validation = 2,
    held_out: HeldOut = 3,
    samples: Samples = 2,
    rounds: Rounds = 4,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Judge the best so far at held-out shapes where a job waits.")
    ] = False,
    answers: Answers = None,
    seconds_total: SecondsTotal = 1e9,
    work: Work = ROOT / "out/search",
) -> None:
    """Run jobs until they wait for answers, or to their end."""
    ends_at = time.monotonic() + seconds_total - 5.0
    console = Console(width=190)
    sources = drawn(kernelbench, [name.strip() for name in tasks.split(",") if name.strip()], precision)
    counts = {"visible": visible, "validation": validation, "held_out": held_out, "adversarial": 0}
    settings = Settings(
        device, ("both",), counts, model=model, samples=samples, rounds=rounds, confirm=confirm
    )
    work_through(Study, settings, sources, work, seat, ends_at, console, answers, index)
    show(rows_in([work]), console)


@app.command()
def requests(work: Annotated[Path, typer.Argument(help="Folder of the runs.")]) -> None:
    """Print the requests that wait for answers, of all jobs."""
    for path in sorted(work.glob(f"jobs/*.both/batch/{REQUESTS}")):
        typer.echo(path.read_text(encoding="utf-8"), nl=False)


@app.command()
def table(
    pieces: Annotated[list[Path], typer.Argument(help="Pieces, folders of them, or written JSON.")],
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
) -> None:
    """The tables over several pieces."""
    reports, rows = reports_in(pieces), rows_in(pieces)
    totals = show(rows, Console(width=190))
    if write:
        device = reports[0]["settings"]["device"]
        document = {
            "program": "benchmarks.model_search",
            **of_machines(reports),
            **totals,
            # Why one waits is where its requests lie on this machine.
            "rows": [row | {"reason": ""} if row["state"] == "waiting" else row for row in rows],
        }
        write_new(MEASUREMENTS, f"model-search-{device}", document)


if __name__ == "__main__":
    app()
