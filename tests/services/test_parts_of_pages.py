"""What pages are put together of shows texts of strangers as texts."""

from __future__ import annotations

from typing import Any

from markupsafe import escape

from services.dashboard import event_text, ranking, words
from services.dashboard.listing import DiffLine
from services.dashboard.rendering import environment
from tests.browser import stored

HOSTILE = "<script>\"&'</script>"


def parts() -> Any:
    return environment().get_template("_parts.html").module


def test_texts_of_strangers_stay_texts() -> None:
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
    told = event_text.timeline([stored.event(1, HOSTILE, 1, text=HOSTILE)], stored.BEGUN)
    for made in (
        parts().chip(words.Word(HOSTILE, HOSTILE, HOSTILE)),
        parts().origin(HOSTILE),
        parts().figure(HOSTILE),
        parts().ranked_rows([row], True, True),
        parts().shape_table([shape], [HOSTILE], HOSTILE),
        parts().diff([DiffLine("added", None, 1, HOSTILE)], HOSTILE, HOSTILE),  # type: ignore[arg-type]
        parts().listing([HOSTILE], HOSTILE),
        parts().timeline(told),
    ):
        assert str(escape(HOSTILE)) in str(made)
        assert "<script>" not in str(made)
        assert HOSTILE[8:] not in str(made)


def test_stages_tell_what_each_round_brought() -> None:
    def one(origin: str, label: str, speedup: float | None) -> dict[str, Any]:
        word = "accepted" if speedup else "incorrect"
        return {
            "origin": origin,
            "label": label,
            "verdict": word,
            "screen": {"summary": {"geomean_speedup": speedup}},
        }

    found = ranking.stages(
        [
            one("llm", "m #1", None),
            one("human", "library", 1.5),
            one("llm", "m #2", 1.2),
            one("llm", "m #1 repaired", 1.8),
            one("llm", "m round 1", 2.0),
            one("llm", "m round 1, tuned", 2.2),
            one("llm", "m round 2, repair", None),
            {"origin": "llm", "label": "m round 3", "verdict": "pending"},
        ]
    )
    assert [(s.name, s.judged, s.accepted, s.before, s.best) for s in found] == [
        ("first attempts", 2, 1, None, 1.2),
        ("without a model", 1, 1, None, 1.5),
        ("follow-ups", 1, 1, 1.5, 1.8),
        ("round 1", 2, 2, 1.8, 2.2),
        ("round 2", 1, 0, 2.2, None),
    ]


def test_what_is_not_there_is_said() -> None:
    assert parts().figure(words.NOT_MEASURED) == f'<span class="unmeasured">{words.NOT_MEASURED}</span>'
    assert parts().figure("1.62×") == "1.62×"
    assert "title=" not in parts().chip(words.Word("a", "idle", ""))
