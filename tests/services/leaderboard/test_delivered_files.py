"""What is delivered ranks by what its members' own texts show: the file around them is this project's, with a fall-back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from evaluator.integrity.static import analyze
from services.db.models import Job
from services.db.session import Database
from services.leaderboard import reading
from tests.agent.bundle.building import MEMBER, optimized_text
from tests.services.databases import new_sqlite
from tests.services.ranked import TASK, ended_job

FALLS_BACK = MEMBER.replace(
    "def forward(self",
    """def forward(self, *given):
        try:
            return self.kernel(*given)
        except Exception:
            return super().forward(*given)

    def kernel(self""",
)
HONEST = Candidate(MEMBER, "llm", "m-1 #1")
QUIET = Candidate(FALLS_BACK, "llm", "m-1 #1")
MODE = Candidate("# the reference, compiled\n", "compiler", "compile default")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    found = new_sqlite(tmp_path)
    yield found
    found.close()


def findings(text: str) -> list[dict[str, str]]:
    """What the referee says of a text."""
    return [dict(zip(("rule", "severity", "evidence"), one, strict=True)) for one in analyze(text).findings]


def verdict(text: str) -> dict[str, Any]:
    """A candidate's own."""
    return {"verdict": "accepted", "shapes": [], "findings": findings(text)}


def why_not(base: Database, **more: Any) -> str:
    """Why a job does not rank with what was delivered of it; empty if it does."""
    job_id = ended_job(base, 1.5, **more)
    with base.read() as session:
        job = session.get(Job, job_id)
        assert job is not None
        told = reading.place_of(session, job)
        ranked = {row.job_id for row in reading.read_board(session, TASK).data}
    assert (told.state == "ranked") == (job_id in ranked)
    return told.reason


def plan(*members: Candidate, baselines: tuple[Candidate, ...] = ()) -> dict[str, Any]:
    """The step that holds what the file is made of."""
    listed = [
        {"source": one.source, "origin": one.origin, "label": one.label, "parent_sha256": None, "note": ""}
        for one in baselines
    ]
    digests = [one.sha256 for one in (*members, *baselines)]
    return {"optimized/1": {"members": digests, "baselines": listed}}


def test_the_file_around_an_honest_candidate_keeps_no_job_off_the_board(base: Database) -> None:
    """Seen with `make demo`: "Not on the global leaderboard: the referee remarked on it (uses try fallback)"."""
    around = findings(optimized_text([HONEST]))
    assert {"uses_try_fallback", "version_counter"} <= {one["rule"] for one in around}
    given = {"source": MEMBER, "findings": around}
    assert why_not(base, **given, screen=verdict(MEMBER), steps=plan(HONEST)) == ""
    assert why_not(base, **given, screen=verdict(MEMBER), steps=plan(HONEST, baselines=(MODE,))) == ""


def test_a_candidate_that_falls_back_in_silence_is_marked_whatever_is_around_it(base: Database) -> None:
    around = findings(optimized_text([QUIET]))
    own = verdict(FALLS_BACK)
    assert "uses_try_fallback" in {one["rule"] for one in own["findings"]}
    given = {"source": FALLS_BACK, "findings": around}
    assert "uses try fallback" in why_not(base, **given, screen=own, steps=plan(QUIET))
    assert "uses try fallback" in why_not(base, **given, screen=own)


def test_a_member_without_a_verdict_of_its_own_excuses_nothing(base: Database) -> None:
    given = {"source": MEMBER, "findings": findings(optimized_text([HONEST]))}
    for steps in (plan(HONEST, QUIET), plan(QUIET, HONEST), None):
        assert "uses try fallback" in why_not(base, **given, screen=verdict(MEMBER), steps=steps)
    assert "uses try fallback" in why_not(base, **given, steps=plan(HONEST))


def test_what_was_seen_of_the_file_counts_as_before(base: Database) -> None:
    given = {"source": MEMBER, "screen": verdict(MEMBER), "steps": plan(HONEST)}
    decoy = {"rule": "decoy_kernel", "severity": "warning"}
    assert "decoy kernel" in why_not(base, **given, findings=[decoy])
    unread = {**given, "screen": verdict("x = " + "(" * 5000)}
    assert "could not be analyzed" in why_not(base, **unread, findings=[])
