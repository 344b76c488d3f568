"""Pieces and tables of pages that are functions escape as templates do."""

from __future__ import annotations

from markupsafe import Markup, escape

from services.dashboard import pieces, ranking, story, table_rows, words
from services.dashboard.listing import DiffLine
from services.dashboard.rendering import environment

HOSTILE = "<script>\"&'</script>"


def test_texts_of_strangers_stay_texts() -> None:
    word = words.Word(HOSTILE, HOSTILE, HOSTILE)
    for made in (pieces.chip(word), pieces.origin(HOSTILE)):
        assert isinstance(made, Markup)
        assert "<script>" not in str(made)
        assert str(made).count('"') == 2 + 2 * ("title=" in str(made)), (
            "nothing ends an attribute before its time"
        )
        assert str(escape(HOSTILE)) in str(made)
    page = environment().from_string("{{ pieces.figure(text) }}")
    assert page.render(text=HOSTILE) == str(escape(HOSTILE))


def test_texts_of_strangers_stay_texts_in_tables() -> None:
    candidate = {
        "id": HOSTILE, "sha256": HOSTILE, "label": HOSTILE, "origin": HOSTILE, "verdict": HOSTILE,
        "screen": {"summary": {"geomean_speedup": 2.0}},
    }  # fmt: skip
    row = ranking.leaderboard([candidate, {**candidate, "verdict": "accepted"}], None)[0]
    row.elsewhere, row.rank = HOSTILE, None
    shape = {
        "dims": {HOSTILE: HOSTILE}, "split": HOSTILE, "stratum": HOSTILE, "decision": HOSTILE, "timed": True, "weight": HOSTILE,
        "best_baseline": HOSTILE, "baselines": {HOSTILE: {"median_us": HOSTILE}}, "candidate_us": HOSTILE, "correct": HOSTILE,
    }  # fmt: skip
    row.summary = {"by_stratum": {HOSTILE: {"geomean_speedup": 2.0}, "near": {"geomean_speedup": 1.0}}}
    told = story.timeline([{"name": HOSTILE, "data": {"text": HOSTILE}, "time": HOSTILE}], None)
    for made in (
        table_rows.ranked([row], has_traffic=True, tickable=True),
        table_rows.shapes([shape], [HOSTILE], has_weights=True),
        table_rows.differences([DiffLine("added", None, 1, HOSTILE)]),  # type: ignore[arg-type]
        table_rows.numbered([HOSTILE]),
        table_rows.events(told),
    ):
        assert isinstance(made, Markup)
        assert str(escape(HOSTILE)) in str(made)
        assert "<script>" not in str(made)
        assert HOSTILE[8:] not in str(made)


def test_what_is_not_there_is_said() -> None:
    assert pieces.figure(words.NOT_MEASURED) == f'<span class="unmeasured">{words.NOT_MEASURED}</span>'
    assert pieces.figure("1.62×") == "1.62×"
    assert pieces.chip(words.verdict("accepted")) == pieces.chip(words.verdict("accepted"))
    assert "title=" not in pieces.chip(words.Word("a", "idle", ""))
