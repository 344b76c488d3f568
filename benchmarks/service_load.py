"""The service under load with much stored: latency of every read, of submissions, and what open event streams cost.

A database is filled with made-up jobs (`benchmarks.service_fill`), a real `kernelwright serve` runs on it, and a load generator
beside it asks for every endpoint and page in turn at a fixed rate, for a minute that is told apart, and then for two that
count; of several processes the one with the fewest requests under way, as a proxy before them does (nginx: `least_conn`). A request's time counts from the
instant at which it was due, so that a service that falls behind cannot hide it. Streams are opened on running jobs where nothing happens; what they
add is CPU time of the service and of PostgreSQL in a minute with them against the minute without them before it, the median of
three such pairs, and memory.

    python -m benchmarks.service_load --jobs 300 --candidates 30000              # about three minutes
    python -m benchmarks.service_load --write                                    # 10,000 jobs, 1,000,000 candidates
    python -m benchmarks.service_load --processes 2 --write                      # two API processes, the least busy of them asked
    python -m benchmarks.service_load --database sqlite --jobs 300 --candidates 30000

Bars: p99 of any read <= 150 ms at 50 requests a second, p99 of submissions <= 80 ms, 500 streams <= 1 core-second a minute
and <= 200 MB. The exit code is 1 where one of them is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.load_client import LoadClient
from benchmarks.service_fill import environments, fill
from benchmarks.shared import MEASUREMENTS, write_new
from kernelbench_tasks import catalog
from services.db.session import Database
from services.db.upgrade import upgrade
from tests import servers
from tests.services.service import Service

ROOT = Path(__file__).resolve().parents[1]
BARS = {"read_p99_ms": 150.0, "submit_p99_ms": 80.0, "streams_core_s_per_min": 1.0, "streams_mb": 200.0}
# A sixth of this machine's memory, where PostgreSQL's manual says a quarter; its default of 128 MB is meant for any machine, and
# what is left to the system's own cache comes from the disk again whenever the host of a virtual machine wants memory back.
_SHARED_BUFFERS = "4GB"
_SUBMITS_PER_S = 2.0
_PAIRS = 3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WARM_UP = (
    2  # requests of each kind to each process that are not counted: templates are compiled at their first use
)


class Meter:
    """CPU seconds and resident megabytes of processes."""

    def __init__(self, service_pids: Sequence[int], database: Database) -> None:
        self._service_pids = service_pids
        self._postmaster: int | None = None
        if database.engine.dialect.name == "postgresql":
            with database.read() as session:
                folder = session.scalar(text("SHOW data_directory"))
            self._postmaster = int(Path(str(folder), "postmaster.pid").read_text().split()[0])

    def cpu_s(self) -> dict[str, float]:
        """So far, of the service and of all of PostgreSQL's processes."""
        server = 0.0
        if self._postmaster is not None:
            server = _cpu_s(self._postmaster, ended_children=True) + sum(
                map(_cpu_s, _children(self._postmaster))
            )
        return {"service": sum(map(_cpu_s, self._service_pids)), "postgres": server}

    def service_mb(self) -> float:
        """Resident memory of the service."""
        status = [Path(f"/proc/{pid}/status").read_text() for pid in self._service_pids]
        sizes = [
            line.split()[1] for text in status for line in text.splitlines() if line.startswith("VmRSS:")
        ]
        return sum(map(int, sizes)) / 1024


