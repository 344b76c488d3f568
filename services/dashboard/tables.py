"""The pages' tables as data: the same rows as JSON or CSV, with plain numbers and empty missing values.

Spreadsheets evaluate CSV cells that look like formulas, and the texts are untrusted: such a text gets a leading apostrophe,
which spreadsheets treat as a text marker.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard import ranking

Json = Mapping[str, Any]
Cell = str | int | float | bool | None
#: First characters that make a cell a formula, including the full-width forms of East Asian keyboards.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_ENTRY = """label origin model speedup=geomean_speedup ci_low=ci95.0 ci_high=ci95.1 worst=worst_speedup shapes roofline_share usd
    entered_at sha256 job_id"""


@dataclass(frozen=True)
class Table:
    """Rows of one table; `next` is the next page's cursor, if any."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    next: str | None = None

    @classmethod
    def of(cls, rows: Iterable[Any], columns: str, more: str | None = None) -> Table:
        """Build a table from objects.

        Args:
            rows: mappings, or objects with attributes.
            columns: names of columns; `name=path` if the value is at another path, as in `ci_low=ci95.0`.
            more: the cursor for `next`.
        """
        named = [(name, path or name) for name, _, path in (one.partition("=") for one in columns.split())]
        made = tuple(tuple(_cell(_at(row, path)) for _, path in named) for row in rows)
        return cls(tuple(name for name, _ in named), made, more)

    def as_json(self) -> dict[str, Any]:
        """The table as a JSON object, with each row keyed by column."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "data": rows, "next": self.next}

    def as_csv(self) -> str:
        """The table as CSV with a header line, per RFC 4180."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(self.columns)
        writer.writerows([_no_formula(value) for value in row] for row in self.rows)
        return out.getvalue()


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


def _cell(value: Any) -> Cell:
    """A number or text unchanged; any other value as JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _no_formula(value: Cell) -> Cell:
    if isinstance(value, str) and (value.startswith(_FORMULA) or value.lstrip().startswith(_FORMULA)):
        return f"'{value}"
    return value


def jobs(views: Sequence[Json], more: str | None) -> Table:
    """The jobs of the overview."""
    columns = """id name state task=task.name catalog=task.catalog device verdict speedup=shown.geomean_speedup ci_low=shown.ci95.0
        ci_high=shown.ci95.1 measured_on found_by candidates=counts.candidates accepted=counts.accepted
        rejected=counts.rejected usd=spend.usd tokens=spend.tokens seconds=spend.seconds created_at finished_at"""
    return Table.of(map(_job, views), columns, more)


def _job(job: Json) -> Json:
    summary, best = job.get("summary") or {}, job.get("winner") or job.get("best") or {}
    where = "validation" if best else None
    if summary.get("geomean_speedup") is not None:
        shown, where = {**summary, "ci95": summary.get("geomean_ci95")}, "held_out"
    else:
        shown = best
    return {**job, "shown": shown, "measured_on": where, "found_by": best.get("origin")}


def candidates(rows: Sequence[ranking.Row]) -> Table:
    """A job's ranked candidates."""
    columns = """rank id=candidate.id sha256=candidate.sha256 label=candidate.label origin=candidate.origin verdict=verdict_word
        speedup=geomean ci_low=ci95.0 ci_high=ci95.1 by_traffic by_traffic_low=traffic_ci95.0
        by_traffic_high=traffic_ci95.1 worst measured_on elsewhere lines winner=is_winner
        parent_sha256=candidate.parent_sha256 created_at=candidate.created_at shapes=choice.shapes
        of_shapes=choice.of_shapes why=choice.why"""
    found = Table.of(rows, columns)
    return Table(
        found.columns, tuple(tuple(None if cell == "" else cell for cell in row) for row in found.rows)
    )


def rejected(reasons: Sequence[ranking.Reason]) -> Table:
    """Candidates that were rejected, and why."""
    columns = """id=candidate.id label=candidate.label origin=candidate.origin verdict=verdict_word reason=sentence rules"""
    rules = (" ".join(str(finding.get("rule")) for finding in one.findings) for one in reasons)
    return Table.of(({**vars(one), "rules": said} for one, said in zip(reasons, rules, strict=True)), columns)


def shapes(found: Sequence[Json]) -> Table:
    """Measurements at each shape; one column per size and per baseline, times in microseconds."""
    sizes = list(dict.fromkeys(str(name) for shape in found for name in shape.get("dims") or {}))
    names = ranking.baseline_names(found)
    given = Table.of(found, "split stratum weight correct timed")
    measured = Table.of(found, "best_baseline candidate_us speedup ci_low=ci95.0 ci_high=ci95.1 decision")
    rows = [
        (
            *(_cell((shape.get("dims") or {}).get(name)) for name in sizes),
            *before[:-1],
            bool(before[-1]),
            *(((shape.get("baselines") or {}).get(name) or {}).get("median_us") for name in names),
            *after,
        )
        for shape, before, after in zip(found, given.rows, measured.rows, strict=True)
    ]
    dims, times = (f"dim_{name}" for name in sizes), (f"{name}_us" for name in names)
    return Table((*dims, *given.columns, *times, *measured.columns), tuple(rows))


def findings(found: Sequence[Json]) -> Table:
    """The referee's findings."""
    return Table.of(found, "rule severity evidence")


def costs(lines: Sequence[Any]) -> Table:
    """Cost of calls: `agent.performance.money.Serving` of the reference and of the delivered module."""
    columns = "runs device us_per_call=call_us joules_per_call=joules calls_per_dollar shapes"
    return Table.of(
        (
            {
                **vars(line),
                "runs": "optimized" if line.optimized else "reference",
                "calls_per_dollar": line.calls_per_dollar,
            }
            for line in lines
        ),
        columns,
    )


def events(found: Sequence[Json], more: str | None) -> Table:
    """A job's log; `data` is JSON."""
    return Table.of(found, "id time name data", more)


def boards(views: Sequence[Json], more: str | None) -> Table:
    """Every board of the global leaderboard with its first entry."""
    first = " ".join(f"first_{one}" if "=" in one else f"first_{one}={one}" for one in _ENTRY.split())
    columns = "task task_sha256 gpu platform harness entries changed_at " + first.replace("=", "=first.")
    return Table.of(views, columns, more)


def entries(views: Sequence[Json], more: str | None) -> Table:
    """One board."""
    return Table.of(views, f"rank {_ENTRY}", more)


def firsts(views: Sequence[Json]) -> Table:
    """The holders of first place over time."""
    columns = "since until label origin model speedup=geomean_speedup ci_low=ci95.0 ci_high=ci95.1 job_id"
    return Table.of(views, columns)


def differences(ids: Sequence[str], rows: Sequence[Any]) -> Table:
    """Differences between candidates: one column per candidate, named by its id, with the page's wording."""
    return Table(("what", *ids), tuple((row.name, *row.values) for row in rows))


def workers(found: Sequence[Json]) -> Table:
    """The workers; the sandbox blocked `held` of the self-check's `attacks`."""
    columns = "id process device type state seen_at silent_s tier held attacks busy_share problem"
    return Table.of(found, columns)


def devices(found: Sequence[Json]) -> Table:
    """The devices; one column per ceiling measured on any of them, in the unit at the end of its name."""
    rates = sorted({name for one in found for name in one["rates"]})
    known = Table.of(found, "device type gpu_uuid driver torch triton python threads power_limit_w workers")
    rows = (
        (*row, *(one["rates"].get(name) for name in rates))
        for row, one in zip(known.rows, found, strict=True)
    )
    return Table((*known.columns, *rates), tuple(rows))
