"""What one complete run per origin showed: a row per job from its store, totals per origin, tables.

A job's figure is the geometric mean over the held-out shapes of its delivered file, against the best baseline at each shape.
An origin's is the geometric mean of its jobs' figures, each task counting alike, with Student's interval over tasks. A job whose
candidates are all slower than the best baseline delivers nothing and has no such figure, which flatters its origin: beside it
stands what each job's best accepted candidate reached at the validation shapes, delivered or not. Share of the roofline is the time that inputs, outputs and products take at this device's measured ceilings, over the candidate's time:
as a replayed CUDA graph where that was measured, so that it says something of the kernel and not of the host. Arithmetic that is
no product of matrices is not in it, so a module full of exponentials cannot reach 1.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from agent.records import account
from evaluator.timing.statistics import t975
from evaluator.verdict import ShapeResult, Verdict

if TYPE_CHECKING:
    from agent.candidates import Candidate
    from agent.spec import JobOutcome
    from agent.stores.folder import FolderStore

#: States of a job after which running it again changes nothing.
FINAL = ("succeeded", "failed")
_KEPT = (
    "dims", "speedup", "ci95", "decision", "best_baseline", "baseline_us", "candidate_us", "disturbed_quads", "clock",
)  # fmt: skip
_KEPT_CAPTURED = ("speedup", "ci95", "decision", "baseline_us", "candidate_us", "why_not")


def row_of(task: str, origin: str, outcome: JobOutcome, store: FolderStore) -> dict[str, Any]:
    """What is kept of a job.

    Args:
        task: its name.
        origin: ``compiler``, ``human``, ``library`` or ``batch``.
        outcome: how it ended.
        store: everything it found.
    """
    candidates = store.candidates()
    judged = {
        phase: {one.sha256: found for one in candidates if (found := store.verdict(one.sha256, phase))}
        for phase in ("screen", "validation", "held_out")
    }
    # The file that is delivered is one of the candidates again.
    proposed = [one for one in candidates if one.label != "optimized.py" and one.sha256 in judged["screen"]]
    words = Counter(_last(one, judged).verdict for one in proposed)
    verdicts = [verdict for phase in judged.values() for verdict in phase.values()]
    held_out = next(iter(judged["held_out"].values()), None)
    plans = [step for step in store.steps("optimized/").values() if isinstance(step, dict)]
    spent = account(store).get("spent", {})
    budget = store.step("budget")
    return {
        "task": task,
        "origin": origin,
        "state": outcome.state,
        "verdict": outcome.verdict_word,
        "reason": outcome.reason,
        "cut": budget["reason"] if isinstance(budget, dict) else "",
        "candidates": [
            {
                "label": one.label,
                "sha256": one.sha256,
                "verdict": _last(one, judged).verdict,
                "reason": _last(one, judged).reason,
                "validation": _figures(judged["validation"].get(one.sha256)),
            }
            for one in proposed
        ],
        "judged": len(proposed),
        "accepted": words["accepted"],
        "words": dict(words),
        "decision": plans[-1]["decision"] if plans else None,
        "winner": next((one.label for one in candidates if one.sha256 == outcome.winner_sha256), None),
        "held_out": _figures(held_out) if held_out and held_out.verdict == "accepted" else None,
        "shapes": [_shape(shape) for shape in (held_out.shapes if held_out else ()) if shape.speedup],
        "usd": float(spent.get("usd") or 0.0),
        "tokens": int(spent.get("tokens") or 0),
        "device_s": attempts_s(store.events()),
        "judging_s": sum(verdict.elapsed_s for verdict in verdicts),
        "baselines_s": sum(map(baselines_s, verdicts)),
        "environment": next((v.environment for v in [held_out, *verdicts] if v and v.environment), {}),
    }


def baselines_s(verdict: Verdict) -> float:
    """Seconds of a verdict that went to the task and not to its candidate; the second candidate finds it done."""
    return sum(verdict.stages_s.get(stage, 0.0) for stage in ("baseline_compile", "baselines", "aa"))


def _last(candidate: Candidate, judged: dict[str, dict[str, Verdict]]) -> Verdict:
    return judged["validation"].get(candidate.sha256) or judged["screen"][candidate.sha256]


def _figures(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None or not verdict.summary.geomean_speedup:
        return None
    return {
        name: getattr(verdict.summary, name)
        for name in ("geomean_speedup", "geomean_ci95", "worst_speedup", "shapes")
    }


def _shape(shape: ShapeResult) -> dict[str, Any]:
    captured = shape.captured or {}
    kept = {name: captured[name] for name in _KEPT_CAPTURED if name in captured}
    return {**{name: getattr(shape, name) for name in _KEPT}, "captured": kept or None, "least_us": None}


def attempts_s(events: Sequence[dict[str, Any]]) -> float:
    """Seconds in which a job held its device: of each attempt, from its beginning to the last sign of it."""
    total_s, began, last = 0.0, None, None
    for event in events:
        at = datetime.fromisoformat(event["time"])
        if event["name"] == "job.started":
            if began is not None and last is not None:
                total_s += (last - began).total_seconds()
            began = at
        last = at
    return total_s + ((last - began).total_seconds() if began is not None and last is not None else 0.0)


def geomean(values: Iterable[float]) -> float | None:
    """Geometric mean; None of nothing."""
    known = list(values)
    return statistics.geometric_mean(known) if known else None


def interval_over_tasks(values: Sequence[float]) -> list[float] | None:
    """95 % interval of a geometric mean, by Student's t over the logs; None of fewer than two."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2:
        return None
    half = t975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.fmean(logs)
    return [math.exp(middle - half), math.exp(middle + half)]


