"""One complete job per origin and task: what each origin alone brings, at unseen shapes, and what it costs.

    python -m benchmarks.origins --work out/origins --tasks row_sum
    python -m benchmarks.origins --device cuda --index 0 --work out/origins --seconds-total 530
    python -m benchmarks.origins merge out/origins --write
    python -m benchmarks.origins --origins batch --model NAME --answers answers.jsonl --work out/origins
    python -m benchmarks.origins --device cuda --kernelbench PATH --precision strict --origins library --work out/kernelbench

Tasks are those of the catalogue, or with `--kernelbench` modules drawn from a copy of it, at the sizes in their files. Each job is
the agent's own (`agent.job.run_job`) with one origin; `library` is what needs no model, together, `batch` a model alone, `both` all of
them. It proposes, screens, validates, delivers one file and judges that once, by `confirm`, at held-out shapes. All origins of a
task are judged by one referee, whose session stays open: the task is opened and its baselines compiled once. So they are judged
at the same shapes, the first few of those that the referee draws; the held-out ones are drawn once per task from fresh
randomness, and no proposer is shown them. Origins take turns at being first, and what a job spent on baselines is told apart.

Everything lies in the work folder and is kept as it comes: run the same command again and it goes on, in the middle of a job if
need be. Several GPUs of a host share a work folder; each takes the next free task, those first that it has begun. So do
several processes on one GPU, of which each must know how many they are (`--seat`): most of a job's time goes into compiling. A
job with a model ends with requests in `jobs/TASK.ORIGIN/batch/requests.jsonl` until `--answers` has theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from agent.job import run_job
from agent.providers.batch import ANSWERS, REQUESTS
from agent.spec import Budget, JobOutcome, JobSpec, ModelChoice, Strategy
from agent.stores.folder import FolderStore
from benchmarks.kernelbench_sample import sample
from benchmarks.origins_summary import FINAL, latest, row_of, show
from benchmarks.own_referee import OwnReferee
from benchmarks.shared import MEASUREMENTS, ROOT, Out, environment, nth_visible, write_new, write_whole
from evaluator.client import Referee
from evaluator.errors import EvaluatorError
from evaluator.precision import TIERS, with_precision
from evaluator.profiling.ceilings import ceilings
from evaluator.profiling.profile import profile_task
from evaluator.sources import TaskSource
from kernelbench_tasks import catalog

#: Chosen before anything was measured: tasks with a library kernel for both devices or for GPUs, quick ones to compile first.
TASKS = (
    "softmax", "rmsnorm", "layernorm_relu_add", "swiglu", "logsumexp_difference", "row_moments", "log_bessel_k",
    "rms_norm_quantize_fp8", "sparsemax", "complex_soft_limit", "mx_quantize", "hash_grid_encoding", "int4_matmul",
    "bias_gelu", "residual_add_rmsnorm", "segmented_cumsum",
)  # fmt: skip
ORIGINS = ("compiler", "human", "library", "batch", "both")
#: Of a job, where they are several.
_PROPOSERS = {"library": ("human", "compiler"), "batch": ("llm",), "both": ("human", "compiler", "llm")}
#: With requests to a model.
_ASKING = ("batch", "both")
#: A program that is out of time ends with this status; what it has is kept.
OUT_OF_TIME = 3


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        device: "cpu" or "cuda".
        origins: which, of `ORIGINS`.
        counts: shapes per split; 0 for as many as the referee draws.
        candidates: how many a job may judge; None for no limit.
        precision: tier of the tasks, instead of the one in their files; None for that.
        model, samples: of the batch.
        rounds: of search after the first attempts.
        usd_per_million: prices of the batch's tokens, input and output.
        skip_own: leave out the first shape of each split, the module's own size.
        confirm: of `benchmarks.model_search`: judge the best so far at held-out shapes where a job waits for answers.
    """

    device: str
    origins: tuple[str, ...]
    counts: dict[str, int]
    candidates: int | None = None
    precision: str | None = None
    model: str = ""
    samples: int = 2
    rounds: int = 0
    usd_per_million: tuple[float, float] = (0.0, 0.0)
    skip_own: bool = False
    confirm: bool = False


