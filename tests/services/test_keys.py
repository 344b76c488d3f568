"""Keys: who is let in, who is not any more, and what is written down of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from limits import parse_many
from sqlalchemy import select
from typer.testing import CliRunner

from services.api import authentication
from services.cli import app
from services.db.models import ApiKey, AuditEntry, Base, LoginSession, utc_now
from services.errors import Conflict, Refused
from services.settings import get_settings
from services.users import keys
from services.users.audit import FROM_THE_MACHINE
from services.users.keys import NewKey
from tests.services.keyed import Keyed, evaluate, submit, whole_job
from tests.services.service import Service
from tests.services.test_cli import kernelwright


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path)
    yield found
    found.close()


def changed(text: str, at: int) -> str:
    """A key with one character replaced."""
    return text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :]


def log(keyed: Keyed) -> list[tuple[str | None, str, str | None, int]]:
    """The audit log, oldest first, without the keys that the test itself made on the service's machine."""
    elsewhere = AuditEntry.address != FROM_THE_MACHINE.address
    with keyed.base.read() as session:
        rows = session.scalars(select(AuditEntry).where(elsewhere).order_by(AuditEntry.id))
        return [(row.user_name, row.action, row.target, row.status) for row in rows]


def age(keyed: Keyed, made: NewKey, **columns: Any) -> None:
    with keyed.base.write() as session:
        row = session.get_one(ApiKey, made.row.id)
        for name, value in columns.items():
            setattr(row, name, value)


def test_a_key_lets_in_and_is_stored_as_a_digest(keyed: Keyed) -> None:
    made = keyed.key("ada")
    assert made.text.startswith(f"{made.row.prefix}_")
    assert keyed.client(made).get("/jobs").status_code == 200
    secret = made.text.removeprefix(f"{made.row.prefix}_")
    assert len(secret) == 43, "256 bits"
    with keyed.base.read() as session:
        stored = json.dumps(
            [
                [str(value) for value in row]
                for table in Base.metadata.sorted_tables
                for row in session.execute(select(table))
            ]
        )
    assert made.row.prefix in stored
    assert secret not in stored
    assert secret not in repr(made)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer ",
        "Bearer",
        "Bearer kw_aaaaaaaa_" + "A" * 43,
        "Bearer kw_aaaaaaaa_" + "A" * 42,
        "Bearer kw_aaaaaaaa",
        "Bearer " + "A" * 8000,
        "Bearer kw_aaaaaaaa_" + "A" * 8000,
        "Bearer kw_" + "a" * 8 + "_' OR 1=1 --" + "A" * 32,
        "Bearer kw_%_" + "A" * 43,
        "Bearer kw_aaaaaaaa_" + "A" * 42 + "\x00",
        "Bearer \x00",
        "Bearer kw_aaaaaaaa_" + "\u0661" * 20,
        "Basic a3dfYWFhYTp4",
        "Digest x",
        "kw_aaaaaaaa_" + "A" * 43,
    ],
)
def test_what_is_no_key_is_refused(keyed: Keyed, header: str) -> None:
    keyed.key("ada")
    response = keyed.client().get("/jobs", headers={"Authorization": header.encode("utf-8")})
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    assert "AAAA" not in response.text, "what was sent is not repeated"


def test_a_forged_key_is_refused_whichever_character_was_changed(keyed: Keyed) -> None:
    made = keyed.key("ada")
    for at in (3, 10, 11, 12, 30, len(made.text) - 1):
        assert keyed.client(changed(made.text, at)).get("/jobs").status_code == 401, at
    assert keyed.client(made.text + "A").get("/jobs").status_code == 401
    assert keyed.client(made.text[:-1]).get("/jobs").status_code == 401
    assert keyed.client(made.text.upper()).get("/jobs").status_code == 401
    with keyed.base.read() as session:
        digest = session.scalar(select(ApiKey.sha256))
    assert keyed.client(digest).get("/jobs").status_code == 401, "who has read the database has no key"
    assert keyed.client(f"{made.row.prefix}_{digest}").get("/jobs").status_code == 401


def test_two_keys_in_one_request_are_none(keyed: Keyed) -> None:
    made = keyed.key("ada")
    headers = [("Authorization", f"Bearer {made.text}"), ("Authorization", "Bearer x")]
    assert keyed.client().get("/jobs", headers=headers).status_code == 401


