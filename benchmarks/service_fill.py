"""Fills a database of the service with made-up jobs as fast as it takes them: COPY on PostgreSQL, executemany on SQLite.

Every job has candidates with screen and validation verdicts, events, a tally and, where it ranks, an entry on a board: the
rows that workers would have left, in the sizes that they have. Texts are drawn from a few dozen, figures are random.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from evaluator.fingerprint import platform, type_of
from evaluator.sources import lines_of_code
from evaluator.verdict import HARNESS_VERSION
from kernelbench_tasks import catalog
from services.db.ids import new_id
from services.db.session import Database
from services.jobs.rows import outline_of

ORIGINS = ("llm", "llm", "llm", "compiler", "human", "policy", "external")
MODELS = ("model-a", "model-b", "model-c")
_BATCH = 5_000
_FEW = 24
_LARGE_EVERY, _LARGE = 100, 4
_TIMED = 8


def environments() -> list[dict[str, Any]]:
    """Three platforms: two types of GPU, one of them under two drivers."""
    common = {"device": "cuda", "torch": "2.11.0", "triton": "3.6.0", "threads": 32, "harness": HARNESS_VERSION,
              "power_limit_w": 700.0, "sandbox_tier": "namespaces"}  # fmt: skip
    found = (("NVIDIA H200", "580.1"), ("NVIDIA H200", "590.1"), ("NVIDIA H100", "580.1"))
    return [{**common, "device_name": name, "driver": driver} for name, driver in found]


def body(
    word: str, speedup: float, split: str, where: dict[str, Any], task_sha256: str = ""
) -> dict[str, Any]:
    """A verdict with eight timed shapes, of the size that the referee's have."""
    drawn = random.Random(f"{word}{speedup}{split}")
    shapes = [
        {
            "dims": {"rows": 2**number, "cols": 1024, "dtype": "float32"}, "split": split, "stratum": "base",
            "dtype": "float32", "correct": True, "error": {"max_ratio": 0.01, "max_abs": 1e-6}, "timed": True,
            "baselines": {name: {"median_us": drawn.uniform(5, 500)} for name in ("eager", "compile_default", "cuda_graph")},
            "best_baseline": "cuda_graph", "baseline_us": 20.0 * speedup, "candidate_us": 20.0, "speedup": speedup,
            "ci95": [speedup * 0.98, speedup * 1.02], "decision": "faster" if speedup > 1.02 else "same",
            "log_ratios": [drawn.gauss(0.3, 0.01) for _ in range(16)], "disturbed_quads": 0, "weight": None,
        }
        for number in range(_TIMED)
    ]  # fmt: skip
    measured = word == "accepted"
    return {
        "schema": "kernelwright.verdict/1", "verdict": word, "reason": f"{word} at 16 shapes",
        "findings": [{"rule": "compiled_before", "severity": "info", "evidence": "its process was given files"}],
        "task": {"name": "task", "sha256": task_sha256}, "effort": "confirm" if split == "held_out" else "screen",
        "splits": [split], "environment": where, "shapes": shapes if measured else [],
        "summary": {
            "geomean_speedup": speedup if measured else None,
            "geomean_ci95": [speedup * 0.98, speedup * 1.02] if measured else None,
            "worst_speedup": speedup * 0.8 if measured else None, "share_slower": 0.0, "traffic": None, "by_split": {},
        },
        "timing": {"protocol": "paired", "quads": 16, "pairs": 3}, "elapsed_s": 8.5, "stages_s": {}, "detail": "",
    }  # fmt: skip