class Runs:
    """The jobs of one process.

    Args:
        settings: what is run.
        sources: the tasks.
        work: folder that other processes share.
        device: name of the device, for the folder of its ceilings.
        seat: which of how many processes on this device this one is.
        ends_at: monotonic time at which the process ends, whatever it does.
        console: where progress goes.
    """

    def __init__(
        self,
        settings: Settings,
        sources: dict[str, str],
        work: Path,
        device: str,
        seat: tuple[int, int],
        ends_at: float,
        console: Console,
    ) -> None:
        self.settings = settings
        self.sources = sources
        self.work = work
        self.ends_at = ends_at
        self.console = console
        #: Of this process's folder of compiled files, and of its claims.
        self.place = f"{device}-{seat[0]}"
        # Before the referee takes the device: while something else runs there, they would come out too low. One measures for all.
        self.ceilings = ceilings(work / "referees" / device, settings.device)
        self.referee = OwnReferee(settings.device, work / "referees" / self.place, seat[1])
        self.rows: list[dict[str, Any]] = []
        #: By task and shape; its origins share them.
        self._least_us: dict[tuple[str, str], float] = {}
        self.report: dict[str, Any] = {
            "program": "benchmarks.origins",
            "piece": secrets.token_hex(8),
            "settings": asdict(settings),
            "beside": seat[1],
            "environment": {**environment(), **self.referee.core.fleet.environment()},
            "ceilings": self.ceilings,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": self.rows,
        }

    def save(self) -> None:
        """Writes the piece."""
        write_whole(self.work / f"piece-{self.report['piece']}.json", self.report)

    def task(self, name: str, first: int) -> None:
        """All jobs of a task that are not finished; ``first`` says which origin begins."""
        origins = self.settings.origins
        turn = first % len(origins)
        known = {(row["task"], row["origin"]): row for row in rows_in([self.work])}
        for origin in (*origins[turn:], *origins[:turn]):
            if self.can_go_on(known.get((name, origin)), name, origin):
                task = with_precision(TaskSource(name, self.sources[name]), self.settings.precision)
                row = self._job(task, origin)
                self.rows.append(row)
                self.save()
                told = (row["held_out"] or {}).get("geomean_speedup")
                self.console.print(
                    f"{name}, {origin}: {row['state']}, {f'{told:.2f}x' if told else row['reason']}; "
                    f"{row['device_s']:.0f} s, {self.ends_at - time.monotonic():.0f} s left",
                    highlight=False,
                )

    def _job(self, task: TaskSource, origin: str) -> dict[str, Any]:
        folder = self.work / "jobs" / f"{task.name}.{origin}"
        store = FolderStore(folder / "store")
        began, opening_s = time.monotonic(), 0.0
        try:
            spec = self._spec(task, origin, folder)
            # Where shapes are drawn, the task is opened for it.
            opening_s = time.monotonic() - began
            outcome = run_job(
                spec, store, cast("Referee", self.referee), folder / "out", profile=self._profile
            )
        except Exception as error:  # noqa: BLE001 - one task's fault must not cost the others their turn
            outcome = JobOutcome("error", None, f"{type(error).__name__}: {error}"[:500])
            self.referee.restart()
        row = row_of(task.name, origin, outcome, store)
        row["answers_sha256"] = self._answers_sha256(task.name, origin)
        row["device_s"] += opening_s
        self.add_least(task, row)
        try:
            self.add_more(task, row, store)
        except EvaluatorError as error:
            row["state"], row["reason"] = "error", f"{type(error).__name__}: {error}"[:500]
            self.referee.restart()
        return row

    def add_more(self, task: TaskSource, row: dict[str, Any], store: FolderStore) -> None:
        """For studies that ask more of a job that ran."""

    def can_go_on(self, row: Mapping[str, Any] | None, name: str, origin: str) -> bool:
        """Whether there is something to do for a job with this newest row; one that waits needs other answers than it had."""
        if row is None or row["state"] != "waiting":
            return row is None or row["state"] not in FINAL
        return row.get("answers_sha256") != self._answers_sha256(name, origin)

    def _answers_sha256(self, name: str, origin: str) -> str | None:
        """Of the answers that a job has; one that waits goes on when there are others."""
        path = self.work / "jobs" / f"{name}.{origin}" / "batch" / ANSWERS
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None

    def _profile(self, text: str) -> dict[str, Any]:
        found = profile_task(self.referee, text, self.ceilings["rates"], device=self.settings.device)
        return found.as_json()

    def _spec(self, task: TaskSource, origin: str, folder: Path) -> JobSpec:
        models: tuple[ModelChoice, ...] = ()
        if origin in _ASKING:
            (folder / "batch").mkdir(parents=True, exist_ok=True)
            price_in, price_out = self.settings.usd_per_million
            choice = ModelChoice(
                self.settings.model,
                samples=self.settings.samples,
                timeout_s=0.0,
                provider="batch",
                folder=str(folder / "batch"),
                usd_per_million_input_tokens=price_in,
                usd_per_million_output_tokens=price_out,
            )
            models = (choice,)
        return JobSpec(
            folder.name,
            task.name,
            task,
            self.settings.device,
            Budget(candidates=self.settings.candidates),
            origins=_PROPOSERS.get(origin, (origin,)),
            models=models,
            shapes=self._shapes(task),
            strategy=Strategy(rounds=self.settings.rounds),
        )

    def _shapes(self, task: TaskSource) -> dict[str, list[dict[str, Any]]]:
        """The first few of each split; the same for all origins, and for a job that is resumed."""
        # The file as it is judged, whose sizes may have been found by the referee, which may find others next time.
        described = self.referee.describe(task)
        if not described.ok:
            return {}  # the job says why
        digest = hashlib.sha256(described.source.encode()).hexdigest()
        path = self.work / "shapes" / f"{task.name}.json"
        if path.exists():
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if kept["task_sha256"] == digest:
                return cast("dict[str, list[dict[str, Any]]]", kept["shapes"])
            self.console.print(f"{task.name}: other sizes were found than before; its shapes are drawn anew")
        drawn = self.referee.core.session(TaskSource(task.name, described.source)).drawn
        first = int(self.settings.skip_own)
        shapes = {
            split: drawn.sample(split)[first:][: count or None]
            for split, count in self.settings.counts.items()
        }
        path.parent.mkdir(exist_ok=True)
        write_whole(path, {"task_sha256": digest, "shapes": shapes})
        return shapes

    def add_least(self, task: TaskSource, row: dict[str, Any]) -> None:
        """What a call takes at least at the shapes of a row, as far as it can be found."""
        if not row["shapes"]:
            return
        keys = [(task.sha256, json.dumps(shape["dims"], sort_keys=True)) for shape in row["shapes"]]
        if any(key not in self._least_us for key in keys):
            dims = [shape["dims"] for shape in row["shapes"]]
            rates, device = self.ceilings["rates"], self.settings.device
            try:
                found = [
                    profile_task(self.referee, task.source, rates, device=device, dims=one).least_s
                    for one in dims
                ]
            except EvaluatorError as failure:
                row["no_roofline"] = str(failure)
                return
            self._least_us |= {key: 1e6 * least_s for key, least_s in zip(keys, found, strict=True)}
        for shape, key in zip(row["shapes"], keys, strict=True):
            shape["least_us"] = self._least_us[key]


