"""Server-sent events out of bytes, however these arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.client import stream
from services.client.errors import UnexpectedAnswer
from services.client.stream import ServerEvent, events_of

STREAM = (
    "retry: 1000\n\n: ping\n\n"
    'event: job.queued\nid: 7\ndata: {"reason": "one\u2028two\u0085three\x0bfour"}\n\n'
    "data:first\r\ndata: second\r\n\r\n"
    "id: 9\rdata: old\r\r"
    "data: cut off"
).encode()
EVENTS = [
    ServerEvent(retry_ms=1000),
    ServerEvent("job.queued", '{"reason": "one\u2028two\u0085three\x0bfour"}', "7"),
    ServerEvent(data="first\nsecond"),
    ServerEvent(data="old", id="9"),
]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_how_their_bytes_arrive(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(STREAM)]
    assert list(events_of(STREAM[a:b] for a, b in pairwise(at))) == EVENTS


def test_a_separator_of_unicode_ends_no_line() -> None:
    # the candidate's own words are in there: cut at them, its event would be no JSON
    assert len(STREAM.decode().splitlines()) > STREAM.count(b"\n")


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: x\n" * 10])
def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 1000)
    with pytest.raises(UnexpectedAnswer):
        list(events_of(piece for _ in range(10_000)))
