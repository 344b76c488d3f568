"""Compares candidates side by side: ``/ui/compare?candidate=ID&candidate=ID`` shows differences and counts the rest.

Candidates may belong to several jobs. If the reader may not see one of them, the page reports that it does not exist, as its
own page does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from evaluator.fingerprint import platform, type_of
from evaluator.sources import lines_of_code
from services.api.deps import Route, SessionDep
from services.dashboard import exports, formats, listing, ranking, tables, words
from services.dashboard.rendering import page, plain, render
from services.errors import FieldError, Refused
from services.jobs import read

MOST = 6
_LONGEST = 600  # characters of text in a cell
PHASES = (("held_out", "Held-out"), ("validation", "Validation"), ("screen", "Screening"))

router = APIRouter(route_class=Route, include_in_schema=False)
Wanted = Annotated[list[str] | None, Query(max_length=50)]


@dataclass(frozen=True)
class Side:
    """One candidate with its job and its task's text."""

    candidate: Mapping[str, Any]
    job: Mapping[str, Any]
    task: str

    @property
    def name(self) -> str:
        """Display name: the label, or the start of the digest."""
        return str(self.candidate["label"] or self.candidate["sha256"][:12])


@dataclass(frozen=True)
class Difference:
    """One fact that differs: its name and each candidate's value, in words."""

    name: str
    values: tuple[str, ...]


@router.get("/ui/compare")
@page
def compare_page(session: SessionDep, candidate: Wanted = None) -> Response:
    """Two or more candidates, and what differs between them."""
    sides = _sides(session, candidate or [])
    facts, alike = differences(sides)
    shapes, shapes_alike = shape_differences(sides)
    diffs = []
    for other in sides[1:]:
        found = listing.unified(sides[0].candidate["source"], other.candidate["source"])
        shown, hidden = listing.beginning(found or ())
        diffs.append({"other": other, "lines": None if found is None else shown, "hidden": hidden})
    machines = {_platform(side) for side in sides} - {""}
    return render(
        "compare.html",
        sides=sides,
        facts=facts,
        alike=alike,
        shapes=shapes,
        shapes_alike=shapes_alike,
        diffs=diffs,
        one_task=len({side.task for side in sides}) == 1,
        one_machine=len(machines) <= 1,
        query=urlencode([("candidate", side.candidate["id"]) for side in sides]),
    )


@router.get("/ui/compare/tables/{file}")
def compare_table(request: Request, session: SessionDep, file: str, candidate: Wanted = None) -> Response:
    """One of the page's tables: `facts`, `shapes`."""
    name, ending = exports.parts_of(file, "facts", "shapes")
    sides = _sides(session, candidate or [])
    found = differences(sides)[0] if name == "facts" else shape_differences(sides)[0]
    table = tables.differences([side.candidate["id"] for side in sides], found)
    return exports.answer_of(request, table, f"compare-{name}", ending)


def differences(sides: Sequence[Side]) -> tuple[list[Difference], int]:
    """Return the facts that differ between candidates, and the number of identical ones."""
    of_each = [_facts(side) for side in sides]
    names = list(dict.fromkeys(name for facts in of_each for name in facts))
    return _different([(name, [facts.get(name, words.NOT_MEASURED) for facts in of_each]) for name in names])


def shape_differences(sides: Sequence[Side]) -> tuple[list[Difference], int]:
    """Return the timed shapes whose results differ, and the number of shapes with identical results."""
    rows: dict[str, list[str]] = {}
    for phase, title in PHASES:
        for place, side in enumerate(sides):
            for shape in ranking.shapes_of(ranking.verdict_in(side.candidate, phase)):
                kind = words.split(shape.get("split")).label
                where = title if kind.replace(" ", "-") == title.lower() else f"{title}: {kind}"
                name = f"{where}, {formats.dims(shape.get('dims'))}"
                values = rows.setdefault(name, [words.NOT_MEASURED] * len(sides))
                values[place] = _at_shape(shape)
    return _different(list(rows.items()))


def _different(rows: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[Difference], int]:
    found = [Difference(name, tuple(values)) for name, values in rows if len(set(values)) > 1]
    return found, len(rows) - len(found)


def _sides(session: Session, wanted: Sequence[str]) -> list[Side]:
    """Load each candidate once, in the requested order.

    Raises:
        NotFound: a candidate does not exist, or the caller may not see it.
        Refused: fewer than two candidates, or too many.
    """
    ids = list(dict.fromkeys(wanted))
    if not 2 <= len(ids) <= MOST:
        raise Refused([FieldError("candidate", f"Choose 2 to {MOST} candidates; {len(ids)} were named.")])
    sides = []
    for one in ids:
        candidate = plain(read.get_candidate(session, one))
        job = plain(read.get_job(session, candidate["job_id"]))
        sides.append(Side(candidate, job, read.task_source(session, candidate["job_id"])))
    return sides


def _facts(side: Side) -> dict[str, str]:
    one, job = side.candidate, side.job
    facts = {
        "label": side.name,
        "origin": words.origin(one["origin"]).label,
        "verdict": words.verdict(one["verdict"]).label,
        "reason": str(one["reason"] or "")[:_LONGEST],
        "findings": ", ".join(words.rule(str(item.get("rule"))) for item in one["findings"]),
        "proposer's note": one["note"][:_LONGEST],
        "parent": str(one["parent_sha256"] or "")[:12],
        "source": f"{one['sha256'][:12]}, {formats.counted(lines_of_code(one['source']), 'line')}",
        "job": f"{job['name']} ({job['id'][-8:]})",
        "task": f"{job['task']['name']} ({job['task']['sha256'][:12]})",
        "winner of its job": "yes" if (job["winner"] or {}).get("sha256") == one["sha256"] else "no",
        "measured on": _machine(side),
    }
    for phase, title in PHASES:
        verdict = ranking.verdict_in(one, phase)
        if verdict is None:
            continue
        summary = ranking.summary_of(verdict)
        traffic = ranking.traffic_of(summary)
        facts |= {
            f"{title}: verdict": words.verdict(str(verdict.get("verdict"))).label,
            f"{title}: speedup": _with_interval(summary.get("geomean_speedup"), summary.get("geomean_ci95")),
            f"{title}: worst shape": formats.speedup(summary.get("worst_speedup")),
            f"{title}: slower at": formats.percent(summary.get("share_slower")),
            f"{title}: set-up": formats.seconds(verdict.get("setup_s")),
            f"{title}: compile": formats.seconds(verdict.get("compile_s")),
        }
        if traffic:
            facts[f"{title}: by traffic"] = _with_interval(
                traffic.get("geomean_speedup"), traffic.get("geomean_ci95")
            )
    return facts


def _at_shape(shape: Mapping[str, Any]) -> str:
    if shape.get("correct") is False:
        return "wrong result"
    if not shape.get("timed"):
        return "correct, not timed" if shape.get("correct") else "not timed"
    return _with_interval(shape.get("speedup"), shape.get("ci95"))


def _with_interval(value: Any, bounds: Any) -> str:
    said = formats.speedup(value)
    return said if said == words.NOT_MEASURED else f"{said} ({formats.interval(bounds)})"


def _machine(side: Side) -> str:
    environment = ranking.environment_of([side.candidate])
    versions = [
        f"{name} {environment[name]}" for name in ("driver", "torch", "triton") if environment.get(name)
    ]
    return " · ".join([type_of(environment), *versions]) if environment else words.NOT_MEASURED


def _platform(side: Side) -> str:
    environment = ranking.environment_of([side.candidate])
    return json.dumps(platform(environment)) if environment else ""
