"""Draws a job on a terminal from the API's JSON. Text from candidates and compilers is shown only as plain text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from evaluator.verdict import by_size
from services.dashboard import event_text, formats, ranking, words
from services.jobs.views import EventView
from services.plain_text import plain_line

_STYLES = {"good": "green", "bad": "red", "cheat": "magenta", "warn": "yellow"}
_TOLD = ("candidate.judged", "candidate.proposed", "portfolio.changed", "budget.spent", "task.inferred", "job.progress",
         "job.failed", "job.cancelled", "job.finished", "job.waiting")  # fmt: skip
_LONGEST_REASON = 90
_SAY_EVERY_S = 5.0


class Following:
    """Shows a job's events on a terminal: a line for each relevant one, and below them the leaderboard and the current activity.

    Args:
        console: where to print; only a terminal shows the part below the lines.
        chatty: on other consoles, print the current activity after some time without a line.
    """

    def __init__(self, console: Console, *, chatty: bool = False) -> None:
        self._console = console
        self._chatty = chatty and not console.is_terminal
        self._start = self._said_at = time.monotonic()
        self._doing = Spinner("dots", "waiting", style="cyan")
        self._live = Live(self, console=console, transient=True) if console.is_terminal else nullcontext()
        self.board: Table | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def tell(self, event: EventView) -> None:
        """Show one event."""
        line = event_line(event)
        if event.name == event_text.PROGRESS_EVENT:
            text = plain_line(event_text.progress(event.data))
            self._doing.update(text=Text(text, style="cyan"))
            if self._chatty and time.monotonic() - self._said_at > _SAY_EVERY_S:
                line = Text(text, style="cyan")
        if line is not None:
            self._said_at = time.monotonic()
            self._console.print(Text(f"{formats.offset(self.elapsed_s):>8}  ", style="dim") + line)

    def __enter__(self) -> Following:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __rich__(self) -> Group:
        return Group(*([self.board] if self.board else []), self._doing)


def leaderboard(candidates: Sequence[Mapping[str, Any]], winner_sha256: str | None = None) -> Table:
    """Candidates ranked as on the job's page, then those in progress, then the rejected ones with reasons.

    Args:
        candidates: as GET /jobs/{id}/candidates sends them.
        winner_sha256: the winner's digest, if there is one.
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
    where += "".join(
        f"\n{plain_line(size)}" for size in by_size(row.summary.get("by_stratum") or {}).split(", ") if size
    )
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


def event_line(event: EventView) -> Text | None:
    """One event as a line, worded as on the job's page; None for events that the leaderboard shows better."""
    if event.name not in _TOLD or (event.name == "budget.spent" and "tokens" in event.data):
        return None
    said = event_text.say(event.name, event.data)
    line = Text(plain_line(said.what), style=_STYLES.get(said.tone, "dim"))
    return line.append(f": {plain_line(said.detail)}" if said.detail else "", style="default")


def _shortened(text: str) -> str:
    line = plain_line(text)
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"
