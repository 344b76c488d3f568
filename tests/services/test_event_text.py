"""What a job tells while it runs and when it ends, on a terminal and on its page."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from services.commands import remote
from services.commands.showing import event_line
from services.commands.working import end
from services.dashboard import event_text, words
from services.jobs.views import JobView
from tests.browser import stored

FIRST = {
    "label": "a kernel", "origin": "llm", "geomean_speedup": 1.23, "seconds": 41.6, "provisional": True
}  # fmt: skip
NONE = "no improvement: optimized.py (a kernel, origin llm): 0.46x [0.18, 0.92] against the best baseline"


def test_the_first_accepted_candidate_is_told_with_its_seconds_and_as_provisional() -> None:
    line = event_line(stored.event(1, "portfolio.changed", 1, **FIRST))
    assert line is not None
    told = "First accepted candidate: a kernel: LLM · 1.23× · after 42 s · provisional: not validated yet"
    assert line.plain == told
    said = event_text.say("portfolio.changed", FIRST)
    assert said.what == "First accepted candidate: a kernel"
    assert "after 42 s" in said.detail and "provisional" in said.detail
    validated = FIRST | {"provisional": False}
    line = event_line(stored.event(1, "portfolio.changed", 1, **validated))
    assert line is not None and line.plain == "New best: a kernel: LLM · 1.23×"
    assert event_text.say("portfolio.changed", validated).what == "New best: a kernel"


def test_no_improvement_is_one_plain_sentence_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    said = event_text.say("job.failed", {"verdict": "no_improvement", "reason": NONE})
    assert (said.what, said.tone) == ("No improvement", "warn")
    assert said.detail == NONE.removeprefix("no improvement: ")
    assert words.verdict("no_improvement").label == "no improvement"

    def dumped(mode: str) -> dict[str, Any]:
        return {"state": "failed", "verdict": "no_improvement", "reason": NONE}

    job = cast(
        JobView,
        SimpleNamespace(
            state="failed", verdict="no_improvement", reason=NONE, winner=None, summary={}, model_dump=dumped
        ),
    )
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            end(job, None, None, Console(stderr=True, width=300), as_json=as_json)
        assert ended.value.exit_code == 1
        shown = capsys.readouterr()
        if as_json:
            assert json.loads(shown.out)["job"]["reason"] == NONE
            assert json.loads(shown.out)["bundle"] is None
        else:
            assert shown.err.strip() == NONE


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_job_s_id_is_whole_on_a_narrow_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`watch` and `fetch` take it; it was cut at 80 columns."""
    number = "01m8bpfgqc4v81nqg1hz9qch9k"
    best = SimpleNamespace(geomean_speedup=5.75, origin="llm")
    job = SimpleNamespace(
        id=number, name="a long name of a module " * 3, state="succeeded", verdict="accepted", best=best,
        counts=SimpleNamespace(candidates=6),
    )  # fmt: skip
    monkeypatch.setattr(remote, "_service", lambda *_: nullcontext(SimpleNamespace(jobs=lambda limit: [job])))
    monkeypatch.setenv("COLUMNS", str(columns))
    remote.jobs()
    assert number in capsys.readouterr().out
