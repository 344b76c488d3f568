"""Jobs through a storm: workers are killed, Redis is restarted and flushed, PostgreSQL is restarted, and nothing may be lost.

API, workers, PostgreSQL and Redis are real processes; jobs are submitted over HTTP and followed by event streams while the
storm rages. Only judging is scripted (`benchmarks.scripted_service`): recorded verdicts that take a set time.

    python -m benchmarks.service_chaos --jobs 40 --workers 4                     # about two minutes
    python -m benchmarks.service_chaos --jobs 1000 --workers 8 --write
    python -m benchmarks.service_chaos --storage sqlite --jobs 100 --write       # kills of the one process
    python -m benchmarks.service_chaos --calm --jobs 40 --write                  # what queueing and storing cost

One storm's beats: SIGKILL of a random worker every `--kill-every` seconds (every eighth time with its supervisor, as when a
machine goes down); Redis in turn flushed and killed every 15 s; PostgreSQL stopped without checkpoint ("immediate") every
40 s, away for 2 s. Bars: every row ends, as succeeded, and no rule of `benchmarks.chaos_checks` is broken; calm, queueing and
storing cost at most 50 ms a candidate. The exit code is 1 where one of them is missed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from benchmarks import chaos_checks
from benchmarks.chaos_deployment import Storm, Weather, deployment, one_process
from benchmarks.scripted_service import MODELS, SECONDS_VARIABLE, job_request, proposal
from services.client.client import Client
from services.client.errors import ClientError, WaitedTooLong
from services.db.models import FINAL_STATES, Candidate, Evaluation, Job, Verdict
from services.db.session import Database
from services.jobs.requests import EvaluateRequest, OptimizeRequest
from tests.services.model_server import model_server
from tests.services.service import ROOT, TWICE_TASK

OVERHEAD_BAR_MS = 50.0
_EVALUATION_EVERY = 10  # so many jobs
_WATCHED = 12
_QUIET_ROWS = 60


class Watchers:
    """Clients that follow a few jobs by event stream and keep what ids they saw."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.seen: dict[str, list[int]] = {}
        self._threads: list[threading.Thread] = []

    def follow(self, job_id: str) -> None:
        """Follow a job to its end, through whatever happens to the service."""
        seen = self.seen[job_id] = []

        def watch() -> None:
            while True:
                try:
                    with Client(self._url) as client:
                        for event in client.watch(job_id, after=seen[-1] if seen else 0, tries=50):
                            seen.append(event.id)
                    return
                except ClientError:
                    time.sleep(1.0)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, seconds: float) -> None:
        """Wait for all of them."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def submit(url: str, jobs: int, watchers: Watchers) -> int:
    """Submit jobs, and an evaluation for every tenth, through outages; how many requests had to be sent anew by hand."""
    again = 0
    with Client(url) as client:

        def persist(send: Callable[[str], Any], key: str) -> Any:
            nonlocal again
            while True:
                try:
                    return send(key)  # the same key however often: nothing is made twice
                except ClientError:
                    again += 1
                    time.sleep(1.0)

        request = OptimizeRequest.model_validate(job_request())
        for number in range(jobs):
            made = persist(lambda key: client.submit(request, idempotency_key=key), f"job-{number}")
            if number % max(1, jobs // _WATCHED) == 0:
                watchers.follow(made.id)
            if number % _EVALUATION_EVERY == 0:
                body = {"source": TWICE_TASK, "candidate": proposal("good", 100 + number)}
                one = EvaluateRequest.model_validate(body)
                persist(lambda key, one=one: _begin(client, one, key), f"evaluation-{number}")
    return again


def _begin(client: Client, request: EvaluateRequest, key: str) -> None:
    try:
        client.evaluate(request, seconds=0, idempotency_key=key)
    except WaitedTooLong:
        return  # it is in the queue


def wait_for_all(base: Database, rows: int, seconds: float, say: Console) -> float:
    """Wait until so many rows have ended, or the time is up; seconds since the start."""
    began, told = time.monotonic(), 0.0
    while time.monotonic() - began < seconds:
        try:
            with base.read() as session:
                ended = sum(
                    session.scalar(
                        select(func.count()).select_from(model).where(model.state.in_(FINAL_STATES))
                    )
                    or 0
                    for model in (Job, Evaluation)
                )
        except SQLAlchemyError:
            ended = 0
        if ended >= rows:
            break
        if time.monotonic() - told > 20:
            told = time.monotonic()
            say.print(f"  {ended} of {rows} rows have ended after {time.monotonic() - began:.0f} s")
        time.sleep(0.3)
    return time.monotonic() - began


def figures(base: Database, folder: Path, judging_s: float) -> dict[str, Any]:
    """How much was made, how often work was begun, how much judging was done twice, and how long rows took."""
    with base.read() as session:
        counted = {
            name: session.scalar(select(func.count()).select_from(model)) or 0
            for name, model in (("jobs", Job), ("candidates", Candidate), ("verdicts", Verdict), ("evaluations", Evaluation))
        }  # fmt: skip
        attempts = Counter(session.scalars(select(Job.attempt)))
        took = [
            (row[1] - row[0]).total_seconds()
            for row in session.execute(select(Evaluation.created_at, Evaluation.finished_at))
            if row[1] is not None
        ]
        worked = [
            (row[1] - row[0]).total_seconds()
            for row in session.execute(select(Job.started_at, Job.finished_at))
            if row[1] is not None and row[0] is not None
        ]
    calls = Counter(
        line.split(" ", 2)[2] for path in folder.rglob("judged.log") for line in path.read_text().splitlines()
    )
    verdict_calls = sum(times for what, times in calls.items() if " " in what)
    needed = counted["verdicts"] + counted["evaluations"]
    return {
        **counted,
        "attempts of a job": {str(number): attempts[number] for number in sorted(attempts)},
        "verdicts judged for each that was needed": round(verdict_calls / max(1, needed), 3),
        "evaluation p50 ms": round(statistics.median(took) * 1e3, 1) if took else None,
        "job p50 s": round(statistics.median(worked), 2) if worked else None,
        "judging ms": judging_s * 1e3,
    }


def overhead(url: str, base: Database, judging_s: float) -> dict[str, float]:
    """Milliseconds that queue and store add to one candidate, with a worker free: POST /evaluate, one after the other."""
    added = []
    with Client(url) as client:
        for number in range(_QUIET_ROWS):
            body = {"source": TWICE_TASK, "candidate": proposal("good", 10_000 + number)}
            made = client.evaluate(EvaluateRequest.model_validate(body), seconds=60)
            with base.read() as session:
                row = session.get_one(Evaluation, made.id)
                assert row.finished_at is not None
                added.append((row.finished_at - row.created_at).total_seconds() - judging_s)
    added.sort()
    return {
        "p50_ms": round(statistics.median(added) * 1e3, 1),
        "p95_ms": round(added[int(0.95 * len(added))] * 1e3, 1),
    }


def main(
    jobs: Annotated[int, typer.Option(min=1)] = 40,
    workers: Annotated[int, typer.Option(min=1, help="With PostgreSQL; SQLite has the one process.")] = 4,
    kill_every: Annotated[float, typer.Option(min=0.2, help="Seconds between kills, on average.")] = 2.0,
    storage: Annotated[str, typer.Option(help="postgresql or sqlite.")] = "postgresql",
    judging: Annotated[float, typer.Option(min=0.0, help="Seconds that one verdict takes.")] = 0.3,
    limit: Annotated[
        float, typer.Option(help="Seconds after which what has not ended counts as lost.")
    ] = 1800,
    calm: Annotated[bool, typer.Option(help="No storm: what queueing and storing cost.")] = False,
    by: Annotated[
        str, typer.Option(help="What runs workers: kernelwright, or celery as it is.")
    ] = "kernelwright",
    write: Annotated[bool, typer.Option(help="Write JSON to docs/measurements.")] = False,
) -> None:
    """Run one storm, print what came of it."""
    say = Console()
    weather = None if calm else Weather(kill_every_s=kill_every)
    found = run(jobs, workers, weather, storage, judging, limit, by=by, say=say)
    _report(say, found, write=write)
    if found["missed"]:
        raise typer.Exit(1)


def run(
    jobs: int,
    workers: int,
    weather: Weather | None,
    storage: str,
    judging_s: float,
    limit_s: float,
    *,
    by: str = "kernelwright",
    say: Console | None = None,
) -> dict[str, Any]:
    """One run; everything that is to be known of it. Without weather it is calm, and the overhead is measured."""
    say = say or Console(quiet=True)
    storm, calm = Storm(weather) if weather else None, weather is None
    with tempfile.TemporaryDirectory(prefix="kernelwright-chaos-") as name, model_server(MODELS) as models:
        folder = Path(name)
        variables = {
            SECONDS_VARIABLE: str(judging_s),
            "KERNELWRIGHT_LLM_BASE_URL": models,
            "KERNELWRIGHT_RATE_LIMIT": "1000000/second",
        }
        where = (
            one_process(folder, storm, variables)
            if storage == "sqlite"
            else deployment(folder, workers, storm, variables, by)
        )
        with where as (service, base):
            added = overhead(service.url, base, judging_s) if calm else None
            watchers = Watchers(service.url)
            rows = jobs + len(range(0, jobs, _EVALUATION_EVERY)) + (_QUIET_ROWS if calm else 0)
            began = time.monotonic()
            with storm or ExitStack():
                again = submit(service.url, jobs, watchers)
                submitted_s = time.monotonic() - began
                say.print(f"{jobs} jobs submitted in {submitted_s:.1f} s; {again} requests sent anew")
                wait_for_all(base, rows, limit_s, say)
            elapsed_s = time.monotonic() - began
            watchers.join(30)
            with Client(service.url) as client:
                broken = chaos_checks.broken(base, client, watchers.seen)
            found = {
                "what": {
                    "jobs": jobs, "workers": workers if storage != "sqlite" else 1, "storage": storage,
                    "weather": asdict(weather) if weather else None, "judging_s": judging_s, "workers_by": by,
                },
                "storm": dict(storm.done) if storm else {},
                "storm_ended_early": storm.faults if storm else [],
                "elapsed_s": round(elapsed_s, 1),
                "submitted_s": round(submitted_s, 1),
                "requests_sent_anew": again,
                **figures(base, folder, judging_s),
                "broken": broken,
                "reasons": chaos_checks.reasons(base),
                "overhead": added,
            }  # fmt: skip
        if keep := os.environ.get("KERNELWRIGHT_CHAOS_KEEP"):
            subprocess.run(["cp", "-r", name, keep], check=True)
    missed = [rule for rule, count in broken.items() if count]
    missed += ["the storm ended early"] * bool(found["storm_ended_early"])
    if added is not None and added["p50_ms"] > OVERHEAD_BAR_MS:
        missed.append("overhead")
    return {**found, "missed": missed}


def _report(say: Console, found: dict[str, Any], *, write: bool) -> None:
    for name, value in found.items():
        if name != "broken":
            say.print(f"{name}: {json.dumps(value)}", highlight=False)
    table = Table("rule", "broken by")
    for rule, count in found["broken"].items():
        table.add_row(rule, str(count), style="red" if count else "")
    say.print(table)
    say.print("MISSED: " + ", ".join(found["missed"]) if found["missed"] else "every bar reached")
    if write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        kind = "calm" if found["overhead"] else "storm"
        what = found["what"]
        name = f"{day}-service-chaos-{what['storage']}-{kind}-{what['jobs']}.json"
        where = {
            "platform": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count(),
            "load_1min": os.getloadavg()[0],
        }  # fmt: skip
        path = ROOT / "docs" / "measurements" / name
        path.write_text(json.dumps({"environment": where, **found}, indent=1) + "\n", encoding="utf-8")
        say.print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
