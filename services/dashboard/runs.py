"""Pages of fine-tuning runs: ``/ui/runs`` (also ``/runs``), one run each, and their tables as data.

| address | what |
| --- | --- |
| `/ui/runs/tables/runs.csv` | all runs |
| `/ui/runs/{run}/tables/steps.csv` | figures of every step |
| `/ui/runs/{run}/tables/caught.csv` | what was caught, by reason |

`run_files` reads them from the folder `KERNELWRIGHT_RUNS_DIR` and treats every file as untrusted. Every reader sees the
figures; model outputs and checkpoint paths require scope admin, since a run's tasks may belong to any user.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi.responses import RedirectResponse

from services.api.deps import CallerDep, SettingsDep
from services.dashboard import charts, exports
from services.dashboard import run_files as files
from services.dashboard import run_story as story
from services.dashboard.rendering import render
from services.dashboard.run_files import Run, RunUnknown
from services.dashboard.tables import Table
from services.dashboard.words import Word
from services.errors import NotFound
from services.settings import Settings

STAGES = {
    "sft": Word("supervised", "idle", "It learns verified pairs of a module and a kernel."),
    "selfsup": Word("self-supervised", "idle", "It samples, and learns what the referee accepted of that."),
    "contrastive": Word(
        "contrastive", "idle", "It is rewarded by the referee, with scored kernels in its prompt."
    ),
    "": Word("stage unknown", "idle", "The run's folder does not say which stage it is."),
}
COMPARED = {
    "gain": Word("gain", "good", "The whole interval lies above 1."),
    "loss": Word("loss", "bad", "The whole interval lies below 1."),
    "unknown": Word("not decided", "idle", "The interval holds 1."),
}
_COLUMNS = (
    "name",
    "stage",
    "steps",
    "planned",
    "changed_at",
    "loss",
    "reward_mean",
    "speedup_mean",
    "accepted_share",
    "hacks",
)
#: The curves: figure name in the files, title, and whether the axis must include 0.
_CURVES = (
    ("loss", "Training loss", False),
    ("reward_mean", "Mean score of completions", False),
    ("speedup_mean", "Mean speedup of all samples, failures as 0", True),
    ("accepted_share", "Share of judged completions that were accepted", True),
    ("entropy", "Entropy, nats per token", True),
    ("hacks", "Caught completions per step", True),
    ("judged", "Candidates judged per step", True),
    ("missing", "Completions without a reward", True),
    ("idle_share", "Share of a step spent waiting for rewards", True),
    ("step_s", "Seconds per step", True),
    ("peak_memory_gib", "Most GPU memory in use at once, GiB", True),
)
_SOURCE_LINES = 60

router = APIRouter(include_in_schema=False)
RunName = Annotated[str, InPath(max_length=300)]


@router.get("/runs")
def runs_address() -> Response:
    """The page's short address."""
    return RedirectResponse("/ui/runs", 307)


@router.get("/runs/{run}")
def run_address(run: RunName, settings: SettingsDep) -> Response:
    """A run's short address; of a run that exists alone, so that it leads nowhere else."""
    return RedirectResponse(f"/ui/runs/{_run(settings, run).overview.name}", 307)


@router.get("/ui/runs")
def runs_page(settings: SettingsDep, caller: CallerDep) -> Response:
    """All runs, the one that was written last first."""
    found = files.list_runs(settings.runs)
    return render(
        "runs.html",
        runs=[{**_line(one), "title": _title(one.name)} for one in found],
        stages=STAGES,
        folder=str(settings.runs) if caller.may("admin") else None,
    )


@router.get("/ui/runs/tables/{file}")
def runs_table(request: Request, settings: SettingsDep, file: str) -> Response:
    """The list as data."""
    name, ending = exports.parts_of(file, "runs")
    lines = [_line(one) for one in files.list_runs(settings.runs)]
    rows = tuple(tuple(line[column] for column in _COLUMNS) for line in lines)
    return exports.answer_of(request, Table(_COLUMNS, rows), name, ending)


