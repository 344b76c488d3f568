"""Drawing a job on a terminal, from the API's JSON. What candidates and compilers wrote is shown as plain text only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from evaluator.verdict import by_size
from services.dashboard import formats, ranking, words
from services.plain_text import plain_line

_STYLES = {"good": "green", "bad": "red", "cheat": "magenta", "warn": "yellow"}
_LONGEST_REASON = 90


def leaderboard(candidates: Sequence[Mapping[str, Any]], winner_sha256: str | None = None) -> Table:
    """Candidates as the job's page ranks them, then those in work, then the rejected with the reason.

    Args:
        candidates: as GET /jobs/{id}/candidates sends them.
        winner_sha256: the winner's digest, once there is one.
    """
    rows = ranking.leaderboard(candidates, winner_sha256)
    weighted = any(row.by_traffic is not None for row in rows)
    table = Table(title="Candidates (speedup over the best baseline, geometric mean)", title_justify="left")
    for name in ("rank", "candidate", "origin", "speedup", "95 % interval", "by traffic", "shapes", "worst shape", "lines",
                 "verdict"):  # fmt: skip
        if weighted or name != "by traffic":
            justify: Literal["left", "right"] = (
                "left" if name in ("candidate", "origin", "verdict") else "right"
            )
            table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row, weighted))
    return table


def _cells(row: ranking.Row, weighted: bool) -> list[Text]:
    candidate, said = row.candidate, words.verdict(row.verdict_word)
    name = Text(plain_line(candidate.get("label")) or plain_line(candidate.get("sha256"))[:12])
    if row.is_winner:
        name.append("  winner", style="bold green")
    if why := row.choice.get("why"):
        name.append(f"\n{plain_line(why)}", style="dim")
    if said.tone in ("bad", "cheat", "warn"):
        name.append(f"\n{_shortened(candidate.get('reason') or '')}", style="dim")
    where = "" if row.measured_on != "screen" or row.geomean is None else " on visible shapes only"
    where += " (the winner was chosen without it)" if row.after_choice else ""
    where += f" on {plain_line(row.elsewhere)}" if row.elsewhere else ""
    where += "".join(f"\n{plain_line(size)}" for size in by_size(row.summary).split(", ") if size)
    return [
        Text(str(row.rank) if row.rank else ""),
        name,
        Text(plain_line(words.origin(candidate.get("origin")).label)),
        Text(formats.speedup(row.geomean) + where, style="bold" if row.rank else "dim"),
        Text(formats.interval(row.ci95), style="" if row.ci95 else "dim"),
        *([Text(formats.speedup(row.by_traffic))] if weighted else []),
        Text(f"{row.choice['shapes']} of {row.choice['of_shapes']}" if row.choice else ""),
        Text(formats.speedup(row.worst), style="" if row.worst else "dim"),
        Text(formats.count(row.lines)),
        Text(plain_line(said.label), style=_STYLES.get(said.tone, "dim")),
    ]


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
            (plain_line(word), _STYLES.get(words.verdict(word).tone, "dim")),
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


def _shortened(text: str) -> str:
    line = plain_line(text)
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