@dataclass
class Sink:
    """Rows on their way into one database, table by table."""

    database: Database
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waiting: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    entries: int = 0

    def add(self, table: str, **row: Any) -> None:
        """One row; all rows of a table have the same columns."""
        self.columns.setdefault(table, tuple(row))
        self.waiting[table].append(tuple(row.values()))

    def flush(self, *, least: int = 1) -> None:
        """Write every table that has so many rows waiting, in the order in which tables first came: parents first."""
        if not any(len(rows) >= least for rows in self.waiting.values()):
            return
        for table in self.columns:
            rows = self.waiting.pop(table, [])
            if rows:
                self._write(table, self.columns[table], rows)

    def _write(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        names = ", ".join(columns)
        raw = self.database.engine.raw_connection()
        try:
            if self.database.engine.dialect.name == "postgresql":
                with raw.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                marks = ", ".join("?" * len(columns))
                cursor = raw.cursor()
                cursor.execute("BEGIN IMMEDIATE")
                cursor.executemany(
                    f"INSERT INTO {table} ({names}) VALUES ({marks})",
                    [tuple(_sqlite(value) for value in row) for row in rows],
                )
            raw.commit()
        finally:
            raw.close()


def _sqlite(value: Any) -> Any:
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else value


@dataclass(frozen=True)
class _Made:
    """Texts that verdicts are drawn from: (word, speedup, body, outline) by phase."""

    verdicts: dict[str, list[tuple[str, float | None, str, str]]]
    sources: list[str]

    @classmethod
    def few(cls, wheres: Sequence[dict[str, Any]]) -> _Made:
        verdicts: dict[str, list[tuple[str, float | None, str, str]]] = {"screen": [], "validation": []}
        for phase, split in (("screen", "visible"), ("validation", "validation")):
            for number in range(_FEW):
                word = "incorrect" if phase == "screen" and number % 3 == 0 else "accepted"
                speedup = round(0.7 + number / 12, 3)
                made = body(word, speedup, split, wheres[0])
                shown = speedup if word == "accepted" else None
                verdicts[phase].append((word, shown, json.dumps(made), json.dumps(outline_of(made))))
        line = "    value = tl.load(pointer + offsets, mask=offsets < size, other=0.0)  # {}\n"
        sources = ["import torch\n" + "".join(line.format(n * k) for n in range(20)) for k in range(_FEW)]
        return cls(verdicts, sources)


def fill(database: Database, jobs: int, candidates: int, seed: int = 0) -> list[str]:
    """Fill an empty database that has the newest schema; ids of the jobs, oldest first."""
    drawn = random.Random(seed)
    sink, wheres = Sink(database), environments()
    made, tasks = _Made.few(wheres), catalog.list_tasks()
    begin = datetime.now(UTC) - timedelta(seconds=60 * jobs)
    small = max(1, round(candidates / jobs * (1 - (_LARGE - 1) / (_LARGE_EVERY - 1))))
    ids = sorted(new_id() for _ in range(jobs))
    boards: dict[tuple[str, str], int] = {}
    best: dict[int, float] = {}
    left = candidates
    for number, job_id in enumerate(ids):
        large = number % _LARGE_EVERY == 0
        count = left if number == jobs - 1 else min(left, _LARGE * candidates // jobs if large else small)
        left -= count
        created = begin + timedelta(seconds=60 * number)
        state = "running" if number % 50 == 49 else "failed" if number % 40 == 39 else "succeeded"
        task, where = tasks[number % len(tasks)], wheres[drawn.randrange(len(wheres))]
        found = _candidates(sink, made, drawn, job_id, count, created)
        winner = max(found, key=lambda one: one[3], default=None) if state == "succeeded" else None
        speedup = round(winner[3] * drawn.uniform(0.9, 1.1), 6) if winner else 0.0
        held_out = body("accepted", speedup, "held_out", where, task.sha256) if winner else None
        _job(sink, job_id, number, state, task, created, found, winner, held_out, drawn)
        if winner is not None and held_out is not None:
            _verdict(sink, job_id, winner[0], "held_out", "accepted", speedup, json.dumps(held_out),
                     json.dumps(outline_of(held_out)), created)  # fmt: skip
            _rank(sink, boards, best, task, where, job_id, winner, speedup, drawn, created)
        sink.flush(least=_BATCH)
    sink.flush()
    _settle(database)
    return ids


def _candidates(
    sink: Sink, made: _Made, drawn: random.Random, job_id: str, count: int, created: datetime
) -> list[tuple[str, str, str, float, bool]]:
    """(sha256, origin, label, speedup, accepted) of each."""
    if "jobs" not in sink.columns:
        sink.columns["jobs"] = ()  # before what refers to it; `_job` fills in the names
    found = []
    for index in range(count):
        sha256 = hashlib.sha256(f"{job_id}{index}".encode()).hexdigest()
        origin = ORIGINS[drawn.randrange(len(ORIGINS))]
        label = f"{MODELS[index % len(MODELS)]} round {index}" if origin == "llm" else f"{origin} {index}"
        source = f"# {sha256}\n{made.sources[index % _FEW]}"
        when = created + timedelta(seconds=index)
        sink.add(
            "candidates", id=f"{job_id}.{sha256[:12]}", job_id=job_id, sha256=sha256, origin=origin, label=label,
            parent_sha256=found[-1][0] if found and index % 4 else None, note="", source=source,
            lines=lines_of_code(source), created_at=when,
        )  # fmt: skip
        word, speedup, text_of, outline = made.verdicts["screen"][drawn.randrange(_FEW)]
        _verdict(sink, job_id, sha256, "screen", word, speedup, text_of, outline, when)
        data = json.dumps(
            {"id": f"{job_id}.{sha256[:12]}", "sha256": sha256, "origin": origin, "label": label}
        )
        _event(sink, job_id, "candidate.proposed", data, f"candidate.proposed:{sha256}", when)
        _event(sink, job_id, "candidate.progress", data, None, when)
        _event(sink, job_id, "candidate.judged", data, f"candidate.judged:{sha256}:screen", when)
        if word == "accepted":
            _, speedup, text_of, outline = made.verdicts["validation"][drawn.randrange(_FEW)]
            _verdict(sink, job_id, sha256, "validation", "accepted", speedup, text_of, outline, when)
            _event(sink, job_id, "candidate.judged", data, f"candidate.judged:{sha256}:validation", when)
        found.append((sha256, origin, label, speedup or 0.0, word == "accepted"))
    return found


def _job(
    sink: Sink, job_id: str, number: int, state: str, task: Any, created: datetime, found: Sequence[Any],
    winner: Any | None, held_out: dict[str, Any] | None, drawn: random.Random,
) -> None:  # fmt: skip
    accepted = sum(one[4] for one in found)
    shown = None
    if winner is not None:
        shown = {"sha256": winner[0], "label": winner[2], "origin": winner[1], "geomean_speedup": winner[3],
                 "ci95": [winner[3] * 0.98, winner[3] * 1.02], "traffic_speedup": None, "traffic_ci95": None}  # fmt: skip
    counts = {"candidates": len(found), "accepted": accepted, "rejected": len(found) - accepted, "pending": 0}
    running = state == "running"
    row = {
        "id": job_id, "name": f"{task.name} {number}", "device": "cuda", "task_name": task.name,
        "task_sha256": task.sha256, "task_source": task.source, "from_catalog": True,
        "request": json.dumps({"budget": {"usd": 20}, "models": [{"model": name} for name in MODELS]}),
        "verdict": "accepted" if winner else None, "reason": "done" if winner else None,
        "winner_sha256": winner[0] if winner else None,
        "summary": json.dumps(held_out["summary"]) if held_out else None, "usd": round(drawn.uniform(0, 20), 4),
        "tokens": drawn.randrange(1_000_000), "state": state, "attempt": 1, "stalled_attempts": 0,
        "lease_owner": "benchmark" if running else None, "lease_until": 4e9 if running else None, "sent_at": None,
        "cancel_requested": False, "created_at": created, "started_at": created,
        "finished_at": None if running else created + timedelta(minutes=30),
        "tally": None if running else json.dumps({"counts": counts, "best": shown, "winner": shown}),
    }  # fmt: skip
    sink.columns["jobs"] = tuple(row)
    sink.waiting["jobs"].append(tuple(row.values()))
    _event(sink, job_id, "job.queued", "{}", None, created)
    if not running:
        _event(sink, job_id, "job.finished", json.dumps({"state": state}), "job.finished:end", created)


def _verdict(
    sink: Sink, job_id: str, sha256: str, phase: str, word: str, speedup: float | None, made: str, outline: str,
    when: datetime,
) -> None:  # fmt: skip
    low, high = (speedup * 0.98, speedup * 1.02) if speedup else (None, None)
    sink.add(
        "verdicts", job_id=job_id, sha256=sha256, phase=phase, word=word, reason=f"{word} at 16 shapes",
        geomean_speedup=speedup, ci_low=low, ci_high=high, body=made, outline=outline, created_at=when,
    )  # fmt: skip


def _event(sink: Sink, job_id: str, name: str, data: str, once: str | None, when: datetime) -> None:
    sink.add("events", job_id=job_id, time=when, name=name, data=data, once=once)


def _rank(
    sink: Sink, boards: dict[tuple[str, str], int], best: dict[int, float], task: Any, where: dict[str, Any],
    job_id: str, winner: Any, speedup: float, drawn: random.Random, created: datetime,
) -> None:  # fmt: skip
    key = (task.sha256, platform(where))
    if key not in boards:
        boards[key] = len(boards) + 1
        sink.add(
            "leaderboards", id=boards[key], task_sha256=task.sha256, task_name=task.name, harness=HARNESS_VERSION,
            platform=key[1], device="cuda", device_type=type_of(where), changed_at=created,
            versions=json.dumps({name: where[name] for name in ("driver", "power_limit_w", "torch", "triton")}),
        )  # fmt: skip
    board = boards[key]
    sink.entries += 1
    entry = sink.entries
    sink.add(
        "leaderboard_entries", id=entry, board_id=board, job_id=job_id, owner="", winner_sha256=winner[0],
        origin=winner[1], model=winner[2].split(" ")[0] if winner[1] == "llm" else None, label=winner[2], live=True,
        geomean=speedup, ci_low=speedup * 0.98, ci_high=speedup * 1.02, worst=speedup * 0.8, shapes=_TIMED,
        roofline_share=None, usd=round(drawn.uniform(0, 20), 4), entered_at=created,
    )  # fmt: skip
    if speedup > best.get(board, 0.0):
        best[board] = speedup
        sink.add("leaderboard_firsts", board_id=board, entry_id=entry, since=created)


def _settle(database: Database) -> None:
    """What bulk rows leave out: sequences past the given ids, and the planner's statistics."""
    with database.write() as session:
        if database.engine.dialect.name == "postgresql":
            for table in ("leaderboards", "leaderboard_entries"):
                session.execute(
                    text(f"SELECT setval('{table}_id_seq', (SELECT coalesce(max(id), 1) FROM {table}))")
                )
        session.execute(text("ANALYZE"))
    if database.engine.dialect.name == "postgresql":
        # As after its first minutes: else the server's own vacuum of a million new rows runs beside what is measured.
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (FREEZE, ANALYZE)"))
            connection.execute(text("CHECKPOINT"))