def test_an_expired_key_is_refused(keyed: Keyed) -> None:
    made = keyed.key("ada", lifetime=timedelta(days=1))
    assert keyed.client(made).get("/jobs").status_code == 200
    age(keyed, made, expires_at=utc_now() - timedelta(seconds=1))
    response = keyed.client(made).get("/jobs")
    assert response.status_code == 401
    assert "expired" in response.json()["detail"]
    assert "expired" not in keyed.client(changed(made.text, 20)).get("/jobs").text, "told to its holder alone"


def test_a_revoked_key_is_refused_at_once_and_for_good(keyed: Keyed) -> None:
    made, admin = keyed.key("ada"), keyed.client(keyed.key("root", "admin"))
    assert keyed.client(made).get("/jobs").status_code == 200
    for _ in range(2):
        view = admin.delete(f"/keys/{made.row.prefix}").json()
        assert view["state"] == "revoked"
    response = keyed.client(made).get("/jobs")
    assert response.status_code == 401
    assert "revoked" in response.json()["detail"]
    assert admin.post(f"/keys/{made.row.id}/rotate", json={}).status_code == 409


def test_a_rotated_key_is_valid_for_a_while_and_replayed_later_is_refused(keyed: Keyed) -> None:
    old, admin = (
        keyed.key("ada", "read", lifetime=timedelta(days=90)),
        keyed.client(keyed.key("root", "admin")),
    )
    answer = admin.post(f"/keys/{old.row.id}/rotate", json={"grace_hours": 2})
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    new = answer.json()
    assert (new["user"], new["scope"], new["state"]) == ("ada", "read", "valid")
    for text in (old.text, new["key"]):
        assert keyed.client(text).get("/jobs").status_code == 200
    shown = admin.get(f"/keys/{old.row.id}").json()
    assert (shown["state"], shown["replaced_by"]) == ("rotated", new["id"])
    assert admin.post(f"/keys/{old.row.id}/rotate", json={}).status_code == 409, "rotated before"
    with keyed.base.read() as session:
        left = session.get_one(ApiKey, old.row.id).expires_at - utc_now()  # type: ignore[operator]
    assert timedelta(hours=1.9) < left <= timedelta(hours=2)
    age(keyed, old, expires_at=utc_now())
    assert keyed.client(old).get("/jobs").status_code == 401
    assert keyed.client(new["key"]).get("/jobs").status_code == 200


def test_a_grace_never_prolongs_a_key(keyed: Keyed) -> None:
    made = keyed.key("ada", lifetime=timedelta(minutes=5))
    with keyed.base.write() as session:
        keys.rotate_key(session, FROM_THE_MACHINE, made.row.id, 24.0)
    with keyed.base.read() as session:
        assert session.get_one(ApiKey, made.row.id).expires_at == made.row.expires_at


def test_without_any_key_only_this_machine_is_answered(keyed: Keyed) -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert keyed.client(address=address).get("/jobs").status_code == 200, address
    for address in ("10.0.0.7", "192.168.1.2", "::ffff:10.0.0.7", "fe80::1", "testclient", ""):
        for path in ("/", "/jobs", "/healthz", "/docs", "/login"):
            response = keyed.client(address=address).get(path)
            assert response.status_code == 403, (address, path)
            assert "kernelwright keys create" in response.json()["detail"]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
def test_without_any_key_nobody_comes_through_a_proxy(keyed: Keyed, header: str) -> None:
    assert keyed.client().get("/jobs", headers={header: "127.0.0.1"}).status_code == 403
    made = keyed.key("ada")
    assert keyed.client(made).get("/jobs", headers={header: "127.0.0.1"}).status_code == 200


def test_the_end_of_the_last_key_does_not_open_the_service(keyed: Keyed) -> None:
    made = keyed.key("ada", "admin")
    age(keyed, made, revoked_at=utc_now())
    assert keyed.client().get("/jobs").status_code == 401
    again = Keyed(keyed.settings.data_dir)  # as after a restart
    assert again.client().get("/jobs").status_code == 401
    again.close()


def test_the_first_key_is_not_made_over_http(keyed: Keyed) -> None:
    response = keyed.client().post("/keys", json={"user": "eve", "name": "k", "scope": "admin"})
    assert response.status_code == 403
    assert "kernelwright keys create" in response.json()["detail"]
    assert keyed.client().get("/keys").json()["data"] == []


