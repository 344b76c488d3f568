"""Lists in pages, on both databases: nothing is skipped or shown twice, and what is no cursor gets 422."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from services.errors import Refused
from services.jobs import cursors
from tests.services.filled import Filled
from tests.services.ranked import TASK
from tests.services.service import Service


def pages(service: Service, path: str, limit: int) -> list[list[dict[str, Any]]]:
    """Every page of a list, by its own `next`."""
    found: list[list[dict[str, Any]]] = []
    after = ""
    while True:
        answer = service.get(f"{path}?limit={limit}{after}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append(page["data"])
        assert page["has_more"] is (page["next"] is not None)
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def test_every_list_is_whole_over_its_pages(filled: Filled) -> None:
    job = filled.jobs[0]
    for path, key, limit, total in (
        ("/jobs", "id", 2, 3),
        (f"/jobs/{job}/candidates", "id", 13, 42),
        (f"/jobs/{job}/events", "id", 7, 41),
        ("/leaderboard", "task", 1, 1),
        (f"/leaderboard/{TASK}", "job_id", 2, 3),
    ):
        found = pages(filled.service, path, limit)
        rows = [row[key] for page in found for row in page]
        assert len(set(rows)) == len(rows) >= total, path
        assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1), path
        assert rows == [row[key] for row in pages(filled.service, path, 100)[0]], path


HOSTILE = [
    "'; DROP TABLE jobs; --",
    "1 OR 1=1",
    "%00",
    "x%00y",
    "9" * 30,
    "9" * 300,
    "9" * 5000,
    "-1",
    "1e999",
    "NaN",
    "",
    "%F0%9F%92%A3",
    "null",
    "../../etc/passwd",
    base64.urlsafe_b64encode(b'["entries",1,1e999,1]').decode(),
    base64.urlsafe_b64encode(b'["entries",1,NaN,1]').decode(),
    base64.urlsafe_b64encode(b'["entries",1,1.5,99999999999999999999]').decode(),
    base64.urlsafe_b64encode(b'["entries",1,1.5,true]').decode(),
    base64.urlsafe_b64encode(b'["boards","\\u0000",1]').decode().rstrip("="),
    base64.urlsafe_b64encode(b"[" * 200).decode(),
    base64.urlsafe_b64encode(json.dumps(["boards", "a' OR 1=1 --", 1]).encode()).decode().rstrip("="),
]


def test_what_is_no_cursor_gets_422_on_every_list(filled: Filled) -> None:
    job, service = filled.jobs[0], filled.service
    paths = (
        "/jobs",
        f"/jobs/{job}/candidates",
        f"/jobs/{job}/events",
        "/leaderboard",
        f"/leaderboard/{TASK}",
    )
    wrong = [
        (path, cursor[:40], answer.status_code)
        for path in paths
        for cursor in HOSTILE
        if (answer := service.get(f"{path}?after={cursor}")).status_code != 422
        or answer.headers["content-type"] != "application/problem+json"
    ]
    assert wrong == []
    # a cursor of another list, and of another job
    board = service.get(f"/leaderboard/{TASK}?limit=1").json()["next"]
    foreign = service.get(f"/jobs/{filled.jobs[1]}/candidates?limit=1").json()["next"]
    assert service.get(f"/leaderboard?after={board}").status_code == 422
    assert service.get(f"/jobs/{job}/candidates?after={foreign}").status_code == 422
    for cursor in HOSTILE:
        if cursor:
            answer = service.get("/?after=" + cursor)
            assert answer.status_code == 422, cursor[:40]
            assert answer.headers["content-type"].startswith("text/html") or len(cursor) > 400
    assert service.get("/jobs").status_code == 200


@pytest.mark.parametrize("last", ["1 OR 1=1", "9" * 30, "9" * 5000, "-3", "1.5"])
def test_a_stream_is_not_resumed_from_what_is_no_id(filled: Filled, last: str) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    assert filled.service.get(f"/jobs/{filled.jobs[0]}/events", headers=headers).status_code == 422


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{}", "/jobs/{}/candidates", "/jobs/{}/events", "/jobs/{}/place", "/jobs/{}/bundle", "/candidates/{}",
        "/evaluations/{}", "/ui/jobs/{}", "/ui/candidates/{}", "/ui/jobs/{}/tables/shapes.csv",
        "/ui/candidates/{}/tables/findings.json", "/ui/jobs/{}/plots/search.svg",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["%00", "a%00b", "'%20OR%201=1", "9" * 300])
def test_an_id_that_cannot_be_one_does_not_exist(filled: Filled, path: str, name: str) -> None:
    assert filled.service.get(path.format(name)).status_code == 404


def test_a_filter_with_a_control_character_is_refused(filled: Filled) -> None:
    for path in (
        "/leaderboard?gpu=%00",
        f"/leaderboard/{TASK}?model=%00",
        f"/leaderboard/{TASK}?platform=%00",
    ):
        assert filled.service.get(path).status_code == 422
    for path in (
        "/ui/leaderboard?gpu=%00",
        f"/ui/leaderboard/{TASK}?model=%00",
        f"/ui/leaderboard/{TASK}?after=x",
    ):
        assert filled.service.get(path).status_code == 422
    assert filled.service.get("/leaderboard/no%00task").status_code == 422
    assert filled.service.get("/ui/leaderboard/no%00task").status_code == 404
    assert filled.service.get("/leaderboard/no_such_task").status_code == 404


def test_a_cursor_says_what_it_was_told() -> None:
    cursor = cursors.encode("entries", 3, 1.0 / 3, 7)
    assert cursors.decode(cursors.ENTRIES, cursor) == (3, 1.0 / 3, 7)
    for other in (
        cursors.encode("boards", "softmax", 1),
        cursors.encode("entries", 3, 0.5),
        cursors.encode("entries", 3, "0.5", 7),
        cursors.encode("entries", True, 0.5, 7),
        cursors.encode("entries", 3, float("nan"), 7),
    ):
        with pytest.raises(Refused):
            cursors.decode(cursors.ENTRIES, other)