def validated_speedup(row: dict[str, Any]) -> float | None:
    """Of a job's best accepted candidate at the validation shapes, whether or not it was delivered; None without one."""
    found = [one["validation"]["geomean_speedup"] for one in row["candidates"] if one["validation"]]
    return max(found, default=None)


def captured_geomean(row: dict[str, Any]) -> float | None:
    """A job's speedup with both sides replayed as CUDA graphs; None unless every shape has one."""
    figures = [float((shape["captured"] or {}).get("speedup") or 0.0) for shape in row["shapes"]]
    return geomean(figures) if all(figures) else None


def roofline(row: dict[str, Any]) -> float | None:
    """A job's share of the roofline, geometric mean over its held-out shapes; None where a shape's bound is not known."""
    least = [shape["least_us"] for shape in row["shapes"]]
    if not least or not all(least):
        return None
    return geomean(shape["least_us"] / _kernel_us(shape) for shape in row["shapes"])


def _kernel_us(shape: dict[str, Any]) -> float:
    return float((shape["captured"] or {}).get("candidate_us") or shape["candidate_us"])


def is_improved(row: dict[str, Any]) -> bool:
    """Whether a delivered file is faster than the best baseline beyond doubt: the whole interval is above 1."""
    figures = row["held_out"]
    return bool(figures and figures["geomean_ci95"] and figures["geomean_ci95"][0] > 1.0)


