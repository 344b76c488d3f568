"""`kernelwright backfill-leaderboard`: ranks jobs that ended before the leaderboard existed."""

from __future__ import annotations

from rich.console import Console

from evaluator.counting import counted
from services.commands.terminal import AsJson, open_database, print_json, print_line


def backfill_leaderboard(as_json: AsJson = False) -> None:
    """Put jobs on the leaderboard that rank and are not on it, as of when they ended; run again, it changes nothing.

    It works on the database of this machine's settings, also while the service runs.
    """
    from services.leaderboard.recording import backfill

    base = open_database(Console(stderr=True))
    entered, kept_out = backfill(base)
    if as_json:
        print_json({"entered": entered, "not_listed": dict(kept_out)})
        return
    print_line(f"{counted(entered, 'job')} entered")
    for reason, count in kept_out.most_common():
        print_line(f"{count} not: {reason}")
