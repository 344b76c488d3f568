"""Logins of browsers: the cookie, the forms, and what another site cannot do with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from services.db.models import LoginSession, utc_now
from services.users import keys, logins
from services.users.audit import FROM_THE_MACHINE
from services.users.keys import NewKey
from tests.services.keyed import Keyed, routes_of, submit
from tests.services.test_keys import changed, log


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path)
    yield found
    found.close()


def token_in(page: str) -> str:
    found = re.search(r'name="csrf" value="((?:[0-9a-f]{64}){1,2})"', page)
    assert found is not None, page
    return found[1]


def cookies_of(answer: Any) -> dict[str, Any]:
    """The cookies that an answer sets, by name, with their attributes."""
    found: dict[str, Any] = {}
    for header in answer.headers.get_list("set-cookie"):
        found |= SimpleCookie(header)
    return found


def logged_in(keyed: Keyed, key: NewKey, **fields: Any) -> tuple[TestClient, Any]:
    """A browser that was shown a key, and how the login was answered."""
    browser = keyed.client(Accept="text/html")
    token = token_in(browser.get("/login").text)
    answer = browser.post("/login", data={"key": key.text, "csrf": token, **fields})
    return browser, answer


def test_a_page_sends_a_browser_to_the_login_and_back(keyed: Keyed) -> None:
    made = keyed.key("ada")
    browser = keyed.client(Accept="text/html")
    away = browser.get("/ui/jobs/x?against=parent")
    assert away.status_code == 303
    assert away.headers["Location"] == "/login?next=%2Fui%2Fjobs%2Fx%3Fagainst%3Dparent"
    page = browser.get(away.headers["Location"]).text
    assert 'name="next" value="/ui/jobs/x?against=parent"' in page
    answer = browser.post(
        "/login", data={"key": f" {made.text} ", "csrf": token_in(page), "next": "/ui/jobs/x?against=parent"}
    )
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/jobs/x?against=parent")
    assert browser.get("/").status_code == 200
    assert "ada" in browser.get("/").text
    assert browser.get("/login").headers["Location"] == "/"
    assert log(keyed)[-1] == ("ada", "login", None, 303)


def test_the_cookie_is_opaque_and_kept_from_scripts_and_other_sites(keyed: Keyed) -> None:
    made = keyed.key("ada")
    _, answer = logged_in(keyed, made)
    cookie = cookies_of(answer)[logins.COOKIE]
    assert cookie["httponly"]
    assert cookie["samesite"].lower() == "strict"
    assert cookie["path"] == "/"
    assert not cookie["secure"], "plain HTTP on this machine"
    secret = made.text.rpartition(f"{made.row.prefix}_")[2]
    for part in (made.row.prefix, made.row.id, made.row.sha256, secret, "ada"):
        assert part not in cookie.value
    with keyed.base.read() as session:
        stored = session.scalar(select(LoginSession.token_sha256))
    assert stored == keys.digest_of(cookie.value)


def test_behind_tls_the_cookie_never_leaves_tls(keyed: Keyed) -> None:
    made = keyed.key("ada")
    browser = TestClient(
        keyed.app, base_url="https://127.0.0.1", client=("127.0.0.1", 1), follow_redirects=False
    )
    token = token_in(browser.get("/login").text)
    answer = browser.post("/login", data={"key": made.text, "csrf": token})
    cookie = cookies_of(answer)[f"__Host-{logins.COOKIE}"]
    assert cookie["secure"]
    assert (cookie["path"], cookie["domain"]) == ("/", ""), "or no browser takes it under this name"


def test_a_wrong_key_is_told_on_the_page_and_in_the_log(keyed: Keyed) -> None:
    made = keyed.key("ada")
    for text in ("", "kw_\x00", changed(made.text, 30), "A" * 5000, "<script>"):
        browser = keyed.client(Accept="text/html")
        token = token_in(browser.get("/login").text)
        answer = browser.post("/login", data={"key": text, "csrf": token})
        assert answer.status_code == 401
        assert set(cookies_of(answer)) == {logins.FORM_COOKIE}
        assert "not known here" in answer.text
        assert "<script>" not in answer.text
        assert browser.get("/").status_code == 303
    assert [entry[1:] for entry in log(keyed)] == [("refused: POST /login", None, 401)] * 5


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/\n/evil.example",
        "/\t/evil.example",
        "evil",
        "//[",
    ],
)
def test_a_login_leads_nowhere_else(keyed: Keyed, wanted: str) -> None:
    assert logins.safe_next(wanted) == "/"
    _, answer = logged_in(keyed, keyed.key("ada"), next=wanted)
    assert answer.headers["Location"] == "/"


def test_the_login_form_of_another_site_logs_nobody_in(keyed: Keyed) -> None:
    """Else a person would hand sources to the account of whoever made that site."""
    mallory = keyed.key("mallory")
    theirs = token_in(keyed.client(Accept="text/html").get("/login").text)
    browser = keyed.client(Accept="text/html")
    for data in ({}, {"csrf": ""}, {"csrf": theirs}, {"csrf": "\u0661"}):
        assert browser.post("/login", data={"key": mallory.text, **data}).status_code == 403
    browser.get("/login")
    assert browser.post("/login", data={"key": mallory.text, "csrf": theirs}).status_code == 403
    assert browser.get("/").status_code == 303


def test_no_form_of_another_site_changes_anything(keyed: Keyed) -> None:
    """Every route that changes something, with the cookie that a browser sends along, but not what our pages carry."""
    key = keyed.key("root", "admin")
    browser, _ = logged_in(keyed, key)
    job_id = submit(keyed.client(key)).json()["id"]
    ids = {"job_id": job_id, "key_id": key.row.id, "evaluation_id": job_id}
    unsafe = [(method, path) for method, path in routes_of(keyed.app) if method != "GET"]
    assert len(unsafe) >= 10
    other = token_in(logged_in(keyed, keyed.key("mallory"))[0].get("/").text)
    for method, path in unsafe:
        for options in (
            {},
            {"data": {"csrf": ""}},
            {"data": {"csrf": other}},
            {"headers": {"X-CSRF-Token": other}},
            {"json": {"csrf": other}},
        ):
            answer = browser.request(method, path.format(**ids), **options)
            assert answer.status_code == 403, (method, path, options, answer.text)
    assert keyed.client(key).get(f"/jobs/{job_id}").json()["state"] == "queued"
    assert keyed.client(key).get("/jobs").status_code == 200, "the key was not revoked"


def test_our_own_forms_do(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("ada"))
    token = token_in(browser.get("/").text)
    made = browser.post("/ui/submit", data={"kind": "task", "task": "softmax", "csrf": token})
    assert made.status_code == 303, made.text
    page = browser.get(made.headers["Location"])
    assert logins.unmasked(token_in(page.text)) == logins.unmasked(token)
    cancel = f"{made.headers['Location']}/cancel"
    assert f'action="{cancel}"' in page.text
    assert browser.post(cancel, data={"csrf": token}).status_code == 303
    job = browser.get(made.headers["Location"].removeprefix("/ui")).json()
    assert job["state"] == "cancelled"
    answer = browser.post("/optimize", json={"task": "softmax"}, headers={"X-CSRF-Token": token})
    assert answer.status_code == 202, "a script of our own pages sends it as a header"


def test_a_login_ends_with_logout_and_its_cookie_replayed_is_nothing(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("ada"))
    cookie = browser.cookies[logins.COOKIE]
    token = token_in(browser.get("/").text)
    assert browser.post("/logout", data={"csrf": token}).headers["Location"] == "/login"
    replay = {"Cookie": f"{logins.COOKIE}={cookie}"}
    assert keyed.client(**replay).get("/jobs").status_code == 401
    assert (
        keyed.client(**replay).post("/optimize", json={}, headers={"X-CSRF-Token": token}).status_code == 401
    )


def test_a_login_ends_with_its_time_and_with_its_key(keyed: Keyed) -> None:
    key = keyed.key("ada")
    for end in ("time", "key"):
        browser, _ = logged_in(keyed, key)
        assert browser.get("/jobs").status_code == 200
        with keyed.base.write() as session:
            if end == "time":
                for row in session.scalars(select(LoginSession)):
                    row.expires_at = utc_now() - timedelta(seconds=1)
            else:
                keys.revoke_key(session, FROM_THE_MACHINE, key.row.id)
        assert browser.get("/jobs", headers={"Accept": "application/json"}).status_code == 401


@pytest.mark.parametrize("value", ["", "x", "A" * 43, "\u00e9" * 43, "A" * 3000, '"; x="', "a\\000b"])
def test_what_is_no_login_is_none(keyed: Keyed, value: str) -> None:
    keyed.key("ada")
    cookie = f"{logins.COOKIE}={value}".encode("latin-1", "replace")
    assert keyed.client().get("/jobs", headers={"Cookie": cookie}).status_code == 401


def test_a_key_in_the_header_counts_and_not_the_cookie(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("ada"))
    job_id = submit(keyed.client(keyed.key("bob"))).json()["id"]
    bob = {"Authorization": f"Bearer {keyed.key('bob').text}", "Accept": "application/json"}
    assert browser.get(f"/jobs/{job_id}").status_code == 404
    assert browser.get(f"/jobs/{job_id}", headers=bob).status_code == 200
    wrong = {"Authorization": "Bearer kw_no", "Accept": "application/json"}
    assert browser.get("/jobs", headers=wrong).status_code == 401


def test_a_reader_s_login_changes_nothing(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("ada", "read"))
    token = token_in(browser.get("/").text)
    answer = browser.post("/ui/submit", data={"kind": "task", "task": "softmax", "csrf": token})
    assert answer.status_code == 403
    assert browser.post("/logout", data={"csrf": token}).status_code == 303


def test_an_admin_makes_rotates_and_revokes_keys_on_a_page(keyed: Keyed) -> None:
    browser, _ = logged_in(keyed, keyed.key("root", "admin"))
    page = browser.get("/ui/keys").text
    assert 'href="/ui/keys"' in browser.get("/").text
    token = token_in(page)
    form = {"csrf": token, "user": "bob", "name": "ci", "scope": "read", "expires_days": ""}
    wrong = browser.post("/ui/keys", data={**form, "user": "<b>", "expires_days": "-1"})
    assert wrong.status_code == 422
    assert 'value="&lt;b&gt;"' in wrong.text
    made = browser.post("/ui/keys", data=form)
    assert made.status_code == 200
    assert made.headers["Cache-Control"] == "no-store"
    texts = [key_in(made.text)]
    assert keyed.client(texts[0]).get("/jobs").status_code == 200
    prefix = texts[0][:11]
    rotated = browser.post(f"/ui/keys/{prefix}/rotate", data={"csrf": token})
    texts.append(key_in(rotated.text))
    assert browser.post(f"/ui/keys/{prefix}/rotate", data={"csrf": token}).status_code == 409
    for text in texts:
        assert text not in browser.get("/ui/keys").text
        assert browser.post(f"/ui/keys/{text[:11]}/revoke", data={"csrf": token}).status_code == 303
        assert keyed.client(text).get("/jobs").status_code == 401
    assert browser.post("/ui/keys/none/revoke", data={"csrf": token}).status_code == 404
    actions = [entry[1] for entry in log(keyed) if entry[0] == "root"]
    assert actions == ["login", "key made", "key rotated", "key revoked", "key revoked"]


def test_without_keys_the_page_says_how_to_make_the_first(keyed: Keyed) -> None:
    assert "kernelwright keys create" in keyed.client(Accept="text/html").get("/ui/keys").text
    form = {"user": "eve", "name": "k", "scope": "admin", "expires_days": ""}
    assert keyed.client().post("/ui/keys", data=form).status_code == 403


def key_in(page: str) -> str:
    found = re.search(r"kw_[a-z2-7]{8}_[A-Za-z0-9_-]{43}", page)
    assert found is not None, page
    return found[0]