def _cpu_s(pid: int, *, ended_children: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / _TICKS_PER_S


def stolen_s() -> float:
    """What the host of a virtual machine kept for others so far, in seconds of its cores (man 5 proc, `steal`)."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _TICKS_PER_S


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in listed]


def reads(client: httpx.Client, ids: Sequence[str], drawn: random.Random) -> dict[str, Callable[[], str]]:
    """Every read endpoint and page, by name: a function that gives an address of it, another one each time."""
    recent, known = list(ids[-50:]), [one for number, one in enumerate(ids) if number % 50 != 49]
    some = drawn.sample(known, min(40, len(known)))
    candidates = {
        job: [row["id"] for row in client.get(f"/jobs/{job}/candidates?limit=20").json()["data"]]
        for job in some
    }
    tasks = [task.name for task in catalog.list_tasks()][: max(1, min(len(ids), 113))]
    gpu = environments()[0]["device_name"].replace(" ", "%20")
    # what cursors lead to, deep in the lists
    deep = client.get(f"/jobs/{some[0]}/candidates?limit=20").json()["next"]
    boards = client.get("/leaderboard?limit=20").json()["next"] or ""
    entries = client.get(f"/leaderboard/{tasks[0]}?limit=5").json()["next"] or ""

    def job() -> str:
        return drawn.choice(some)

    def candidate() -> str:
        return drawn.choice(candidates[job()])

    def task() -> str:
        return drawn.choice(tasks)

    return {
        "GET /jobs": lambda: "/jobs",
        "GET /jobs?after": lambda: f"/jobs?limit=50&after={drawn.choice(ids)}",
        "GET /jobs/{id}": lambda: f"/jobs/{job()}",
        "GET /jobs/{id} (running)": lambda: f"/jobs/{ids[49 % len(ids)]}",
        "GET /jobs/{id}/candidates": lambda: f"/jobs/{job()}/candidates",
        "GET /jobs/{id}/candidates?after": lambda: (
            f"/jobs/{some[0]}/candidates?limit=20" + (f"&after={deep}" if deep else "")
        ),
        "GET /jobs/{id}/events": lambda: f"/jobs/{job()}/events",
        "GET /jobs/{id}/place": lambda: f"/jobs/{job()}/place",
        "GET /jobs/{id}/batch": lambda: f"/jobs/{job()}/batch",
        "GET /jobs/{id}/bundle": lambda: f"/jobs/{job()}/bundle",
        "GET /candidates/{id}": lambda: f"/candidates/{candidate()}",
        "GET /evaluations/{id}": lambda: f"/evaluations/{job()}",
        "GET /leaderboard": lambda: "/leaderboard",
        "GET /leaderboard?gpu": lambda: f"/leaderboard?gpu={gpu}",
        "GET /leaderboard?after": lambda: "/leaderboard?limit=20" + (f"&after={boards}" if boards else ""),
        "GET /leaderboard/{task}": lambda: f"/leaderboard/{task()}",
        "GET /leaderboard/{task}?after": lambda: (
            f"/leaderboard/{tasks[0]}?limit=5" + (f"&after={entries}" if entries else "")
        ),
        "GET /leaderboard/{task}?origin&model": lambda: f"/leaderboard/{task()}?origin=llm&model=model-a",
        "GET /leaderboard/{task}/history": lambda: f"/leaderboard/{task()}/history",
        "GET /healthz": lambda: "/healthz",
        "GET /readyz": lambda: "/readyz",
        "GET /openapi.json": lambda: "/openapi.json",
        "page /": lambda: "/",
        "page /?after": lambda: f"/?after={drawn.choice(ids)}",
        "page job": lambda: f"/ui/jobs/{job()}",
        "page job (large)": lambda: f"/ui/jobs/{ids[0]}",
        "page job (new)": lambda: f"/ui/jobs/{drawn.choice(recent)}",
        "page candidate": lambda: f"/ui/candidates/{candidate()}",
        "page leaderboard": lambda: "/ui/leaderboard",
        "page board": lambda: f"/ui/leaderboard/{task()}",
        "table jobs.csv": lambda: "/ui/tables/jobs.csv",
        "table candidates.csv": lambda: f"/ui/jobs/{job()}/tables/candidates.csv",
        "table shapes.json": lambda: f"/ui/jobs/{job()}/tables/shapes.json",
        "table events.csv": lambda: f"/ui/jobs/{job()}/tables/events.csv",
        "table entries.csv": lambda: f"/ui/leaderboard/{task()}/tables/entries.csv",
        "plot search.svg": lambda: f"/ui/jobs/{job()}/plots/search.svg",
        "plot shapes.svg": lambda: f"/ui/jobs/{job()}/plots/shapes.svg",
        "plot history.svg": lambda: f"/ui/leaderboard/{task()}/plots/history.svg",
    }


async def load(
    urls: Sequence[str],
    kinds: Mapping[str, Callable[[], str]],
    rate: float,
    seconds: float,
    drawn: random.Random,
) -> tuple[dict[str, list[float]], list[float], dict[str, int]]:
    """Milliseconds of every read by kind, of submissions, and how many bytes of each kind were transferred."""
    found: dict[str, list[float]] = defaultdict(list)
    submits: list[float] = []
    sizes: dict[str, int] = {}
    faults: list[str] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(LoadClient(url)) for url in urls]
        turns = itertools.cycle(range(len(clients)))

        def least_busy() -> LoadClient:
            """As a proxy before several processes chooses (nginx: least_conn), and of equals each in turn."""
            first = next(turns)
            return min(clients[first:] + clients[:first], key=lambda client: client.under_way)

        async def read(kind: str, due: float, client: LoadClient | None = None) -> None:
            async with asyncio.timeout(30):
                answer = await (client or least_busy()).get(kinds[kind]())
            found[kind].append((time.perf_counter() - due) * 1e3)
            sizes[kind] = max(sizes.get(kind, 0), answer.body_bytes)
            # a refusal takes no time, and must not count as an answer
            refused = answer.status in (401, 403, 429)
            if refused or (answer.status >= 500 and kind != "GET /readyz"):  # 503 where no worker is
                faults.append(f"{kind}: {answer.status}")

        async def submit(due: float, client: LoadClient | None = None) -> None:
            body = json.dumps({"task": drawn.choice(catalog.list_tasks()).name, "origins": ["human"]})
            async with asyncio.timeout(30):
                answer = await (client or least_busy()).post("/optimize", body.encode())
            submits.append((time.perf_counter() - due) * 1e3)
            if answer.status != 202:
                faults.append(f"submit: {answer.status}")

        for client in _WARM_UP * clients:
            for kind in kinds:
                await read(kind, time.perf_counter(), client)
            await submit(time.perf_counter(), client)
        found.clear()
        submits.clear()
        begin, tasks = time.perf_counter(), []
        order: list[str] = []
        for number in range(round(rate * seconds)):
            if not order:
                order = drawn.sample(list(kinds), len(kinds))
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(read(order.pop(), due)))
            if number % round(rate / _SUBMITS_PER_S) == 0:
                tasks.append(asyncio.create_task(submit(due)))
        await asyncio.gather(*tasks)
    if faults:
        raise RuntimeError(f"the service failed: {', '.join(sorted(set(faults)))}")
    return found, submits, sizes


async def _open(url: str, jobs: Sequence[str], count: int) -> list[asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    writers = []
    for number in range(count):
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/jobs/{jobs[number % len(jobs)]}/events"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"a stream was not opened: {status!r}")
        asyncio.get_running_loop().create_task(_drain(reader))
        writers.append(writer)
    return writers


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def streams(
    urls: Sequence[str], meter: Meter, jobs: Sequence[str], count: int, seconds: float
) -> dict[str, Any]:
    """What open streams add to an idle service, a minute: the median of pairs of a stretch without them and one with them."""

    async def over() -> dict[str, float]:
        before = meter.cpu_s()
        await asyncio.sleep(seconds)
        return {name: (after - before[name]) * 60 / seconds for name, after in meter.cpu_s().items()}

    idle_mb, pairs, opening_s, mb = meter.service_mb(), [], 0.0, []
    for _ in range(_PAIRS):
        await asyncio.sleep(5)
        idle = await over()
        opened = time.perf_counter()
        writers = [one for url in urls for one in await _open(url, jobs, count // len(urls))]
        opening_s = max(opening_s, time.perf_counter() - opened)
        await asyncio.sleep(5)
        busy = await over()
        mb.append(meter.service_mb())
        for writer in writers:
            writer.close()
        added = {name: busy[name] - idle[name] for name in idle}
        pairs.append({**added, "total": sum(added.values())})
    return {
        "count": count,
        "opening_s": round(opening_s, 2),
        "added_core_s_per_min": {
            name: round(statistics.median(pair[name] for pair in pairs), 3) for name in pairs[0]
        },
        "pairs_core_s_per_min": [round(pair["total"], 3) for pair in pairs],
        "added_mb": round(max(mb) - idle_mb, 1),
        "service_mb": round(max(mb), 1),
    }


def _all(found: Mapping[str, Sequence[float]]) -> list[float]:
    return [value for values in found.values() for value in values]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; the largest of few."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[Database]:
    """A database of this program's own with the newest schema."""
    if kind == "sqlite":
        base = Database(f"sqlite:///{folder / 'load.db'}")
        upgrade(base)
        yield base
        base.close()
        return
    with servers.running_postgres(shared_buffers=_SHARED_BUFFERS) as url:
        base = Database(url)
        upgrade(base)
        yield base
        base.close()


def main(
    jobs: Annotated[int, typer.Option(min=60)] = 10_000,
    candidates: Annotated[int, typer.Option(min=60)] = 1_000_000,
    database: Annotated[str, typer.Option(help="postgres or sqlite")] = "postgres",
    processes: Annotated[
        int, typer.Option(min=1, help="API processes, of which the least busy is asked.")
    ] = 1,
    rate: Annotated[float, typer.Option(help="Reads a second.")] = 50.0,
    seconds: Annotated[float, typer.Option(help="How long to read.")] = 120.0,
    cold_seconds: Annotated[
        float, typer.Option(help="How long to read before that, which is told apart: caches are empty.")
    ] = 60.0,
    open_streams: Annotated[int, typer.Option()] = 500,
    stream_seconds: Annotated[float, typer.Option(help="How long streams stay open.")] = 60.0,
    write: Annotated[
        bool, typer.Option("--write", help="Write docs/measurements/DATE-service-load-cpu.json.")
    ] = False,
) -> None:
    """Fill, load, print; see the module."""
    say, drawn = Console(width=140), random.Random(1)
    kind: Literal["postgres", "sqlite"] = "sqlite" if database == "sqlite" else "postgres"
    with (
        tempfile.TemporaryDirectory(prefix="kernelwright-load-") as name,
        empty_database(kind, Path(name)) as base,
    ):
        began = time.perf_counter()
        ids = fill(base, jobs, candidates)
        if (
            kind == "postgres"
        ):  # as a server that was not filled in a minute; autovacuum would run beside what is measured
            with base.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM (ANALYZE)"))
        say.print(f"{jobs} jobs and {candidates} candidates filled in {time.perf_counter() - began:.0f} s")
        url = base.engine.url.render_as_string(hide_password=False)
        variables = {
            "KERNELWRIGHT_DATABASE_URL": url,
            "KERNELWRIGHT_DEVICE": "cuda",
            "KERNELWRIGHT_RATE_LIMIT": "1000000/second",  # all requests come from one address
        }
        with ExitStack() as stack:
            services = [
                stack.enter_context(Service(Path(name) / "data", "--no-worker", environment=variables))
                for _ in range(processes)
            ]
            urls = [service.url for service in services]
            with httpx.Client(base_url=urls[0], timeout=60) as client:
                kinds = reads(client, ids, drawn)
            meter = Meter([service.process.pid for service in services if service.process], base)
            cold, _, _ = asyncio.run(load(urls, kinds, rate, cold_seconds, drawn))
            before = {**meter.cpu_s(), "generator": time.process_time()}
            stolen_before_s = stolen_s()
            found, submits, sizes = asyncio.run(load(urls, kinds, rate, seconds, drawn))
            kept_s = round(stolen_s() - stolen_before_s, 2)
            warm_up = _WARM_UP * len(urls) * (len(kinds) + 1)
            asked = len(submits) + sum(map(len, found.values())) + warm_up
            cpu_ms = {
                name: round((after - before[name]) * 1e3 / asked, 2)
                for name, after in {**meter.cpu_s(), "generator": time.process_time()}.items()
            }
            running = [one for number, one in enumerate(ids) if number % 50 == 49]
            told = asyncio.run(streams(urls, meter, running, open_streams, stream_seconds))
    _report(say, found, submits, sizes, told, write=write, what={
        "jobs": jobs, "candidates": candidates, "database": kind, "processes": processes, "rate_per_s": rate,
        "seconds": seconds,
        "cpu_ms_per_request": cpu_ms, "stolen_core_s": kept_s, "cold_seconds": cold_seconds, "cold_p99_ms": round(quantile(_all(cold), 0.99), 1),
        "shared_buffers": _SHARED_BUFFERS if kind == "postgres" else None,
    })  # fmt: skip


def _report(
    say: Console,
    found: Mapping[str, Sequence[float]],
    submits: Sequence[float],
    sizes: Mapping[str, int],
    told: Mapping[str, Any],
    *,
    write: bool,
    what: Mapping[str, Any],
) -> None:
    rows = {
        kind: {
            "requests": len(values),
            "p50_ms": round(statistics.median(values), 1),
            "p99_ms": round(quantile(values, 0.99), 1),
            "bytes": sizes.get(kind, 0),
        }
        for kind, values in {**found, "POST /optimize": submits}.items()
    }
    table = Table("read", "requests", "p50 ms", "p99 ms", "kB")
    for kind, row in sorted(rows.items(), key=lambda item: -item[1]["p99_ms"]):
        cells = (row["requests"], row["p50_ms"], row["p99_ms"], f"{row['bytes'] / 1e3:.1f}")
        table.add_row(kind, *map(str, cells))
    say.print(table)
    every = _all(found)
    say.print(f"all reads: p50 {statistics.median(every):.1f} ms, p99 {quantile(every, 0.99):.1f} ms")
    say.print(f"the {what['cold_seconds']:.0f} s before, from empty caches: p99 {what['cold_p99_ms']} ms")
    say.print(
        f"CPU time a request: {json.dumps(what['cpu_ms_per_request'])} ms; the host kept {what['stolen_core_s']} core-s"
    )
    say.print(json.dumps(told))
    reached = {
        "read_p99_ms": max(row["p99_ms"] for kind, row in rows.items() if kind != "POST /optimize"),
        "submit_p99_ms": rows["POST /optimize"]["p99_ms"],
        "streams_core_s_per_min": told["added_core_s_per_min"]["total"],
        "streams_mb": told["added_mb"],
    }
    for name, bar in BARS.items():
        say.print(f"{'reached' if reached[name] <= bar else 'MISSED '} {name}: {reached[name]} (bar {bar:g})")
    if write:
        where = {
            "platform": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count(),
            "cpu": _cpu_name(), "load_1min": os.getloadavg()[0],
        }  # fmt: skip
        report = {
            "environment": where,
            "what": dict(what),
            "reads": rows,
            "streams": dict(told),
            "all_reads": {
                "p50_ms": round(statistics.median(every), 1),
                "p99_ms": round(quantile(every, 0.99), 1),
            },
            "bars": BARS,
            "reached": reached,
        }
        write_new(MEASUREMENTS, "service-load-cpu", report)
    if any(reached[name] > bar for name, bar in BARS.items()):
        raise typer.Exit(1)


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


if __name__ == "__main__":
    typer.run(main)