def test_a_secret_is_shown_once(keyed: Keyed) -> None:
    admin = keyed.client(keyed.key("root", "admin"))
    body = {"user": "bob", "name": "ci", "scope": "submit", "expires_days": 30, "quotas": {"jobs_running": 2}}
    answer = admin.post("/keys", json=body)
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    made = answer.json()
    assert keyed.client(made["key"]).get("/jobs").status_code == 200
    for path in ("/keys", answer.headers["Location"], "/audit"):
        assert made["key"] not in admin.get(path).text
        assert made["prefix"] in admin.get(path).text
    view = admin.get(f"/keys/{made['id']}").json()
    assert view["quotas"]["jobs_running"] == 2
    assert view["last_used_at"] is not None


@pytest.mark.parametrize(
    "body",
    [
        {"user": "bob\x00", "name": "k"},
        {"user": "", "name": "k"},
        {"user": "b" * 65, "name": "k"},
        {"user": "<b>", "name": "k"},
        {"user": "bob", "name": "k", "scope": "root"},
        {"user": "bob", "name": "k", "expires_days": 0},
        {"user": "bob", "name": "k", "expires_days": 1e9},
        {"user": "bob", "name": "k", "quotas": {"jobs": 3}},
        {"user": "bob", "name": "k", "quotas": {"usd_per_day": -1}},
        {"user": "bob", "name": "k", "sha256": "0" * 64},
    ],
)
def test_a_key_that_makes_no_sense_is_refused(keyed: Keyed, body: dict[str, Any]) -> None:
    admin = keyed.client(keyed.key("root", "admin"))
    response = admin.post("/keys", json=body)
    assert response.status_code == 422, response.text
    assert "<b>" not in response.text
    assert len(admin.get("/keys").json()["data"]) == 1


def test_names_and_scopes_are_checked_below_http_too(keyed: Keyed) -> None:
    with keyed.base.write() as session:
        for words in (("a b", "k", "read"), ("ada", "k\n", "read"), ("ada", "k", "all")):
            with pytest.raises(Refused):
                keys.make_key(session, FROM_THE_MACHINE, *words, None)
        made = keys.make_key(session, FROM_THE_MACHINE, "ada", "k", "read", None)
        keys.revoke_key(session, FROM_THE_MACHINE, made.row.id)
        with pytest.raises(Conflict):
            keys.rotate_key(session, FROM_THE_MACHINE, made.row.id, 24.0)


def test_an_idempotency_key_is_one_user_s(keyed: Keyed) -> None:
    ada, bob = keyed.client(keyed.key("ada")), keyed.client(keyed.key("bob"))
    for ask in (submit, evaluate):
        same = {"Idempotency-Key": f"the-same-{ask.__name__}"}
        for client in (ada, bob):
            client.headers.update(same)
        first, second = ask(ada).json()["id"], ask(bob).json()["id"]
        assert first != second, "a replayed key of another user made no job, or showed another's"
        assert ask(ada).json()["id"] == first
        assert ask(bob).json()["id"] == second
        again = keyed.client(keyed.key("ada"))
        again.headers.update(same)
        assert ask(again).json()["id"] == first, "another key of the same user"
        body = {"effort": "confirm"} if ask is evaluate else {"name": "other"}
        assert ask(bob, **body).status_code == 409


def test_who_did_what_is_in_the_log_without_secrets_and_sources(keyed: Keyed) -> None:
    made, root = keyed.key("ada"), keyed.key("root", "admin")
    ada, admin = keyed.client(made), keyed.client(root)
    ids = whole_job(keyed, ada)
    ada.post(f"/jobs/{ids['job_id']}/cancel")
    ada.post(f"/evaluations/{ids['evaluation_id']}/cancel")
    ada.get("/audit")
    keyed.client(changed(made.text, 25)).get("/jobs")
    new = admin.post("/keys", json={"user": "bob", "name": "k"}).json()
    rotated = admin.post(f"/keys/{new['id']}/rotate", json={}).json()
    admin.delete(f"/keys/{rotated['id']}")
    assert log(keyed) == [
        ("ada", "job submitted", ids["job_id"], 202),
        ("ada", "evaluation submitted", ids["evaluation_id"], 202),
        ("ada", "task looked at", ids["check_id"], 303),
        ("ada", "job cancelled", ids["job_id"], 202),
        ("ada", "evaluation cancelled", ids["evaluation_id"], 202),
        ("ada", "refused: GET at the gate", None, 403),
        (None, "refused: GET at the gate", None, 401),
        ("root", "key made", new["prefix"], 200),
        ("root", "key rotated", new["prefix"], 200),
        ("root", "key revoked", rotated["prefix"], 200),
    ]
    shown = admin.get("/audit?limit=3").json()
    assert [entry["action"] for entry in shown["data"]] == ["key revoked", "key rotated", "key made"]
    assert shown["data"][0]["key_prefix"] == root.row.prefix
    older = admin.get(f"/audit?limit=100&after={shown['last_id']}").json()
    assert len(older["data"]) == 7 + 2, "and the two keys made on the machine"
    text = json.dumps([shown, older])
    assert not any(one in text for one in (made.text, root.text, new["key"], rotated["key"], "class Model"))


