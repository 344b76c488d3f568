"""What a task, a candidate or a model says reaches no terminal and no page with characters that either would obey."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from agent.candidates import Candidate
from evaluator.verdict import from_json
from services.commands.showing import event_line, leaderboard
from services.commands.working import end
from services.dashboard import listing
from services.db.models import Evaluation, Job
from services.jobs import endings, lease
from services.jobs.store import SqlJobStore
from services.jobs.views import JobView
from services.plain_text import plain, plain_line
from tests.browser import stored
from tests.services.keyed import Keyed, evaluate, submit

#: Clears the screen, sets the window's title and clipboard, rings, deletes, writes backwards, ends a line in other ways.
OBEYED = "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x08\x7f\x9b31m\r\x0b\x0c\u202eback\u202c\u2066\u2028\x00"
BEGIN, END = "before", "behind"
SAID = f"{BEGIN}{OBEYED}{END}"


def assert_plain(text: str) -> None:
    """Nothing of it is left, and what stands around it is."""
    assert BEGIN in text and END in text
    assert not {one for one in OBEYED if not one.isprintable()} & set(text)
    assert not any(escaped in text for escaped in (r"\u001b", r"\u202e", r"\u0007", r"\u0000", r"\u2066"))


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path)
    yield found
    found.close()


@pytest.fixture
def job_id(keyed: Keyed) -> str:
    return str(submit(keyed.client()).json()["id"])


def test_line_breaks_and_letters_of_all_languages_stay() -> None:
    text = "ein Fehler\n\tin Zeile 7: größer, 大きい, أكبر, 👩‍💻"
    assert plain(text) == text
    assert plain_line("a\nb\tc") == "a b c" and plain_line(None) == ""


def _without_sources(answer: Any) -> str:
    """A JSON answer, or a stream of events, without what is a program's text."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items() if not key.endswith("source")}
        return [cut(item) for item in value] if isinstance(value, list) else value

    if not answer.headers["content-type"].startswith("application/json"):
        return str(answer.text)
    return json.dumps(cut(answer.json()), ensure_ascii=False)


def _store(keyed: Keyed, job_id: str) -> SqlJobStore:
    with keyed.base.write() as session:
        held = lease.claim(session, Job, job_id, "one", 60.0, 3)
    assert held is not None
    return SqlJobStore(keyed.base, job_id, held, lambda: False)


def test_a_job_s_events_candidates_and_verdicts(keyed: Keyed, job_id: str) -> None:
    store = _store(keyed, job_id)
    source = f"x = '{OBEYED.replace(chr(0), '')}'\n"
    candidate = Candidate(source, "llm", SAID, note=SAID)
    store.add_candidate(candidate)
    verdict = {
        "verdict": "incorrect",
        "reason": SAID,
        "detail": SAID,
        "findings": [{"rule": "wrong_result", "severity": "error", "evidence": SAID}],
        "shapes": [{"dims": {SAID: 1}}],
        "summary": {},
    }
    store.add_verdict(candidate.sha256, "screen", from_json(verdict))
    store.event("proposer.failed", {"origin": "llm", "reason": SAID})
    store.finish_step("a plan", {"source": source})
    assert store.step("a plan") == {"source": source}, "sources stay what they are"
    (kept,) = store.candidates()
    assert kept.sha256 == candidate.sha256
    with keyed.base.write() as session:
        endings.end_job(session, session.get_one(Job, job_id), "failed", SAID)
    client = keyed.client()
    for path in ("", "/events", "/candidates", f"/candidates?sha256={candidate.sha256}"):
        answer = client.get(f"/jobs/{job_id}{path}")
        assert answer.status_code == 200, answer.text
        assert_plain(_without_sources(answer))
    for path in (f"/ui/jobs/{job_id}", f"/ui/candidates/{job_id}.{candidate.sha256[:12]}"):
        page = client.get(path)
        assert page.status_code == 200, page.text
        assert_plain(page.text)


def test_an_evaluation(keyed: Keyed) -> None:
    client = keyed.client()
    number = evaluate(client).json()["id"]
    with keyed.base.write() as session:
        row = session.get_one(Evaluation, number)
        endings.end_evaluation(session, row, "failed", SAID, {"verdict": "incorrect", "reason": SAID})
    assert_plain(client.get(f"/evaluations/{number}").text)


def test_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What an older service stored, or another one sends, is cleaned here, too."""
    view = {"label": SAID, "reason": SAID, "origin": "llm", "sha256": "a" * 64, "verdict": "incorrect"}
    console = Console(width=300, force_terminal=True, color_system=None)
    console.print(leaderboard([view]))
    for name in ("candidate.judged", "proposer.failed", "job.failed"):
        line = event_line(stored.event(1, name, 1, **view, state="failed", phase="screen", kind="x"))
        if line is not None:
            console.print(line)
    shown = capsys.readouterr().out
    assert_plain(shown)
    job = SimpleNamespace(state="failed", verdict=None, reason=SAID, winner=None, summary={})
    with pytest.raises(typer.Exit):
        end(cast(JobView, job), None, None, Console(width=300), as_json=False)
    assert_plain(capsys.readouterr().out)


@pytest.mark.parametrize(
    "show", [listing.highlighted_lines, lambda source: listing.unified(source, source + "y = 1\n")]
)
def test_a_source_on_a_page(show: Any) -> None:
    """Comments that turn the writing direction make code read as what it is not."""
    assert_plain(str(show(f"x = 1  # {SAID}\n")))
