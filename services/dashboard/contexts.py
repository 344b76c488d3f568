"""Template contexts of the pages, computed from the API's JSON objects.

Plain functions of stored data: pages can be rendered and tested without a server or a database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent.performance import bad_regions, rate_map
from agent.performance.money import Prices, Serving, serving
from evaluator.verdict import compiled_words, from_json
from services.dashboard import charts, event_text, formats, listing, ranking, words
from services.db.models import FINAL_STATES
from services.jobs.views import EventView

EVENTS_SHOWN = 50
# A job may have thousands of candidates; all of them are in the tables as data.
CANDIDATES_READ, ROWS_SHOWN = 200, 30
REJECTED_SHOWN = 10


def job_context(
    job: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]],
    reference: str,
    events: Sequence[EventView],
    held_out: Mapping[str, Any] | None,
    prices: Prices | None = None,
    *,
    earlier_events: int = 0,
    place: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that the job page shows, from the API's JSON objects and the prices in the settings.

    Args:
        job: GET /jobs/{id}.
        candidates: its candidates; only the winner and the leading one need sources and full verdicts.
        reference: the task's source.
        events: its log, or the end of it.
        held_out: the verdict on the delivered module.
        prices: prices of devices and energy.
        earlier_events: number of events before those given, excluding progress events.
        place: GET /jobs/{id}/place.
    """
    candidate, phase, verdict = ranking.delivered(job, candidates, held_out)
    rows = ranking.leaderboard(candidates, (job.get("winner") or {}).get("sha256"))
    timed = ranking.timed_shapes(verdict)
    shapes, summary = ranking.shapes_of(verdict), ranking.summary_of(verdict)
    shown = job.get("winner") or job.get("best") or {}
    labels = {one["sha256"]: one["label"] for one in candidates}
    events = [_labelled(event, labels) for event in events]
    told = [event for event in events if event.name != event_text.PROGRESS_EVENT]
    is_final = job["state"] in FINAL_STATES
    diff = listing.unified(reference, candidate["source"]) if candidate else None
    diff_shown, diff_hidden = listing.beginning(diff or ())
    reference_lines, reference_hidden = listing.beginning(
        [] if candidate else listing.highlighted_lines(reference)
    )
    return {
        "job": job,
        "rows": rows,
        "accepted": sum(row.verdict_word == "accepted" for row in rows),
        "has_traffic": any(row.by_traffic is not None for row in rows),
        "rejected": ranking.rejections(candidates),
        "delivered": candidate,
        "phase": phase,
        "verdict": verdict,
        "leading_summary": summary,
        "overfit_index": ranking.overfit_index(candidates, held_out),
        "shapes": shapes,
        "own": own_shapes(candidate),
        "baseline_names": ranking.baseline_names(shapes),
        "compiled_baselines": compiled_words(shape.get("baselines") or {} for shape in shapes),
        "shape_chart_wide": charts.shape_chart(timed, summary=summary, name="shapes-wide"),
        "shape_chart_narrow": charts.shape_chart(timed, summary=summary, narrow=True, name="shapes-narrow"),
        "map": rate_map_of(candidate, phase, verdict),
        "costs": costs(verdict, prices),
        "stages": ranking.stages(one for one in candidates if not ranking.is_delivery(one)),
        "progress_chart": charts.search_chart([one for one in candidates if not ranking.is_delivery(one)]),
        "is_final": is_final,
        "is_live": not is_final or job["counts"]["pending"] > 0,
        "rows_shown": ROWS_SHOWN,
        "rejected_shown": REJECTED_SHOWN,
        "left_out": max(0, job["counts"]["candidates"] - len(candidates))
        if len(candidates) >= CANDIDATES_READ // 2
        else 0,
        "place": place,
        "shown_id": next((one["id"] for one in candidates if one["sha256"] == shown.get("sha256")), ""),
        "optimized": next((one for one in reversed(candidates) if ranking.is_delivery(one)), None),
        "reading": words.reading(_headline_interval(job, shown)),
        "diff": diff if diff is None else diff_shown,
        "diff_hidden": diff_hidden,
        "reference_lines": reference_lines,
        "reference_hidden": reference_hidden,
        "environment": ranking.how_measured(verdict) or ranking.environment_of(candidates),
        "events": event_text.timeline(told[-EVENTS_SHOWN:], datetime.fromisoformat(job["created_at"])),
        "events_hidden": max(0, len(told) - EVENTS_SHOWN) + earlier_events,
        "last_event_id": events[-1].id if events else 0,
        "activity": event_text.activity(events),
        "profile": event_text.profile(events),
        "ceilings": event_text.ceilings(events),
    }