@router.get("/ui/runs/{run}")
def run_page(settings: SettingsDep, caller: CallerDep, run: RunName) -> Response:
    """One run: curves, what it was compared with, what was caught, and for admins samples."""
    found = _run(settings, run)
    may_see_sources = caller.may("admin")
    return render(
        "run.html",
        run=found,
        title=_title(found.overview.name),
        stage=STAGES[found.overview.stage],
        facts=_facts(found, may_see_sources),
        curves=_curves(found),
        ratios=story.ratios(found.comparison),
        compared=COMPARED,
        catches=story.catches(found.samples),
        verdicts=story.words(found.samples),
        pairs=[_shown(pair) for pair in story.pairs(found)] if may_see_sources else None,
    )


@router.get("/ui/runs/{run}/tables/{file}")
def run_table(request: Request, settings: SettingsDep, run: RunName, file: str) -> Response:
    """One of the run's tables."""
    which, ending = exports.parts_of(file, "steps", "caught")
    found = _run(settings, run)
    if which == "caught":
        rows = tuple((one.what, one.times, one.first_step) for one in story.catches(found.samples))
        table = Table(("why", "completions", "first_step"), rows)
    else:
        columns = ("step", *files.FIGURES)
        table = Table(columns, tuple((step.number, *step.figures.values()) for step in found.steps))
    return exports.answer_of(request, table, f"run-{which}", ending)


class _LastRead:
    """Caches the run that was read last, while its files are unchanged.

    Reading a long run takes a second and some hundred MB: forty requests in parallel would let any reader bring down the
    service. So one run is read at a time.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._state: tuple[object, ...] = ()
        self._run: Run | None = None

    def get(self, root: Path, name: str) -> Run:
        """Return a run; raises RunUnknown if there is none, or the name leads outside the root."""
        with self._reading:
            folder = files.folder_of(root, name)
            state = folder, files.state_of(folder)  # before reading: later writes then trigger a new read
            if self._run is None or self._state != state:
                self._run = None  # free it first: memory must not hold two runs
                self._run, self._state = files.run_in(folder, name), state
            return self._run


_last_read = _LastRead()


def _run(settings: Settings, name: str) -> Run:
    try:
        return _last_read.get(settings.runs, name)
    except RunUnknown:
        raise NotFound("there is no such run") from None


def _curves(run: Run) -> list[charts.Chart]:
    found = []
    for name, title, from_zero in _CURVES:
        points = [(one.number, value) for one in run.steps if (value := one.figures[name]) is not None]
        if points:
            found.append(charts.curve_chart(name, title, points, from_zero=from_zero))
    return found


def _line(one: files.Overview) -> dict[str, Any]:
    changed = one.changed_s if math.isfinite(one.changed_s) and 0 <= one.changed_s < 1e11 else 0.0
    return {
        "name": one.name,
        "stage": one.stage,
        "steps": one.steps,
        "planned": one.planned,
        "changed_at": datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"),
        **{name: one.last.get(name) for name in _COLUMNS[5:]},
    }


def _title(name: str) -> str:
    return name.replace(files.JOINT, "/")


def _facts(run: Run, named: bool) -> list[tuple[str, str]]:
    """A run's key facts; the model's path and the tasks only if `named`, which is for admins."""
    config = run.config
    model = story.mapping(config.get("model"))
    trained = {"full": "all weights", "lora": "adapters"}.get(files.text(model.get("train"), 20), "")
    listed = [
        (
            "Steps",
            f"{run.overview.steps:,}" + (f" of {run.overview.planned:,}" if run.overview.planned else ""),
        ),
        ("Trained", trained),
        ("Compared on", files.text(run.comparison.get("machine"), 200)),
    ]
    if named:
        listed += [
            ("Model", files.text(model.get("path"), 200)),
            ("Tasks", _names(config.get("tasks"))),
            ("Held out", _names(config.get("held_out"))),
        ]
    return [(name, said) for name, said in listed if said]


def _names(value: Any) -> str:
    listed: Sequence[Any] = value[:20] if isinstance(value, list) else []
    return ", ".join(filter(None, (files.text(one, 80) for one in listed)))


def _shown(pair: story.Pair) -> dict[str, Any]:
    sides = {"before": (pair.before, pair.before_speedup), "after": (pair.after, pair.after_speedup)}
    return {
        "task": pair.task,
        "sides": [
            (side, speedup, source.splitlines()[:_SOURCE_LINES])
            for side, (source, speedup) in sides.items()
            if source
        ],
    }
