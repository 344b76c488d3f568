"""Private by default: what one user made does not exist for another, at every route that there is.

`RULES` names every route of the application. A route that is added and not named here fails the first test: say by its rule
who may see what it shows, and the others hold it to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from services.db.models import Candidate, Event, Job, LeaderboardEntry
from services.db.privacy import Viewer
from services.jobs import events
from tests.rl.run_folders import make_run
from tests.services.databases import empty_postgres
from tests.services.keyed import Keyed, routes_of, submit, whole_job
from tests.services.ranked import TASK, ended_job
from tests.services.service import CORRECT, TINY_TASK

#: Whose things others shall not see. No word of hexadecimal digits: digests of three hundred of them hold "ada" now and then.
OWNER = "owner-of-it"
OPEN = "open"  # needs no key
SHARED = "shared"  # needs a key, and shows nothing of anybody's
BOARD = "board"  # needs a key, and shows figures of the catalogue's tasks: whose they are and the way to the job only to their user
OWN = "own"  # names a row by its id: another's answers 404
LIST = "list"  # lists rows: one's own
MAKES = "makes"  # makes a row of one's own
ADMIN = "admin"  # scope admin alone

RULES = {
    "GET /healthz": OPEN,
    "GET /login": OPEN,
    "POST /login": OPEN,
    "GET /favicon.ico": OPEN,
    "GET /ui/static/{name}": OPEN,
    "GET /problems": OPEN,
    "GET /problems/{kind}": OPEN,
    "GET /openapi.json": SHARED,
    "GET /docs": SHARED,
    "GET /readyz": SHARED,
    "GET /ui/workers": SHARED,
    "GET /ui/compare": SHARED,  # with ids: tests/services/test_compare.py
    "GET /ui/compare/tables/{file}": SHARED,
    "GET /ui/workers/tables/{file}": SHARED,
    "GET /runs": SHARED,
    "GET /runs/{run}": SHARED,
    "GET /ui/runs": SHARED,  # what is for admins: tests/services/test_runs_page.py
    "GET /ui/runs/{run}": SHARED,
    "GET /ui/runs/tables/{file}": SHARED,
    "GET /ui/runs/{run}/tables/{file}": SHARED,
    "GET /leaderboard": BOARD,
    "GET /leaderboard/{task}": BOARD,
    "GET /leaderboard/{task}/history": BOARD,
    "GET /ui/leaderboard": BOARD,
    "GET /ui/leaderboard/{task}": BOARD,
    "GET /ui/leaderboard/tables/{file}": BOARD,
    "GET /ui/leaderboard/{task}/tables/{file}": BOARD,
    "GET /ui/leaderboard/{task}/plots/history.svg": BOARD,
    "GET /ui/tables/{file}": LIST,
    "GET /ui/jobs/{job_id}/tables/{file}": OWN,
    "GET /ui/jobs/{job_id}/plots/{file}": OWN,
    "GET /ui/candidates/{candidate_id}/tables/{file}": OWN,
    "GET /ui/candidates/{candidate_id}/plots/{file}": OWN,
    "GET /jobs/{job_id}/place": OWN,
    "POST /logout": SHARED,
    "POST /optimize": MAKES,
    "POST /evaluate": MAKES,
    "POST /ui/submit": MAKES,
    "POST /ui/check": MAKES,
    "GET /ui/checks/{check_id}": OWN,
    "GET /": LIST,
    "GET /jobs": LIST,
    "GET /jobs/{job_id}": OWN,
    "POST /jobs/{job_id}/cancel": OWN,
    "GET /jobs/{job_id}/batch": OWN,
    "POST /jobs/{job_id}/batch": OWN,
    "GET /jobs/{job_id}/candidates": OWN,
    "POST /jobs/{job_id}/candidates": OWN,
    "GET /jobs/{job_id}/events": OWN,
    "GET /jobs/{job_id}/bundle": OWN,
    "GET /candidates/{candidate_id}": OWN,
    "GET /evaluations/{evaluation_id}": OWN,
    "POST /evaluations/{evaluation_id}/cancel": OWN,
    "GET /ui/jobs/{job_id}": OWN,
    "POST /ui/jobs/{job_id}/cancel": OWN,
    "GET /ui/candidates/{candidate_id}": OWN,
    "POST /keys": ADMIN,
    "GET /keys": ADMIN,
    "GET /keys/{key_id}": ADMIN,
    "DELETE /keys/{key_id}": ADMIN,
    "POST /keys/{key_id}/rotate": ADMIN,
    "GET /audit": ADMIN,
    "GET /metrics": ADMIN,
    "GET /ui/keys": ADMIN,
    "POST /ui/keys": ADMIN,
    "POST /ui/keys/{key_id}/rotate": ADMIN,
    "POST /ui/keys/{key_id}/revoke": ADMIN,
}
#: What `{file}` of a rule may be.
_BOTH = ("csv", "json")
FILES = {
    "GET /ui/tables/{file}": [f"jobs.{ending}" for ending in _BOTH],
    "GET /ui/jobs/{job_id}/tables/{file}": [
        f"{name}.{ending}"
        for name in ("candidates", "rejected", "shapes", "own_shapes", "costs", "events")
        for ending in _BOTH
    ],
    "GET /ui/jobs/{job_id}/plots/{file}": ["search.svg", "shapes.svg", "map.svg"],
    "GET /ui/candidates/{candidate_id}/tables/{file}": [
        f"{name}.{ending}" for name in ("findings", "held_out", "validation", "screen") for ending in _BOTH
    ],
    "GET /ui/candidates/{candidate_id}/plots/{file}": ["held_out.svg", "validation.svg", "screen.svg"],
    "GET /ui/compare/tables/{file}": [f"{name}.{ending}" for name in ("facts", "shapes") for ending in _BOTH],
    "GET /ui/workers/tables/{file}": [
        f"{name}.{ending}" for name in ("workers", "devices") for ending in _BOTH
    ],
    "GET /ui/runs/tables/{file}": [f"runs.{ending}" for ending in _BOTH],
    "GET /ui/runs/{run}/tables/{file}": [
        f"{name}.{ending}" for name in ("steps", "caught") for ending in _BOTH
    ],
    "GET /ui/leaderboard/tables/{file}": [f"boards.{ending}" for ending in _BOTH],
    "GET /ui/leaderboard/{task}/tables/{file}": [
        f"{name}.{ending}" for name in ("entries", "history") for ending in _BOTH
    ],
}
#: Every address, by rule and file.
ADDRESSES = {
    rule.replace("{file}", file): kind
    for rule, kind in RULES.items()
    for file in (FILES[rule] if "{file}" in rule else [""])
}
#: One address of each route.
ONE_EACH = [
    rule.replace("{file}", FILES[rule][0]) if "{file}" in rule else rule
    for rule, kind in RULES.items()
    if kind in (OWN, BOARD, LIST, SHARED, ADMIN)
]
#: No job of these tests has one.
WITHOUT_ONE = {"GET /ui/jobs/{job_id}/plots/map.svg"}
#: It names who is first and leads to the boards.
NO_LINKS = {"GET /ui/leaderboard"}
#: Bodies that a route takes, so that it is not refused for another reason than the one that is tested.
BODIES: dict[str, Any] = {
    "POST /jobs/{job_id}/batch": {"answers": '{"custom_id": "a"}'},
    "POST /jobs/{job_id}/candidates": {"candidate": CORRECT},
    "POST /optimize": {"source": TINY_TASK, "origins": ["compiler"]},
    "POST /evaluate": {"source": TINY_TASK, "candidate": CORRECT},
    "POST /keys": {"user": "eve", "name": "k"},
    "POST /keys/{key_id}/rotate": {},
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    found = Keyed(tmp_path_factory.mktemp("keyed"), rate_limit_without_key="100000/minute")
    yield found
    found.close()


@pytest.fixture(scope="module")
def hers(keyed: Keyed) -> dict[str, str]:
    """The ids of all that Ada has."""
    key = keyed.key(OWNER)
    ranked = ended_job(keyed.base, 2.0, owner_id=key.user.id, label="m-1 #1")
    make_run(keyed.settings.runs / "cpu" / "sft")
    names = {"name": "style.css", "task": TASK, "kind": "no-key", "run": "cpu~sft"}
    return {**whole_job(keyed, keyed.client(key)), "key_id": key.row.id, "ranked_id": ranked, **names}


def ask(client: Any, rule: str, ids: dict[str, str], **options: Any) -> Any:
    method, path = rule.split(" ")
    if rule in BODIES:
        options["json"] = BODIES[rule]
    return client.request(method, path.format(**ids), **options)


def of_kind(*kinds: str) -> list[str]:
    return [rule for rule, kind in ADDRESSES.items() if kind in kinds]


def test_every_route_has_a_rule(keyed: Keyed) -> None:
    found = {f"{method} {path}" for method, path in routes_of(keyed.app)}
    assert found == set(RULES), f"without a rule: {found - set(RULES)}; gone: {set(RULES) - found}"


def test_a_route_without_a_rule_would_be_seen(tmp_path: Path) -> None:
    other = Keyed(tmp_path)
    other.app.add_api_route("/new/{job_id}", lambda: None)
    assert ("GET", "/new/{job_id}") in set(routes_of(other.app))
    other.close()


@pytest.mark.parametrize("rule", ADDRESSES)
def test_without_a_key_only_what_is_open_answers(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    response = ask(keyed.client(), rule, hers)
    if ADDRESSES[rule] == OPEN:
        assert response.status_code in (200, 403), "403: the login form lacks its token"
        assert "Bearer" not in response.headers.get("WWW-Authenticate", "")
    else:
        assert response.status_code == 401, response.text
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("rule", of_kind(OWN))
@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream"])
def test_another_user_s_id_is_no_id(keyed: Keyed, hers: dict[str, str], rule: str, accept: str) -> None:
    mallory = keyed.client(keyed.key("mallory"), Accept=accept)
    answer = ask(mallory, rule, hers)
    assert answer.status_code == 404, answer.text
    nothing = ask(mallory, rule, dict.fromkeys(hers, "nothing"))
    assert nothing.status_code == 404
    shown = [one.text for one in (answer, nothing)]
    for value in sorted(hers.values(), key=len, reverse=True):
        shown = [text.replace(value, "nothing") for text in shown]
    assert shown[0] == shown[1], "the answer tells that it exists"
    with keyed.base.read() as session:
        job = session.get_one(Job, hers["job_id"])
        assert (job.state, job.cancel_requested) == ("waiting", False)
        assert session.query(Candidate).filter_by(job_id=job.id).count() == 1


@pytest.mark.parametrize(
    "rule", [rule for rule in of_kind(OWN) if rule.startswith("GET") and rule not in WITHOUT_ONE]
)
def test_one_s_own_id_and_an_admin_s_see_it(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    for client in (keyed.client(keyed.key(OWNER, "read")), keyed.client(keyed.key("root", "admin"))):
        assert ask(client, rule, hers).status_code == 200


@pytest.mark.parametrize("rule", of_kind(LIST))
def test_lists_and_cursors_show_one_s_own(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    bob = keyed.client(keyed.key("bob"))
    his = submit(bob).json()["id"]
    newer = f"?after={'z' * 26}"
    for query in ("", newer, f"?after={his}"):
        text = bob.get(rule.split(" ")[1] + query).text
        assert hers["job_id"] not in text, query
        assert (his in text) == (query in ("", newer)), query
    admin = keyed.client(keyed.key("root", "admin"))
    assert hers["job_id"] in ask(admin, rule, hers).text
    ada = keyed.client(keyed.key(OWNER, "read"))
    assert his not in ask(ada, rule, hers).text


@pytest.mark.parametrize("rule", of_kind(ADMIN))
@pytest.mark.parametrize("scope", ["read", "submit"])
def test_only_an_admin_gives_keys_and_reads_the_log(
    keyed: Keyed, hers: dict[str, str], rule: str, scope: str
) -> None:
    response = ask(keyed.client(keyed.key("mallory", scope)), rule, hers)
    assert response.status_code == 403
    assert "scope admin" in response.json()["detail"]


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.startswith("GET") and "log" not in rule])
def test_a_key_that_may_read_changes_nothing(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    response = ask(keyed.client(keyed.key(OWNER, "read")), rule, hers)
    assert response.status_code == 403
    assert "yours is read" in response.json()["detail"]


@pytest.mark.parametrize("rule", of_kind(SHARED))
def test_what_is_shared_shows_nothing_of_anybody_s(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    text = ask(keyed.client(keyed.key("mallory")), rule, hers).text
    assert not any(
        value in text for name, value in hers.items() if name not in ("name", "task", "kind", "run")
    )


@pytest.mark.parametrize("rule", of_kind(BOARD))
def test_a_board_leads_to_a_job_only_for_those_who_may_see_it(
    keyed: Keyed, hers: dict[str, str], rule: str
) -> None:
    mallory = keyed.client(keyed.key("mallory", "read"))
    answer = ask(mallory, rule, hers)
    assert answer.status_code == 200
    for private in (hers["ranked_id"], hers["job_id"], OWNER, "a private name", "private source"):
        assert private not in answer.text
    with keyed.base.read() as session:
        owner = session.get_one(Job, hers["ranked_id"]).owner_id
    assert owner
    assert owner not in answer.text
    if not rule.endswith(".svg"):
        assert "m-1" in answer.text, "the figure is everybody's"
        for client in (keyed.client(keyed.key(OWNER, "read")), keyed.client(keyed.key("root", "admin"))):
            assert (hers["ranked_id"] in ask(client, rule, hers).text) == (rule not in NO_LINKS)


def test_a_label_that_a_person_typed_is_on_the_board_for_its_user_alone(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    key = keyed.key(OWNER)
    ended_job(keyed.base, 2.0, owner_id=key.user.id, origin="external", label="for the merger with Acme")
    ended_job(keyed.base, 1.5, owner_id=keyed.key("bob").user.id, origin="external", label="in haste")
    clients = [keyed.client(made) for made in (key, keyed.key("bob"), keyed.key("root", "admin"))]
    for path in (f"/leaderboard/{TASK}", f"/leaderboard/{TASK}/history", f"/ui/leaderboard/{TASK}"):
        texts = [client.get(path).text for client in clients]
        assert all("external" in text for text in texts)
        assert ["Acme" in text for text in texts] == [True, False, True]
        if not path.endswith("history"):
            assert ["in haste" in text for text in texts] == [False, True, True]
    with keyed.base.read() as session:
        assert set(session.scalars(select(LeaderboardEntry.label))) == {"external"}
    keyed.close()


@pytest.mark.parametrize("rule", ONE_EACH)
def test_another_method_is_no_way_around(keyed: Keyed, hers: dict[str, str], rule: str) -> None:
    path = rule.split(" ")[1]
    keyless, mallory = keyed.client(), keyed.client(keyed.key("mallory"))
    for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "REPORT"):
        assert keyless.request(method, path.format(**hers)).status_code == 401
        if ADDRESSES[rule] == OWN:
            answer, nothing = (
                mallory.request(method, path.format(**ids)) for ids in (hers, dict.fromkeys(hers, "nothing"))
            )
            assert (answer.status_code, answer.text) == (nothing.status_code, nothing.text)
            assert answer.status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "//jobs", "/jobs/", "/healthz/../jobs", "/healthz/jobs", "/login/../jobs", "/ui/static/../jobs",
        "/ui/static/../../jobs", "/ui/static/", "/favicon.ico/", "/metrics/", "/Metrics", "/ui//keys", "/keys/",
        "/ui/leaderboard/../keys", "/\x00jobs", "jobs", "", "*",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_is_a_way_around(keyed: Keyed, hers: dict[str, str], path: str) -> None:
    """As a server hands a path over, which no client has tidied up."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "root_path": "",
        "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(keyed.app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent).decode()
    assert sent[0]["status"] in (401, 404)
    assert not any(
        value in body for name, value in hers.items() if name not in ("name", "task", "kind", "run")
    )


