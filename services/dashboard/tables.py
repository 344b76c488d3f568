"""Every table of the pages as data: the same rows as JSON or CSV, with numbers as numbers and a missing one left empty.

A CSV is opened by spreadsheets, which run what looks like a formula, and its texts come from strangers: such a text gets an
apostrophe in front, which spreadsheets take as "this is text".
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard import ranking

Json = Mapping[str, Any]
Cell = str | int | float | bool | None
#: First characters that make a formula of a cell, in the widths that East Asian keyboards write them, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True)
class Table:
    """Rows of one table. `next` is the cursor of the following page, where there is one."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    next: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Each row as an object, by column."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "data": rows, "next": self.next}

    def as_csv(self) -> str:
        """With a head line; line ends and quotes as RFC 4180 has them."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return out.getvalue()


def _cell(value: Cell) -> Cell:
    if isinstance(value, str) and (value.startswith(_FORMULA) or value.lstrip().startswith(_FORMULA)):
        return f"'{value}"
    return value


def jobs(views: Sequence[Json], more: str | None) -> Table:
    """The jobs of the overview."""
    columns = (
        "id", "name", "state", "task", "catalog", "device", "verdict", "speedup", "ci_low", "ci_high", "measured_on",
        "found_by", "candidates", "accepted", "rejected", "usd", "tokens", "seconds", "created_at", "finished_at",
    )  # fmt: skip
    return Table(columns, tuple(_job(job) for job in views), more)


def _job(job: Json) -> tuple[Cell, ...]:
    shown: Json = job.get("winner") or job.get("best") or {}
    summary: Json = job.get("summary") or {}
    held_out = summary.get("geomean_speedup") is not None
    speedup, interval = (
        (summary.get("geomean_speedup"), summary.get("geomean_ci95"))
        if held_out
        else (shown.get("geomean_speedup"), shown.get("ci95"))
    )
    counts, spend, task = job["counts"], job["spend"], job["task"]
    return (
        job["id"], job["name"], job["state"], task["name"], task["catalog"], job["device"], job.get("verdict"), speedup,
        *_bounds(interval), "held_out" if held_out else "validation" if shown else None, shown.get("origin"),
        counts["candidates"], counts["accepted"], counts["rejected"], spend["usd"], spend["tokens"], spend["seconds"],
        job["created_at"], job.get("finished_at"),
    )  # fmt: skip


def candidates(rows: Sequence[ranking.Row]) -> Table:
    """A job's ranked candidates."""
    columns = (
        "rank", "id", "sha256", "label", "origin", "verdict", "speedup", "ci_low", "ci_high", "by_traffic",
        "by_traffic_low", "by_traffic_high", "worst", "measured_on", "elsewhere", "lines", "winner", "parent_sha256",
        "created_at", "shapes", "of_shapes", "why",
    )  # fmt: skip
    return Table(
        columns,
        tuple(
            (
                row.rank, row.candidate["id"], row.candidate["sha256"], row.candidate["label"],
                row.candidate["origin"], row.verdict_word, row.geomean, *_bounds(row.ci95), row.by_traffic,
                *_bounds(row.traffic_ci95), row.worst, row.measured_on or None, row.elsewhere or None, row.lines,
                row.is_winner, row.candidate.get("parent_sha256"), row.candidate.get("created_at"),
                row.choice.get("shapes"), row.choice.get("of_shapes"), row.choice.get("why") or None,
            )
            for row in rows
        ),
    )  # fmt: skip


def rejected(reasons: Sequence[ranking.Reason]) -> Table:
    """Who was turned down, and why."""
    return Table(
        ("id", "label", "origin", "verdict", "reason", "rules"),
        tuple(
            (
                one.candidate["id"], one.candidate["label"], one.candidate["origin"], one.verdict_word, one.sentence,
                " ".join(str(finding.get("rule")) for finding in one.findings),
            )
            for one in reasons
        ),
    )  # fmt: skip


def shapes(found: Sequence[Json]) -> Table:
    """What was measured at each shape; one column for each size and each baseline, times in microseconds."""
    sizes = list(dict.fromkeys(str(name) for shape in found for name in shape.get("dims") or {}))
    names = ranking.baseline_names(found)
    columns = (
        *(f"dim_{name}" for name in sizes), "split", "stratum", "weight", "correct", "timed",
        *(f"{name}_us" for name in names), "best_baseline", "candidate_us", "speedup", "ci_low", "ci_high", "decision",
    )  # fmt: skip
    return Table(columns, tuple(_shape(shape, sizes, names) for shape in found))