def rate_map_of(
    candidate: Mapping[str, Any] | None, phase: str, verdict: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Map of work per second over two sizes, from all timed shapes of the delivered or leading candidate."""
    verdicts = [verdict] if verdict else []
    for earlier in ("validation", "screen"):
        found = ranking.verdict_in(candidate or {}, earlier)
        if found is not None and earlier != phase:
            verdicts.append(found)
    points = rate_map.points_of(map(from_json, verdicts))
    if points is None:
        return None
    chart = rate_map.rate_map(points)
    return {
        "chart": chart,
        "svg": rate_map.draw(chart),
        "points": points,
        "sentences": bad_regions.sentences(points),
    }


def costs(verdict: Mapping[str, Any] | None, prices: Prices | None) -> list[Serving]:
    """Costs of reference and optimized calls on this job's device; omits lines with neither a price nor joules."""
    lines = serving([from_json(verdict)] if verdict else [], prices or Prices())
    return [line for line in lines if line.usd_per_million is not None or line.joules is not None]


def own_shapes(candidate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Shapes of the user's traffic at which the delivered or leading candidate was timed, largest weight first."""
    found = ranking.weighted_verdict(candidate)
    if found is None:
        return None
    phase, verdict = found
    timed = ranking.timed_shapes(verdict)
    weighed = [shape for shape in timed if formats.finite(shape.get("weight")) is not None]
    weighed.sort(key=lambda shape: -float(shape["weight"]))
    return {
        "phase": phase,
        "figures": ranking.traffic_of(ranking.summary_of(verdict)),
        "shapes": weighed,
        "baseline_names": ranking.baseline_names(weighed),
    }


def _headline_interval(job: Mapping[str, Any], shown: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval next to the headline speedup: held-out if available, else the leading candidate's."""
    summary = job.get("summary") or {}
    if summary.get("geomean_speedup") is not None:
        return formats.interval_bounds(summary.get("geomean_ci95"))
    return formats.interval_bounds(shown.get("ci95"))


def _labelled(event: EventView, labels: Mapping[str, str]) -> EventView:
    """Return the event, adding its candidate's label if only the digest was stored."""
    label = labels.get(str(event.data.get("sha256")))
    if event.data.get("label") or not label:
        return event
    return event.model_copy(update={"data": {**event.data, "label": label}})


def candidate_context(
    job: Mapping[str, Any],
    candidate: Mapping[str, Any],
    reference: str,
    parent: Mapping[str, Any] | None,
    against: str,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """Everything that a candidate's page shows; long texts are truncated unless `whole`."""
    against = "parent" if against == "parent" and parent is not None else "reference"
    old = parent["source"] if against == "parent" and parent is not None else reference
    sections: list[dict[str, Any]] = []
    for phase, title in (
        ("held_out", "Held-out shapes"),
        ("validation", "Validation shapes"),
        ("screen", "Visible and adversarial shapes"),
    ):
        verdict = ranking.verdict_in(candidate, phase)
        if verdict is None:
            continue
        shapes, timed, summary = (
            ranking.shapes_of(verdict),
            ranking.timed_shapes(verdict),
            ranking.summary_of(verdict),
        )
        sections.append(
            {
                "phase": phase,
                "title": title,
                "verdict": verdict,
                "summary": summary,
                "traffic": ranking.traffic_of(summary),
                "shapes": shapes,
                "has_timed": bool(timed),
                "baseline_names": ranking.baseline_names(shapes),
                "wide": charts.shape_chart(timed, summary=summary, name=f"{phase}-wide"),
                "narrow": charts.shape_chart(timed, summary=summary, narrow=True, name=f"{phase}-narrow"),
            }
        )
    diff = listing.unified(old, candidate["source"])
    diff_shown, diff_hidden = listing.beginning(diff or (), whole=whole)
    source_lines, source_hidden = listing.beginning(
        listing.highlighted_lines(candidate["source"]), whole=whole
    )
    return {
        "job": job,
        "candidate": candidate,
        "parent": parent,
        "is_delivery": ranking.is_delivery(candidate),
        "against": against,
        "sections": sections,
        "detail": next(
            (str(one["verdict"]["detail"]) for one in sections if one["verdict"].get("detail")), ""
        ),
        "diff": diff if diff is None else diff_shown,
        "diff_hidden": diff_hidden,
        "source_lines": source_lines,
        "source_hidden": source_hidden,
        "environment": ranking.environment_of([candidate]),
    }
