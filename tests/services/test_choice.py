"""Wherever a job's candidates are ranked, the winner is first once it is chosen, with the figures that it was chosen by."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from rich.console import Console
from sqlalchemy import select

from services.commands import showing
from services.dashboard import ranking, tables
from services.dashboard.rendering import environment
from services.db.models import Candidate
from services.db.session import Database
from services.db.types import storable_json
from services.jobs import read
from services.jobs.rows import candidate_row, verdict_row
from tests.services.databases import new_sqlite
from tests.services.ranked import ended_job

WHY = "delivered because it is as fast as the library's within 2% and is the shorter file"


def validation(speedup: float) -> dict[str, Any]:
    """A verdict on the first few validation shapes."""
    summary = {"geomean_speedup": speedup, "geomean_ci95": [speedup, speedup], "worst_speedup": speedup}
    return {"verdict": "accepted", "reason": "correct", "summary": summary, "shapes": [], "environment": {}}


def row(place: int, speedup: float, sha256: str, shapes: int, why: str = "") -> dict[str, Any]:
    """What a worker stores of a candidate when it chooses (`agent.portfolio.ranking`)."""
    return {
        "sha256": sha256, "place": place, "geomean_speedup": speedup, "ci95": [speedup - 0.1, speedup + 0.1],
        "worst_speedup": speedup - 0.5, "shapes": shapes, "of_shapes": 12, "why": why,
    }  # fmt: skip


def job_with_a_choice(base: Database) -> tuple[str, str]:
    """The job and its winner: a library candidate is faster in the first validation verdict, and slower over all shapes."""
    sources = {"m-1 #1": "# the winner\n", "library": "# a library's\n", "late": "# came after the choice\n"}
    rows = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources.items()}
    steps = {"ranking/1": [row(1, 1.7, rows["m-1 #1"], 12, WHY), row(2, 1.6, rows["library"], 4)]}
    job_id = ended_job(base, 1.65, source=sources["m-1 #1"], steps=steps)
    with base.write() as session:
        for name in ("library", "late"):
            session.add(candidate_row(job_id, rows[name], "human", name, sources[name]))
        session.flush()
        for name, speedup in (("m-1 #1", 1.70), ("library", 1.97), ("late", 9.0)):
            session.add(verdict_row(job_id, rows[name], "validation", storable_json(validation(speedup))))
    return job_id, rows["m-1 #1"]


def test_pages_the_demo_the_command_line_and_the_api_rank_by_what_decided(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    job_id, winner = job_with_a_choice(base)
    with base.read() as session:
        views = [view.model_dump(mode="json") for view in read.list_candidates(session, job_id)]
        outlined = read.judged_candidates(session, job_id)[0]
        first = session.scalars(select(Candidate.id).where(Candidate.sha256 == winner)).one()
        alone = read.get_candidate(session, first)
    assert alone.choice is not None and (alone.choice.place, alone.choice.why) == (1, WHY)
    for sent in (views, outlined):
        rows = ranking.leaderboard(sent, winner)
        told = [(one.rank, one.candidate["label"], one.geomean, one.is_winner) for one in rows]
        assert told == [
            (1, "m-1 #1", 1.7, True),
            (2, "library", 1.6, False),
            (3, "late", 9.0, False),
        ]
        page = str(environment().get_template("_parts.html").module.ranked_rows(rows, False, False))
        assert "12 of 12 validation shapes" in page and "4 of 12 validation shapes" in page
        assert WHY in page.replace("&#39;", "'") and page.count("the winner was chosen without it") == 1
        table = tables.candidates(rows)
        assert dict(zip(table.columns, table.rows[0], strict=True))["why"] == WHY
    for drawn in (showing.leaderboard(views, winner), showing.leaderboard(views)):
        text = drawn_text(drawn)
        assert text.index("m-1 #1") < text.index("library ") < text.index("late")
        assert "1.60" in text and "1.97" not in text and WHY in text
        assert "4 of 12" in text
    base.close()


def drawn_text(table: Any) -> str:
    """A table as a wide terminal shows it."""
    out = io.StringIO()
    Console(file=out, width=300).print(table)
    return out.getvalue()