def test_what_the_gate_refuses_is_observed(keyed: Keyed) -> None:
    """The observer stands around the gate: whoever is refused has an id to tell, and is counted."""
    answer = keyed.client().get("/jobs", headers={"X-Request-ID": "mine-1"})
    assert (answer.status_code, answer.headers["X-Request-ID"]) == (401, "mine-1")
    foreign = keyed.client().get("/jobs", headers={"Host": "evil.example"})
    assert (foreign.status_code, len(foreign.headers["X-Request-ID"])) == (403, 32)
    told = keyed.client(keyed.key("root", "admin")).get("/metrics").text
    assert 'kernelwright_http_request_seconds_count{method="GET",route="other",status="401"}' in told
    assert 'kernelwright_http_request_seconds_count{method="GET",route="other",status="403"}' in told


@pytest.mark.parametrize("rule", of_kind(MAKES))
def test_what_is_made_belongs_to_whoever_made_it(keyed: Keyed, rule: str) -> None:
    key = keyed.key(f"maker{of_kind(MAKES).index(rule)}")
    client = keyed.client(key)
    if rule in ("POST /ui/submit", "POST /ui/check"):
        made = client.post(rule.split(" ")[1], data={"kind": "task", "task": "softmax"})
    else:
        made = ask(client, rule, {})
    assert made.status_code in (202, 303), made.text
    location = made.headers["Location"]
    assert client.get(location).status_code == 200
    assert keyed.client(keyed.key("mallory")).get(location).status_code == 404


