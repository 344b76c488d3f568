"""Drawing a job on a terminal, from the API's JSON. What candidates and compilers wrote is shown as plain text only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from evaluator.verdict import by_size
from services.plain_text import plain_line

_COLORS = {"accepted": "green", "not_judged": "yellow"}
_LONGEST_REASON = 90


def leaderboard(candidates: Sequence[Mapping[str, Any]]) -> Table:
    """Candidates as a table: accepted ones by their speedup, weighted by the traffic if that is known, then rejected ones."""
    weighted = any(measured(view)[3] is not None for view in candidates)
    table = Table(title="Candidates (speedup over the best baseline, geometric mean)", title_justify="left")
    table.add_column("candidate", overflow="fold")
    table.add_column("origin")
    table.add_column("verdict")
    table.add_column("speedup", justify="right")
    table.add_column("95 % interval", justify="right")
    if weighted:
        table.add_column("by traffic", justify="right")
    table.add_column("measured on")
    for view in sorted(candidates, key=rank):
        speedup, interval, phase, by_traffic = measured(view)
        word = view["verdict"] or "pending"
        strata = by_size((view.get(phase) or {}).get("summary") or {}).replace(", ", "\n")
        name = Text(plain_line(view["label"]))
        if word not in ("accepted", "pending"):
            name.append(f"\n{_shortened(view['reason'] or '')}", style="dim")
        choice = view.get("choice") or {}
        if choice.get("why"):
            name.append(f"\n{plain_line(choice['why'])}", style="dim")
        table.add_row(
            name,
            plain_line(view["origin"]),
            Text(plain_line(word), style=_COLORS.get(word, "red" if view["verdict"] else "dim")),
            (f"{speedup:.2f}x" + (f"\n{strata}" if strata else "")) if speedup is not None else "-",
            f"{interval[0]:.2f} .. {interval[1]:.2f}" if interval else "-",
            *([f"{by_traffic:.2f}x" if by_traffic is not None else "-"] if weighted else []),
            phase + (f", {choice['shapes']} of {choice['of_shapes']} shapes" if choice else ""),
        )
    return table


def event_line(event: Mapping[str, Any]) -> Text | None:
    """One event as a line, or None when the leaderboard says it better."""
    name, data = event["name"], event["data"]
    if name == "candidate.judged":
        speedup = data.get("geomean_speedup")
        shown = f" {speedup:.2f}x" if isinstance(speedup, int | float) else ""
        label = data.get("label") or "optimized.py"
        word = str(data.get("verdict"))
        return Text.assemble(
            "judged ",
            plain_line(label),
            f" ({data.get('phase')}): ",
            (plain_line(word), _COLORS.get(word, "red")),
            shown,
        )
    if name == "portfolio.changed":
        speedup, seconds = data.get("geomean_speedup"), data.get("seconds")
        what = "first accepted candidate" if data.get("provisional") else "best so far"
        told = f"{what}: {plain_line(data.get('label'))} ({plain_line(data.get('origin'))})"
        told += f" {speedup:.2f}x" if isinstance(speedup, int | float) else ""
        told += f" after {seconds:.0f} s" if isinstance(seconds, int | float) else ""
        return Text(
            told + (", provisional: not validated yet" if data.get("provisional") else ""), style="bold"
        )
    if name == "candidate.proposed":
        return Text(
            f"proposed {plain_line(data.get('label'))} ({plain_line(data.get('origin'))})", style="dim"
        )
    if name == "budget.spent" and "tokens" not in data:
        return Text(plain_line(data.get("text") or data.get("reason")), style="yellow")
    if name == "job.progress":
        return Text(plain_line(data.get("text")), style="dim")
    if name == "task.inferred":
        return Text("\n".join(plain_line(line) for line in str(data["text"]).splitlines()))
    if name in ("job.failed", "job.cancelled", "job.finished", "job.waiting"):
        return Text(f"{name}: {_shortened(data.get('reason') or '')}")
    return None


def rank(view: Mapping[str, Any]) -> tuple[bool, float, float]:
    """What candidates are sorted by: accepted ones first, in the order of the choice, then the fastest before the others."""
    speedup, _, _, by_traffic = measured(view)
    place = (view.get("choice") or {}).get("place", math.inf)
    return view["verdict"] != "accepted", place, -(by_traffic or speedup or 0.0)


def measured(view: Mapping[str, Any]) -> tuple[float | None, Sequence[float] | None, str, float | None]:
    """Speedup, its interval, the phase of both, and the speedup weighted by the traffic; once a winner is chosen, as it was chosen by."""
    choice = view.get("choice") or {}
    for phase in ("validation", "screen"):
        summary = (view.get(phase) or {}).get("summary") or {}
        if summary.get("geomean_speedup") is not None:
            traffic = (summary.get("traffic") or {}).get("geomean_speedup")
            if choice and traffic is None:
                return choice["geomean_speedup"], choice["ci95"], phase, None
            return (
                summary["geomean_speedup"], summary.get("geomean_ci95"), phase,
                choice["geomean_speedup"] if choice else traffic,
            )  # fmt: skip
    return None, None, "-", None


def _shortened(text: str) -> str:
    line = plain_line(text)
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
