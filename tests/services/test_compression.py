"""Answers are compressed, pages are light, and no secret can be learnt from how well an answer compresses."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.dashboard.run_files import FIGURES
from services.db.models import Job
from services.users import logins
from tests.browser import stored
from tests.browser.shelf import Shelf
from tests.services.filled import Filled, fill
from tests.services.keyed import Keyed, routes_of
from tests.services.ranked import TASK, ended_job
from tests.services.service import ROOT
from tests.services.test_logins import logged_in, token_in

HEAVIEST_BYTES = 50_000
GZIP = {"Accept-Encoding": "gzip", "Accept": "text/html"}
ASSET = re.compile(r'(?:href|src)="(/ui/static/[^"]+)"')
#: A real file of many lines, as long as the longest kernels are.
LONG = "\n".join((ROOT / name).read_text() for name in ("services/jobs/submit.py", "services/db/models.py"))
LAST_LINE = "# the last line of this source"
LONG += f"\n{LAST_LINE}\n"


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    yield made
    made.close()


def full_run(folder: Path) -> None:
    """A run with every curve, none of them smooth, and long samples of many tasks."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    steps = [{"step": step, **{name: draw.random() for name in FIGURES}} for step in range(1, 3000)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    samples = [
        {
            "step": step,
            "task": f"task {number}",
            "source": LONG[number:],
            "word": "accepted",
            "speedup": 1.5,
            "why": "",
        }
        for step in (1, 2999)
        for number in range(20)
    ]
    caught = [
        {"step": 5, "task": "t", "word": "cheating", "caught": f"rejected: {number} " * 9}
        for number in range(90)
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*samples, *caught]))


@dataclass(frozen=True)
class Heavy:
    """A service whose every page is as full as it gets, and ids for its addresses."""

    keyed: Keyed
    ids: dict[str, str]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heavy]:
    keyed = Keyed(tmp_path_factory.mktemp("heavy"))
    fill(keyed.base)
    for number in range(52):
        ended_job(keyed.base, 1.1 + number / 100, name=f"a job with a rather long name, number {number}")
    job_id = ended_job(keyed.base, 1.9, task_source=LONG)
    shelf = Shelf(None, keyed.base)  # type: ignore[arg-type]  # nobody serves this one
    first_id = ""
    for number in range(60):
        made = stored.candidate(f"m-{number} round {number}", "llm", source=f"# {number}\n{LONG[number:]}")
        candidate_id = shelf.propose(job_id, made)
        first_id = first_id or candidate_id
        for split in ("visible", "validation"):
            body = stored.verdict([1 + (number * step % 17) / 11 for step in range(6)], split=split)
            body["shapes"] = [
                {**one, "dims": {**one["dims"], "rows": one["dims"]["rows"] + again}}
                for again in range(8)
                for one in body["shapes"]
            ]
            shelf.judge(job_id, made, "screen" if split == "visible" else "validation", body)
    with keyed.base.write() as session:
        job = session.get_one(Job, job_id)
        job.winner_sha256, job.tally = made["sha256"], None
    look = keyed.client().post("/ui/check", data={"kind": "source", "source": LONG})
    full_run(keyed.settings.runs / "full")
    ids = {"job_id": job_id, "candidate_id": candidate_id, "task": TASK, "kind": "too-many", "run": "full"}
    others = f"candidate={first_id}&candidate={candidate_id}"
    yield Heavy(keyed, {**ids, "check_id": look.headers["Location"].rpartition("/")[2], "others": others})
    keyed.close()


def weight(client: Any, path: str) -> tuple[int, str]:
    """Bytes on the wire of an answer with all that its page loads, and its content type."""
    answer = client.get(path, headers=GZIP)
    kind = answer.headers["content-type"].partition(";")[0]
    total = int(answer.headers["content-length"])
    if kind == "text/html":
        assert answer.status_code == 200, (path, answer.text)
        for address in sorted(set(ASSET.findall(answer.text))):
            total += int(client.get(address, headers=GZIP).headers["content-length"])
    return total, kind