def test_a_candidate_that_an_admin_adds_is_the_job_s_user_s(keyed: Keyed) -> None:
    ada = keyed.client(keyed.key(OWNER))
    job_id = submit(ada).json()["id"]
    admin = keyed.client(keyed.key("root", "admin"))
    made = admin.post(f"/jobs/{job_id}/candidates", json={"candidate": CORRECT})
    assert made.status_code == 202
    assert ada.get(made.headers["Location"]).status_code == 200


def test_what_was_made_before_there_were_keys_is_seen_by_admins_alone(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    job_id = submit(keyed.client()).json()["id"]
    assert keyed.client().get(f"/jobs/{job_id}").status_code == 200
    key, admin = keyed.key(OWNER), keyed.key("root", "admin")
    assert keyed.client(key).get(f"/jobs/{job_id}").status_code == 404
    assert keyed.client(admin).get(f"/jobs/{job_id}").status_code == 200
    keyed.close()


def test_a_query_that_forgets_about_users_sees_nothing_of_others(keyed: Keyed, hers: dict[str, str]) -> None:
    """What a route of tomorrow would write: the session adds what it forgets."""
    mallory = keyed.key("mallory").user.id
    for viewer in (Viewer(mallory), Viewer(None)):
        with keyed.base.seen_by(viewer).uncommitted() as session:
            assert session.query(Candidate).filter_by(job_id=hers["job_id"]).count() == 0
            assert session.query(Event.name).join(Job, Job.id == Event.job_id).count() == 0
            assert events.lock_job(session, hers["job_id"]) is None
            assert session.query(Job).filter_by(id=hers["job_id"]).update({"state": "failed"}) == 0
            assert session.query(Job).filter_by(id=hers["job_id"]).delete() == 0


@pytest.mark.services("postgres")
def test_it_is_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with empty_postgres(postgres_url) as url:
        keyed = Keyed(tmp_path, database_url=url)
        key = keyed.key(OWNER)
        ada, mallory = keyed.client(key), keyed.client(keyed.key("mallory"))
        ranked = ended_job(keyed.base, 2.0, owner_id=key.user.id)
        ids = {**whole_job(keyed, ada), "name": "style.css", "task": TASK, "kind": "no-key"}
        for rule in of_kind(OWN):
            assert ask(mallory, rule, ids).status_code == 404, rule
            if rule.startswith("GET") and rule not in WITHOUT_ONE:
                assert ask(ada, rule, ids).status_code == 200, rule
        for rule in of_kind(LIST):
            assert ids["job_id"] in ask(ada, rule, ids).text
            assert ids["job_id"] not in ask(mallory, rule, ids).text
        for rule in of_kind(BOARD):
            assert ask(mallory, rule, ids).status_code == 200
            assert ranked not in ask(mallory, rule, ids).text
        assert ask(ada, "POST /jobs/{job_id}/candidates", ids).status_code == 202
        assert ask(ada, "POST /jobs/{job_id}/cancel", ids).json()["state"] == "cancelled"
        keyed.close()