def _shape(shape: Json, sizes: Sequence[str], names: Sequence[str]) -> tuple[Cell, ...]:
    dims, timed = shape.get("dims") or {}, shape.get("baselines") or {}
    return (
        *(_plain(dims.get(name)) for name in sizes), shape.get("split"), shape.get("stratum"), shape.get("weight"),
        shape.get("correct"), bool(shape.get("timed")),
        *((timed.get(name) or {}).get("median_us") for name in names), shape.get("best_baseline"),
        shape.get("candidate_us"), shape.get("speedup"), *_bounds(shape.get("ci95")), shape.get("decision"),
    )  # fmt: skip


def findings(found: Sequence[Json]) -> Table:
    """What the referee remarked on."""
    return Table(
        ("rule", "severity", "evidence"),
        tuple(tuple(_plain(one.get(name)) for name in ("rule", "severity", "evidence")) for one in found),
    )


def costs(lines: Sequence[Any]) -> Table:
    """What calls cost: `agent.performance.money.Serving` of the reference and of what is delivered."""
    return Table(
        ("runs", "device", "us_per_call", "joules_per_call", "calls_per_dollar", "shapes"),
        tuple(
            (
                "optimized" if line.optimized else "reference", line.device, line.call_us, line.joules,
                line.calls_per_dollar, line.shapes,
            )
            for line in lines
        ),
    )  # fmt: skip


def events(found: Sequence[Json], more: str | None) -> Table:
    """A job's log; `data` is JSON."""
    return Table(
        ("id", "time", "name", "data"),
        tuple((one["id"], one["time"], one["name"], json.dumps(one["data"])) for one in found),
        more,
    )


_FIGURES = ("label", "origin", "model", "speedup", "ci_low", "ci_high", "worst", "shapes", "roofline_share", "usd", "entered_at",
            "sha256", "job_id")  # fmt: skip


def boards(views: Sequence[Json], more: str | None) -> Table:
    """Every board of the global leaderboard with who is first."""
    columns = ("task", "task_sha256", "gpu", "platform", "harness", "entries", "changed_at")
    return Table(
        (*columns, *(f"first_{name}" for name in _FIGURES)),
        tuple((*(view[name] for name in columns), *_entry(view["first"] or {})) for view in views),
        more,
    )


def entries(views: Sequence[Json], more: str | None) -> Table:
    """One board."""
    return Table(("rank", *_FIGURES), tuple((view["rank"], *_entry(view)) for view in views), more)


def _entry(view: Json) -> tuple[Cell, ...]:
    return (
        view.get("label"), view.get("origin"), view.get("model"), view.get("geomean_speedup"),
        *_bounds(view.get("ci95")), view.get("worst_speedup"), view.get("shapes"), view.get("roofline_share"),
        view.get("usd"), view.get("entered_at"), view.get("sha256"), view.get("job_id"),
    )  # fmt: skip


def firsts(views: Sequence[Json]) -> Table:
    """Who was first when."""
    return Table(
        ("since", "until", "label", "origin", "model", "speedup", "ci_low", "ci_high", "job_id"),
        tuple(
            (
                view["since"], view["until"], view["label"], view["origin"], view["model"], view["geomean_speedup"],
                *_bounds(view["ci95"]), view["job_id"],
            )
            for view in views
        ),
    )  # fmt: skip


def differences(ids: Sequence[str], rows: Sequence[Any]) -> Table:
    """What differs between candidates: a column for each, called by its id, with the words of the page."""
    return Table(("what", *ids), tuple((row.name, *row.values) for row in rows))


_WORKER = (
    "id",
    "process",
    "device",
    "type",
    "state",
    "seen_at",
    "silent_s",
    "tier",
    "held",
    "attacks",
    "busy_share",
    "problem",
)
_DEVICE = (
    "device",
    "type",
    "gpu_uuid",
    "driver",
    "torch",
    "triton",
    "python",
    "threads",
    "power_limit_w",
    "workers",
)


def workers(found: Sequence[Json]) -> Table:
    """Who judges here. `held` of `attacks`: its own attacks on its sandbox."""
    return Table(_WORKER, tuple(tuple(one[name] for name in _WORKER) for one in found))


def devices(found: Sequence[Json]) -> Table:
    """Each device; a column for each ceiling that was measured on any of them, in the unit that its name ends with."""
    rates = sorted({name for one in found for name in one["rates"]})
    rows = ((*(one[name] for name in _DEVICE), *(one["rates"].get(name) for name in rates)) for one in found)
    return Table((*_DEVICE, *rates), tuple(rows))


def _bounds(interval: Any) -> tuple[Cell, Cell]:
    return (interval[0], interval[1]) if interval else (None, None)


def _plain(value: Any) -> Cell:
    """A size or a text of a verdict; whatever is neither is shown as JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
