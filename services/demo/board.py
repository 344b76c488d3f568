"""The leaderboard on a terminal: the same ranks, words and origins as on the job's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from services.dashboard import formats, words
from services.dashboard.ranking import Row, leaderboard
from services.plain_text import plain_line

_STYLES = {"good": "green", "bad": "red", "cheat": "magenta", "warn": "yellow"}
_LONGEST_REASON = 100


def board(candidates: Sequence[Mapping[str, Any]], winner_sha256: str | None) -> Table:
    """Candidates by rank, then those in work, then the rejected with the reason.

    Args:
        candidates: as GET /jobs/{id}/candidates sends them.
        winner_sha256: the winner's digest, once there is one.
    """
    table = Table(title="Leaderboard (speedup over the best baseline, geometric mean)", title_justify="left")
    for name in (
        "rank",
        "candidate",
        "origin",
        "speedup",
        "95 % interval",
        "shapes",
        "worst shape",
        "lines",
        "verdict",
    ):
        is_number = name in ("rank", "speedup", "95 % interval", "shapes", "worst shape", "lines")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in leaderboard(candidates, winner_sha256):
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[Text]:
    candidate, said = row.candidate, words.verdict(row.verdict_word)
    name = Text(plain_line(candidate.get("label")) or plain_line(candidate.get("sha256"))[:12])
    if row.is_winner:
        name.append("  winner", style="bold green")
    if why := row.choice.get("why"):
        name.append(f"\n{plain_line(why)}", style="dim")
    if said.tone in ("bad", "cheat", "warn"):
        name.append(f"\n{_shortened(plain_line(candidate.get('reason')))}", style="dim")
    where = "" if row.measured_on != "screen" or row.geomean is None else " on visible shapes only"
    where += " (the winner was chosen without it)" if row.after_choice else ""
    where += f" on {plain_line(row.elsewhere)}" if row.elsewhere else ""
    return [
        Text(str(row.rank) if row.rank else ""),
        name,
        Text(plain_line(words.origin(candidate.get("origin")).label)),
        Text(formats.speedup(row.geomean) + where, style="bold" if row.rank else "dim"),
        Text(formats.interval(row.ci95), style="" if row.ci95 else "dim"),
        Text(f"{row.choice['shapes']} of {row.choice['of_shapes']}" if row.choice else ""),
        Text(formats.speedup(row.worst), style="" if row.worst else "dim"),
        Text(formats.count(row.lines)),
        Text(plain_line(said.label), style=_STYLES.get(said.tone, "dim")),
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