@contextmanager
def claimed(work: Path, name: str, place: str) -> Iterator[bool]:
    """Whether this process has a task to itself until the end of the block; one that dies gives it back."""
    path = _claim(work, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(place)
        file.flush()
        yield True


def own_first(work: Path, names: Sequence[str], place: str) -> list[str]:
    """Tasks in their order, those first that were begun here: what was compiled for them is here."""

    def is_others(name: str) -> bool:
        path = _claim(work, name)
        return not path.exists() or path.read_text(encoding="utf-8") != place

    return sorted(names, key=is_others)


def _claim(work: Path, name: str) -> Path:
    return work / "claims" / name


def rows_in(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The newest row of each job in some pieces, or in folders of pieces."""
    reports = sorted(reports_in(paths), key=lambda report: str(report["started_at"]))
    return latest(row for report in reports for row in report["rows"])


def reports_in(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The pieces, those in folders, and those of merged documents; each once."""
    files = [
        file for path in paths for file in (sorted(path.glob("piece-*.json")) if path.is_dir() else [path])
    ]
    reports: list[dict[str, Any]] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        document = json.loads(text)
        reports += [document] if "piece" in document else _apart(text)
    return list({report["piece"]: report for report in reports}.values())


def of_machines(reports: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Settings, machine and ceilings of pieces, for a document; of those that are alike on one device the first."""
    first: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for report in reports:
        machine = report["environment"]
        settings = json.dumps(report["settings"], sort_keys=True)
        first.setdefault((str(machine.get("gpu_uuid")), str(machine.get("cpu")), settings), report)
    return {
        "settings": [one["settings"] for one in first.values()],
        "environment": [one["environment"] for one in first.values()],
        "ceilings": [
            {name: value for name, value in one["ceilings"].items() if name != "tried"}
            for one in first.values()
        ],
    }


def _apart(text: str) -> list[dict[str, Any]]:
    """What `merge` wrote earlier as pieces again; rows whose machine is not known (no verdict was reached) go with the first."""
    merged = json.loads(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    parts = zip(merged["settings"], merged["environment"], merged["ceilings"], strict=True)
    pieces = [
        {
            "piece": f"{digest}-{number}",
            "settings": settings,
            "environment": machine,
            "ceilings": rates,
            # when it was merged everything in it had ended
            "started_at": max(str(one["time"]) for one in merged["environment"]),
            "rows": [],
        }
        for number, (settings, machine, rates) in enumerate(parts)
    ]
    of_gpu = {piece["environment"].get("gpu_uuid"): piece for piece in reversed(pieces)}
    for row in merged["rows"]:
        of_gpu.get(row["environment"].get("gpu_uuid"), pieces[0])["rows"].append(row)
    return pieces


#: Options that studies share.
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Index = Annotated[int | None, typer.Option(help="Which of several GPUs.")]
Seat = Annotated[str, typer.Option(help="This is the i-th of n processes on the device (`i/n`).")]
Visible = Annotated[int, typer.Option(help="Visible shapes; 0 for as many as are drawn.")]
Validation = Annotated[int, typer.Option(help="Validation shapes.")]
HeldOut = Annotated[int, typer.Option(help="Held-out shapes.")]
Samples = Annotated[int, typer.Option(help="First attempts of the model, a job.")]
Rounds = Annotated[int, typer.Option(help="Rounds of search after them.")]
Answers = Annotated[Path | None, typer.Option(help="Answers of requests, of all tasks.")]
SecondsTotal = Annotated[float, typer.Option(help="Ends within so many seconds.")]
Work = Annotated[Path, typer.Option(help="Folder of everything; the same one goes on.")]

app = typer.Typer(add_completion=False, help=__doc__)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    device: Device = "cpu",
    index: Index = None,
    seat: Seat = "1/1",
    tasks: Annotated[str, typer.Option(help="Tasks of the catalogue (commas).")] = ",".join(TASKS),
    kernelbench: Annotated[
        Path | None, typer.Option(help="A copy of KernelBench; tasks come from it.")
    ] = None,
    sample_size: Annotated[int, typer.Option(help="Modules drawn from it.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 11,
    only: Annotated[
        str, typer.Option(help="Of KernelBench, those whose names begin so (commas): level1__18_,level2__")
    ] = "",
    origins: Annotated[
        str, typer.Option(help="compiler, human, library, batch, both (commas).")
    ] = "compiler,human",
    visible: Visible = 2,
    validation: Validation = 3,
    held_out: HeldOut = 5,
    adversarial: Annotated[int, typer.Option(help="Adversarial shapes; nothing is timed there.")] = 0,
    skip_own: Annotated[
        bool,
        typer.Option("--skip-own", help="Leave out the module's own size, the first shape of each split."),
    ] = False,
    candidates: Annotated[int | None, typer.Option(help="At most so many a job.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="default, strict or tf32, instead of the files'.")
    ] = None,
    model: Annotated[str, typer.Option(help="Of the batch.")] = "",
    samples: Samples = 2,
    rounds: Rounds = 0,
    usd_input: Annotated[float, typer.Option(help="US dollars per million tokens of prompts.")] = 0.0,
    usd_output: Annotated[float, typer.Option(help="US dollars per million tokens of answers.")] = 0.0,
    answers: Answers = None,
    seconds_total: SecondsTotal = 1e9,
    work: Work = ROOT / "out/origins",
) -> None:
    """Run jobs."""
    if context.invoked_subcommand is not None:
        return
    ends_at = time.monotonic() + seconds_total - 5.0
    console = Console(width=190)
    chosen = tuple(name.strip() for name in origins.split(",") if name.strip())
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    unknown = [*(set(chosen) - set(ORIGINS))]
    if kernelbench is not None:
        sources = {module.name: module.source for module in sample(kernelbench, sample_size, seed)}
        names = [name for name in sources if name.startswith(tuple(only.split(",")))]
        unknown += [start for start in only.split(",") if not any(name.startswith(start) for name in sources)]
    else:
        unknown += set(names) - {task.name for task in catalog.list_tasks()}
        sources = {name: catalog.load(name).source for name in names if name not in unknown}
        unknown += [f"--only {only} without --kernelbench"] * bool(only)
    if unknown or not chosen or (set(chosen) & set(_ASKING) and not model):
        raise typer.BadParameter(
            f"unknown: {', '.join(unknown)}"
            if unknown
            else "an origin is needed, and --model for batch and both"
        )
    if precision is not None and precision not in TIERS:
        raise typer.BadParameter(f"{precision!r} is not a precision; use one of {', '.join(TIERS)}")
    counts = {"visible": visible, "validation": validation, "held_out": held_out, "adversarial": adversarial}
    settings = Settings(
        device,
        chosen,
        counts,
        candidates,
        precision,
        model,
        samples,
        rounds,
        (usd_input, usd_output),
        skip_own,
    )
    work_through(
        Runs, settings, {name: sources[name] for name in names}, work, seat, ends_at, console, answers, index
    )
    show(rows_in([work]), console)


def work_through(
    kind: type[Runs],
    settings: Settings,
    sources: dict[str, str],
    work: Path,
    seat: str,
    ends_at: float,
    console: Console,
    answers: Path | None = None,
    index: int | None = None,
) -> None:
    """Run the jobs of these tasks that are not finished, as far as time allows.

    Args:
        kind: runs one.
        settings, sources, work, ends_at, console: see `Runs`.
        seat: which of how many processes on the device this one is, ``i/n``.
        answers: of requests of earlier runs.
        index: which of several GPUs.
    """
    if index is not None:
        # Before anything asks CUDA or NVML: both the referee and the processes it starts go by this.
        os.environ["CUDA_VISIBLE_DEVICES"] = nth_visible(index)
    names = list(sources)
    work.mkdir(parents=True, exist_ok=True)
    work = work.resolve()  # the referee's processes run elsewhere
    if answers is not None:
        hand_out(answers, work, names)
    # A job may be in one evaluation for minutes. Its store keeps what it has, and its referee's processes end with this one.
    _end_at(ends_at, console)
    number, of = map(int, seat.split("/"))
    device = f"{settings.device}-{index or 0}"
    runs = kind(settings, sources, work, device, (number, of), ends_at, console)
    try:
        for name in own_first(work, names, runs.place):
            with claimed(work, name, runs.place) as mine:
                if mine:
                    runs.task(name, names.index(name))
    finally:
        runs.referee.close()


@app.command()
def merge(
    pieces: Annotated[list[Path], typer.Argument(help="Pieces, folders of them, or merged JSON.")],
    write: Annotated[bool, typer.Option(help="Write JSON.")] = False,
    out: Out = MEASUREMENTS,
) -> None:
    """The tables over several pieces, or what was merged of them before, of the same harness on the same kind of device."""
    console = Console(width=190)
    reports = reports_in(pieces)
    names = ("harness", "device_name", "torch")
    alike = {tuple(str(report["environment"].get(name)) for name in names) for report in reports}
    if len(alike) != 1:
        raise typer.BadParameter(
            f"these pieces do not belong together: {sorted(alike) or 'nothing is there'}"
        )
    rows = rows_in(pieces)
    totals = show(rows, console)
    requested = {name for report in reports for name in report["settings"]["origins"]}
    console.print(f"{len(rows)} jobs of {', '.join(sorted(requested))}", highlight=False)
    if write:
        device = reports[0]["settings"]["device"]
        merged = {
            "program": "benchmarks.origins merge",
            **of_machines(reports),
            "origins": totals,
            "rows": rows,
        }
        write_new(out, f"origins-{device}", merged)


def hand_out(answers: Path, work: Path, names: Sequence[str]) -> None:
    """Every batch finds its own lines among all answers."""
    for name in names:
        for origin in _ASKING:
            folder = work / "jobs" / f"{name}.{origin}" / "batch"
            if (folder / REQUESTS).exists():
                shutil.copyfile(answers, folder / ANSWERS)


def _end_at(ends_at: float, console: Console) -> None:
    def end() -> None:
        console.print("out of time; the same command goes on from here")
        os._exit(OUT_OF_TIME)

    left_s = ends_at - time.monotonic()
    if left_s < threading.TIMEOUT_MAX:
        timer = threading.Timer(max(left_s, 0.0), end)
        timer.daemon = True
        timer.start()


if __name__ == "__main__":
    app()
