"""Pieces of pages that are functions escape as templates do."""

from __future__ import annotations

from markupsafe import Markup, escape

from services.dashboard import pieces, words
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


def test_what_is_not_there_is_said() -> None:
    assert pieces.figure(words.NOT_MEASURED) == f'<span class="unmeasured">{words.NOT_MEASURED}</span>'
    assert pieces.figure("1.62×") == "1.62×"
    assert pieces.chip(words.verdict("accepted")) == pieces.chip(words.verdict("accepted"))
    assert "title=" not in pieces.chip(words.Word("a", "idle", ""))