def test_no_page_and_no_plot_is_heavier_than_fifty_kilobytes(heavy: Heavy) -> None:
    keyed, ids = heavy.keyed, heavy.ids
    client = keyed.client()
    files = {"/ui/jobs/{job_id}/plots/{file}": ("search.svg", "shapes.svg", "map.svg"),
             "/ui/candidates/{candidate_id}/plots/{file}": ("held_out.svg", "validation.svg", "screen.svg")}  # fmt: skip
    pages = [
        path.format(**ids, file=file, name="style.css")
        + (f"?{ids['others']}" if path == "/ui/compare" else "")
        for method, path in routes_of(keyed.app)
        if method == "GET" and (path in ("/", "/docs") or path.startswith(("/ui", "/problems")))
        for file in files.get(path, ("",))
        if "/tables/" not in path
    ]
    weights = {path: weight(client, path) for path in pages}
    shown = {path: total for path, (total, kind) in weights.items() if kind in ("text/html", "image/svg+xml")}
    assert len(shown) >= 13 and "/docs" in shown
    assert shown[f"/ui/jobs/{ids['job_id']}"] > 15_000, "the heaviest page has nothing on it"
    assert {path: total for path, total in shown.items() if total > HEAVIEST_BYTES} == {}


def test_the_login_page_is_light(keyed: Keyed) -> None:
    keyed.key("ada")
    total, kind = weight(keyed.client(), "/login")
    assert kind == "text/html"
    assert 1_000 < total <= HEAVIEST_BYTES


def test_of_a_long_source_a_page_shows_the_beginning_and_all_of_it_when_asked(heavy: Heavy) -> None:
    ids = heavy.ids
    client = heavy.keyed.client(Accept="text/html")
    page = client.get(f"/ui/candidates/{ids['candidate_id']}").text
    assert "more lines" in page
    assert "?against=reference&amp;lines=all" in page
    assert LAST_LINE not in page
    assert LAST_LINE in client.get(f"/ui/candidates/{ids['candidate_id']}?lines=all").text


def test_answers_are_compressed_for_those_who_take_it(heavy: Heavy) -> None:
    client = heavy.keyed.client()
    for path in ("/", "/jobs", "/ui/tables/jobs.csv", "/ui/leaderboard", "/openapi.json"):
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip", path
        assert "content-encoding" not in plain.headers
        assert "Accept-Encoding" in packed.headers["vary"]
        assert "Accept-Encoding" in plain.headers["vary"]
        assert int(packed.headers["content-length"]) < len(plain.content) / 2


def test_what_shows_a_key_is_sent_as_it_is(keyed: Keyed) -> None:
    client = keyed.client(keyed.key("root", "admin"), **{"Accept-Encoding": "gzip"})
    made = client.post("/keys", json={"user": "bob", "name": "n" * 60, "scope": "read"})
    assert made.status_code == 201
    browser, _ = logged_in(keyed, keyed.key("ada", "admin"))
    form = {"csrf": token_in(browser.get("/").text), "user": "eve", "name": "x", "scope": "read"}
    page = browser.post("/ui/keys", data=form | {"expires_days": ""}, headers=GZIP)
    assert "shown now and never again" in page.text
    form_page = keyed.client().get("/login", headers=GZIP)
    for answer in (made, page, client.get("/keys"), browser.get("/ui/keys", headers=GZIP), form_page):
        assert answer.status_code in (200, 201)
        assert "content-encoding" not in answer.headers, answer.url
    assert len(page.content) > 2000
    assert browser.get("/", headers=GZIP).headers["content-encoding"] == "gzip"


def test_the_token_of_forms_never_looks_the_same_and_always_works(keyed: Keyed) -> None:
    token = logins.csrf_of(logins.new_token())
    seen = {logins.masked(token) for _ in range(50)}
    assert len(seen) == 50
    assert {logins.unmasked(one) for one in seen} == {token}
    assert not any(token in one for one in seen)
    one = seen.pop()
    for wrong in ("", token, one[:-2], one + "00", f"{one[:-1]}\u0661", f"{one[:-1]}g", f"{one}\n"):
        assert logins.unmasked(wrong) == ""


def test_two_pages_of_a_login_carry_two_tokens_and_both_are_good(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("ada"))
    first, second = (token_in(browser.get("/").text) for _ in range(2))
    assert first != second
    for token in (first, second):
        answer = browser.post("/ui/submit", data={"kind": "task", "task": "softmax", "csrf": token})
        assert answer.status_code == 303
    assert logins.unmasked(first) == logins.unmasked(second)
    plain = browser.post("/ui/submit", data={"kind": "task", "csrf": logins.unmasked(first)})
    assert plain.status_code == 403, "what no page carries is not accepted"


def test_streams_of_events_and_bundles_are_not_compressed(filled: Filled) -> None:
    url = f"{filled.service.url}/jobs/{filled.jobs[0]}/events"
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip"}
    with httpx.stream("GET", url, headers=headers) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in answer.headers
    assert raw.count(b"\ndata: ") > 40
    listed = httpx.get(url, headers={"Accept": "application/json", "Accept-Encoding": "gzip"})
    assert listed.headers["content-encoding"] == "gzip"