def test_a_flood_of_refused_requests_does_not_fill_the_log(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.key("ada")
    client = keyed.client("kw_aaaaaaaa_" + "A" * 43)
    for _ in range(40):
        assert client.get("/jobs").status_code == 401
    assert len(log(keyed)) == 20
    monkeypatch.setattr(authentication, "_REFUSALS_NOTED_IN_ALL", parse_many("30/hour"))
    for number in range(50):
        keyed.client(address=f"10.0.0.{number}").get("/jobs")
    assert len(log(keyed)) == 50, "of all addresses together, too"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs commands in this process, on a data folder of their own."""
    monkeypatch.setenv("KERNELWRIGHT_DATA_DIR", str(tmp_path / "data"))
    get_settings.cache_clear()
    yield lambda *words: CliRunner().invoke(app, ["keys", *words])
    get_settings.cache_clear()


def test_the_command_line_makes_lists_rotates_and_revokes(here: Callable[..., Result]) -> None:
    done = here("create", "laptop", "--user", "ada", "--scope", "admin")
    assert done.exit_code == 0, done.stderr
    text = done.stdout.strip()
    assert text.startswith("kw_")
    assert text not in done.stderr
    prefix = text[:11]
    assert prefix in done.stderr
    rotated = json.loads(here("rotate", prefix, "--json").stdout)
    assert here("revoke", rotated["prefix"]).exit_code == 0
    assert here("quota", "ada", "jobs_running=2", "usd_per_day=1.5").exit_code == 0
    assert "1.5" in here("quota", "ada").stdout
    assert here("quota", "ada", "jobs=2").exit_code == 2
    assert here("quota", "bob", "jobs_running=2").exit_code == 2
    listed = here("list", "--json").stdout
    states = {view["prefix"]: view["state"] for view in json.loads(listed)}
    assert states == {prefix: "rotated", rotated["prefix"]: "revoked"}
    assert text not in listed
    assert json.loads(listed)[0]["quotas"]["usd_per_day"] == 1.5
    assert prefix in here("list").stdout
    wrong = here("revoke", text)
    assert wrong.exit_code == 2
    assert text not in wrong.output, "a secret that was typed is not printed again"


def test_another_address_than_loopback_needs_a_key_first(tmp_path: Path, here: Callable[..., Result]) -> None:
    refused = kernelwright(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "kernelwright keys create NAME --user YOU --scope admin" in said
    text = here("create", "k", "--user", "ada").stdout.strip()
    with Service(tmp_path / "data", "--no-worker", "--host", "0.0.0.0") as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        assert running.client.get(f"{url}/healthz").status_code == 200
        assert running.client.get(f"{url}/jobs").status_code == 401
        shown = {"Authorization": f"Bearer {text}"}
        assert running.client.get(f"{url}/jobs", headers=shown).status_code == 200
        assert running.client.get(f"{url}/jobs?limit={text}", headers=shown).status_code == 422
        wrong = {"Authorization": f"Bearer {changed(text, 30)}"}
        assert running.client.get(f"{url}/jobs", headers=wrong).status_code == 401
        assert "plain HTTP" in running.log.read_text()
    written = [path for path in running.data_dir.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"kernelwright.db", "serve.log"}
    secret = text[12:].encode()
    assert not any(secret in path.read_bytes() for path in written), "in a log or a database"


def test_no_login_outlives_its_key(keyed: Keyed) -> None:
    made = keyed.key("ada")
    with keyed.base.write() as session:
        session.add(
            LoginSession(token_sha256="0" * 64, key_id=made.row.id, expires_at=utc_now() + timedelta(hours=1))
        )
        keys.revoke_key(session, FROM_THE_MACHINE, made.row.id)
    with keyed.base.read() as session:
        assert session.scalar(select(LoginSession)) is None
