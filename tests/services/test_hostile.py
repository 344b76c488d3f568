"""Bad input and attacks, one by one, on the application behind real sockets.

| attack | tests |
| --- | --- |
| oversized bodies | `test_bad_input.test_a_body_over_the_limit_gets_413`, `..._that_does_not_say_how_long_it_is_gets_413_too`, a form here |
| deep nesting, long numbers, bytes that are no text | here |
| zip bombs | here; bundles are made and never opened, `tests/agent/bundle/test_archive.py` reads those of others |
| NUL bytes, lone surrogates | `test_bad_input`, `test_cursors.test_a_filter_with_a_control_character_is_refused` |
| 10,000-line modules, sources that are slow to draw | here |
| HTML and script in names, sources, compiler messages | here, `tests/browser/test_pages_rendered.test_text_from_outside_never_becomes_markup` |
| path tricks | here, `mcp/test_files.py`, `client/test_client.test_an_id_leads_nowhere_else` |
| replayed and forged keys | `test_keys.py`, `test_logins.test_a_login_ends_with_logout_and_its_cookie_replayed_is_nothing` |
| CSRF | `test_logins.test_no_form_of_another_site_changes_anything`, `test_bad_input.test_a_web_page_of_another_origin_...` |
| another user's ids | `test_private.py`; idempotency keys here |
| SQL in a cursor | `test_cursors.test_what_is_no_cursor_gets_422_on_every_list` |
| slow heads and bodies | `test_connections.py` |
| a flood of requests, connections, waits, streams | `test_rates.py`, `test_connections.py` |
| everything else that the document allows | `test_contract.py` |
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from services.dashboard import listing
from services.db.models import IdempotencyKey, Job, utc_now
from services.jobs import read
from services.jobs.rows import candidate_row
from services.users import keys, logins
from tests.services.keyed import Keyed, submit
from tests.services.service import TINY_TASK
from tests.services.serving import serving, spoken

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path, max_body_bytes=600_000)
    yield found
    found.close()


def stored_jobs(keyed: Keyed) -> int:
    with keyed.base.read() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


# ------------------------------------------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"source":' * 50_000,
        b'{"source": "x", "shapes": {"visible": [{"n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}]}}",
        b'{"source": "x", "shapes": {"visible": [{"n": ' + b"9" * 100_000 + b"}]}}",
        b'{"source": "x", "shapes": {"visible": [{"n": ' + b"9" * 4000 + b"}]}}",
        b'{"source": "x", "budget": {"seconds": 1e308}}',
        b'{"source": "x", "budget": {"seconds": NaN}}',
        b'{"source": "x", "budget": {"tokens": 1e400}}',
        b'{"source": "x", "strategy": {"seed": -0.5}}',
        json.dumps({"source": "x", "shapes": {"visible": [{f"d{i}": 1 for i in range(5000)}]}}).encode(),
        b"\x80\x81",
        b"",
    ],
    ids=["lists", "objects", "inside", "digits", "number", "seconds", "nan", "infinity", "seed", "dims", "bytes",
         "nothing"],
)  # fmt: skip
def test_a_body_that_is_made_to_break_readers_is_refused_at_once(keyed: Keyed, body: bytes) -> None:
    began = time.perf_counter()
    answer = keyed.client().post("/optimize", content=body, headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert time.perf_counter() - began < 5.0
    assert stored_jobs(keyed) == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip"])
def test_what_is_compressed_is_not_inflated(keyed: Keyed, coding: str) -> None:
    bomb = gzip.compress(json.dumps({"source": "x" * 5_000_000}).encode())
    assert len(bomb) < 600_000
    answer = keyed.client().post("/optimize", content=bomb, headers={**JSON, "Content-Encoding": coding})
    assert answer.status_code in (400, 422)
    assert stored_jobs(keyed) == 0


def test_a_form_is_held_to_the_limit_as_well(keyed: Keyed) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(200):
            yield b"source=" + b"x" * 10_000 + b"&"

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with serving(keyed.app) as url:
        for path in ("/ui/submit", "/login"):
            assert httpx.post(url + path, content=pieces(), headers=form).status_code == 413, path
    assert stored_jobs(keyed) == 0


@pytest.mark.parametrize("length", ["-1", "1e9", "0x10", "9" * 40, "1, 2", " "])
def test_a_length_that_is_none_stops_nobody_else(keyed: Keyed, length: str) -> None:
    with serving(keyed.app) as url:
        head = f"POST /optimize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{{}}"
        assert spoken(url, head.encode(), wait_s=5).split(b" ")[1] in (b"400", b"413")
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_two_lengths_are_no_way_to_smuggle_a_request(keyed: Keyed) -> None:
    smuggled = b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for headers in (
        b"Content-Length: 2\r\nContent-Length: 50",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
    ):
        with serving(keyed.app) as url:
            answer = spoken(
                url,
                b"POST /optimize HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n\r\n{}" + smuggled,
                wait_s=5,
            )
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert answer.split(b" ")[1] == b"400"


# ------------------------------------------------------------------------------------ sources, names, paths


def test_ten_thousand_lines_are_stored_whole_and_shown(keyed: Keyed) -> None:
    source = TINY_TASK + "".join(f"SIZE_{number} = {number}  # <u>\n" for number in range(10_000))
    client = keyed.client()
    job_id = client.post("/optimize", json={"source": source, "origins": ["compiler"]}).json()["id"]
    candidate_id = client.post(f"/jobs/{job_id}/candidates", json={"candidate": source}).json()["id"]
    assert client.get(f"/candidates/{candidate_id}").json()["source"] == source
    began = time.perf_counter()
    for path in (f"/ui/jobs/{job_id}", f"/ui/candidates/{candidate_id}"):
        page = client.get(path)
        assert page.status_code == 200
        assert "<u>" not in page.text
    assert time.perf_counter() - began < 20.0


@pytest.mark.parametrize(
    "source",
    ['"' + "\\N{" * 66_000, "\n".join(" " * number for number in range(630)), "@" * 190_000, "'%(" * 60_000],
    ids=["names", "blanks", "operators", "formats"],
)
def test_a_source_that_is_slow_to_color_is_shown_without_colors(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "HIGHLIGHT_LIMIT_CPU_S", 0.3)
    began = time.thread_time()
    lines = listing.highlighted_lines(source)
    assert time.thread_time() - began < 1.5
    assert len(lines) == source.rstrip("\n").count("\n") + 1


def test_lines_that_repeat_do_not_make_a_difference_endless() -> None:
    began = time.thread_time()
    found = listing.unified("x\n" * 2500, "".join(f"x\nu{number}\n" for number in range(1200)))
    assert time.thread_time() - began < 3.0
    assert found is not None


def test_a_page_of_candidates_is_bounded_in_bytes_and_loses_none(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "PAGE_CHARACTERS", 25_000)
    client = keyed.client()
    job_id = submit(client).json()["id"]
    with keyed.base.write() as session:
        for number in range(9):
            source = f"# {number}\n" + "x" * (30_000 if number == 4 else 9_000)
            session.add(candidate_row(job_id, f"{number:064x}"[::-1], "llm", "one", source))
    seen, after, pages = [], "", 0
    while True:
        page = client.get(f"/jobs/{job_id}/candidates?limit=100{after}").json()
        assert page["data"]
        seen += [one["source"].split("\n")[0] for one in page["data"]]
        pages += 1
        if not page["has_more"]:
            break
        after = f"&after={page['next']}"
    assert seen == [f"# {number}" for number in range(9)]
    assert pages == 5


HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}%0d%0aX-Evil: 1"


def test_markup_in_names_and_sources_is_text_everywhere(keyed: Keyed) -> None:
    client = keyed.client()
    job_id = submit(client, name=HOSTILE, source=f'"""{HOSTILE}"""').json()["id"]
    made = client.post(
        f"/jobs/{job_id}/candidates", json={"candidate": f"# {HOSTILE}", "label": HOSTILE, "note": HOSTILE}
    ).json()["id"]
    for path in ("/", f"/ui/jobs/{job_id}", f"/ui/candidates/{made}", f"/ui/jobs/{job_id}/plots/search.svg"):
        page = client.get(path)
        assert page.status_code == 200
        for wrong in ("<script>alert", "<img src=x", "</title><script", ">49<"):
            assert wrong not in page.text, path
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for path in (f"/jobs/{job_id}", f"/candidates/{made}", f"/jobs/{job_id}/events", "/jobs"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"


TRICKS = ("..", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f", "..%5c..", "%00", "a%0d%0aSet-Cookie:x=1", "%ff%fe",
          "%F0%9F%92%A9", "CON", "~root", "a" * 3000, ";id", "%27%20OR%201=1--", "{{7*7}}")  # fmt: skip


def tricky(job_id: str) -> Iterator[tuple[str, str]]:
    """Each trick in each place for a name."""
    for trick in TRICKS:
        for place in (
            "/ui/static/{}", "/jobs/{}", "/jobs/{}/bundle", "/candidates/{}", "/ui/jobs/{}", "/ui/tables/{}", "/keys/{}",
            "/ui/jobs/@/tables/{}.csv", "/ui/jobs/@/plots/{}", "/leaderboard/{}", "/ui/leaderboard/{}", "/evaluations/{}",
            "/ui/candidates/{}",
        ):  # fmt: skip
            yield trick, place.replace("{}", trick).replace("@", job_id)


def test_no_name_leads_out_of_where_it_belongs(keyed: Keyed) -> None:
    job_id = submit(keyed.client()).json()["id"]
    with serving(keyed.app) as url:
        for trick, path in tricky(job_id):
            answer = spoken(
                url,
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode(),
                wait_s=10,
            )
            head = answer.partition(b"\r\n\r\n")[0].lower()
            allowed = (b"404", b"422", b"307") if trick.endswith("%2f") else (b"404", b"422")
            assert answer.split(b" ")[1] in allowed, (path, answer[:300])
            assert b"location:" not in head or b"\r\nlocation: http://127.0.0.1/" in head, head
            assert b"set-cookie" not in head
            assert b"root:" not in answer


# ------------------------------------------------------------------------------- what one must not learn


def test_an_idempotency_key_of_another_user_is_nobody_s(keyed: Keyed) -> None:
    ada, bob = keyed.client(keyed.key("ada")), keyed.client(keyed.key("bob"))
    mine = ada.post("/optimize", json={"source": TINY_TASK}, headers={"Idempotency-Key": "k"})
    theirs = bob.post("/optimize", json={"source": TINY_TASK}, headers={"Idempotency-Key": "k"})
    assert mine.status_code == theirs.status_code == 202
    assert mine.json()["id"] != theirs.json()["id"]
    again = ada.post("/optimize", json={"source": TINY_TASK}, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] == mine.json()["id"]


def test_requests_at_once_do_not_pass_a_quota(keyed: Keyed) -> None:
    made = keyed.key("ada", jobs_queued=3)
    with serving(keyed.app) as url:
        headers = {"Authorization": f"Bearer {made.text}"}

        def ask(_: int) -> int:
            body = {"source": TINY_TASK, "origins": ["compiler"]}
            return httpx.post(f"{url}/optimize", json=body, headers=headers, timeout=60).status_code

        with ThreadPoolExecutor(12) as crowd:
            found = list(crowd.map(ask, range(12)))
    assert sorted(found) == [202] * 3 + [429] * 9
    assert stored_jobs(keyed) == 3


def test_one_idempotency_key_at_once_makes_one_job(keyed: Keyed) -> None:
    with serving(keyed.app) as url:
        barrier = threading.Barrier(8)

        def ask(_: int) -> Any:
            barrier.wait()
            return httpx.post(
                f"{url}/optimize", json={"source": TINY_TASK}, headers={"Idempotency-Key": "k"}, timeout=60
            )

        with ThreadPoolExecutor(8) as crowd:
            found = list(crowd.map(ask, range(8)))
    assert {answer.status_code for answer in found} <= {202, 409}
    assert len({answer.json()["id"] for answer in found if answer.status_code == 202}) == 1
    assert stored_jobs(keyed) == 1


def test_a_fault_of_the_database_tells_the_log_nothing_of_what_was_to_be_stored(
    keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    row = {
        "owner_id": "",
        "key": "SECRET-TEXT",
        "body_sha256": "SECRET-TEXT",
        "made_id": "x",
        "created_at": utc_now(),
    }
    with keyed.base.write() as session:
        session.execute(insert(IdempotencyKey), row)
    with keyed.base.write() as session, pytest.raises(IntegrityError) as caught:
        session.execute(insert(IdempotencyKey), row)
    with caplog.at_level(logging.WARNING):
        logging.getLogger("test").warning("failed", exc_info=caught.value)
    assert "idempotency" in caplog.text
    assert "SECRET-TEXT" not in caplog.text


def test_a_login_laid_by_a_neighboring_host_is_none_of_ours(keyed: Keyed) -> None:
    made = keyed.key("mallory")
    with keyed.base.write() as session:
        token = logins.log_in(session, keys.verify_key(session, made.text))
    client = keyed.client()
    client.base_url = "https://127.0.0.1"
    laid = {"Cookie": f"{logins.COOKIE}={token}"}
    assert client.get("/jobs", headers=laid).status_code == 401
    own = {"Cookie": f"__Host-{logins.COOKIE}={token}"}
    assert client.get("/jobs", headers=own).status_code == 200