def latest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per task and origin: what is final before what is not, and the later one of two alike."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["task"], row["origin"])
        known = best.get(key)
        if known is None or row["state"] in FINAL or known["state"] not in FINAL:
            best[key] = row
    return list(best.values())


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Totals, one entry per origin; rows of jobs that did not come to an end are only counted."""
    found = []
    for origin in dict.fromkeys(row["origin"] for row in rows):
        every = [row for row in rows if row["origin"] == origin]
        mine = [row for row in every if row["state"] in FINAL]
        delivered = [row for row in mine if row["held_out"]]
        speedups = [row["held_out"]["geomean_speedup"] for row in delivered]
        judged, accepted = (sum(row[name] for row in mine) for name in ("judged", "accepted"))
        improved = sum(map(is_improved, mine))
        shapes = [
            (shape["speedup"], row["task"], shape["dims"]) for row in delivered for shape in row["shapes"]
        ]
        worst = min(shapes, key=lambda one: one[0], default=None)
        captured = [value for row in delivered if (value := captured_geomean(row)) is not None]
        shares = [value for row in delivered if (value := roofline(row)) is not None]
        validated = [value for row in mine if (value := validated_speedup(row)) is not None]
        found.append(
            {
                "origin": origin,
                "tasks": len(mine),
                "not_ended": sorted(row["task"] for row in every if row["state"] not in FINAL),
                "delivered": len(delivered),
                "judged": judged,
                "accepted": accepted,
                "share_accepted": accepted / judged if judged else None,
                "improved": improved,
                "share_improved": improved / len(mine) if mine else None,
                "geomean_speedup": geomean(speedups),
                "geomean_ci95": interval_over_tasks(speedups),
                "shapes": len(shapes),
                "worst": None
                if worst is None
                else dict(zip(("speedup", "task", "dims"), worst, strict=True)),
                "validated_geomean_speedup": geomean(validated),
                "validated_tasks": len(validated),
                "captured_geomean_speedup": geomean(captured),
                "captured_tasks": len(captured),
                "roofline": geomean(shares),
                "roofline_tasks": len(shares),
                "usd": sum(row["usd"] for row in mine),
                "tokens": sum(row["tokens"] for row in mine),
                "device_s": sum(row["device_s"] for row in mine),
                "baselines_s": sum(row["baselines_s"] for row in mine),
            }
        )
    return found


def show(rows: Sequence[dict[str, Any]], console: Console) -> list[dict[str, Any]]:
    """Prints a line per job and a line per origin; returns the totals."""
    jobs = Table(
        "task", "origin", "state", "accepted", "winner", "held-out", "95 % interval", "worst", "as a graph", "validation",
        "roofline", "USD", "device s", "of them baselines", title="jobs",
    )  # fmt: skip
    for row in sorted(rows, key=lambda row: (row["task"], row["origin"])):
        figures = row["held_out"] or {}
        jobs.add_row(
            row["task"],
            row["origin"],
            row["state"] + (f", cut: {row['cut']}" if row["cut"] else ""),
            f"{row['accepted']} of {row['judged']}",
            row["winner"] or "",
            _times(figures.get("geomean_speedup")),
            _range(figures.get("geomean_ci95")),
            _times(figures.get("worst_speedup")),
            _times(captured_geomean(row)),
            _times(validated_speedup(row)),
            _percent(roofline(row)),
            f"{row['usd']:.2f}",
            f"{row['device_s']:.0f}",
            f"{row['baselines_s']:.0f}",
        )
    console.print(jobs)
    totals = summarize(rows)
    table = Table(
        "origin", "tasks", "delivered", "candidates accepted", "tasks improved", "held-out", "95 % interval", "worst shape",
        "as a graph", "best at validation", "roofline", "USD", "device s", "of them baselines", title="origins",
    )  # fmt: skip
    for one in totals:
        worst = one["worst"]
        table.add_row(
            one["origin"],
            str(one["tasks"]),
            str(one["delivered"]),
            f"{one['accepted']} of {one['judged']}, {_percent(one['share_accepted'])}",
            f"{one['improved']} of {one['tasks']}, {_percent(one['share_improved'])}",
            _times(one["geomean_speedup"]),
            _range(one["geomean_ci95"]),
            f"{_times(worst['speedup'])} {worst['task']}" if worst else "",
            f"{_times(one['captured_geomean_speedup'])} ({one['captured_tasks']})",
            f"{_times(one['validated_geomean_speedup'])} ({one['validated_tasks']})",
            f"{_percent(one['roofline'])} ({one['roofline_tasks']})",
            f"{one['usd']:.2f}",
            f"{one['device_s']:.0f}",
            f"{one['baselines_s']:.0f}",
        )
    console.print(table)
    for one in totals:
        if one["not_ended"]:
            console.print(f"{one['origin']}: not ended: {', '.join(one['not_ended'])}", highlight=False)
    return totals


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _range(values: Sequence[float] | None) -> str:
    return f"{values[0]:.2f} to {values[1]:.2f}" if values else ""


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
