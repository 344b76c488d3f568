"""The pages as a program sees them: real port, real database, plain forms, headers."""

from __future__ import annotations

import pytest

from tests.browser import stored
from tests.browser.markup import parse
from tests.browser.shelf import Shelf

HOSTILE = "</td><script>alert('x')</script>"


def form(**fields: str) -> dict[str, str]:
    """What a browser sends for the form of the index page."""
    blank = {
        "kind": "task",
        "task": "layernorm_relu_add",
        "source": "",
        "device": "cpu",
        "seconds": "",
        "priority": "",
        "name": "",
    }
    return {**blank, **fields}


def test_a_plain_form_starts_a_job_and_leads_to_its_page(shelf: Shelf) -> None:
    answer = shelf.client.post(f"{shelf.url}/ui/submit", data=form(name="from a form", seconds="90"))
    assert answer.status_code == 303
    page = shelf.client.get(shelf.url + answer.headers["location"])
    assert page.status_code == 200
    assert parse(page.text).find("h1")[0].text == "from a form"
    job = shelf.service.job(answer.headers["location"].rsplit("/", 1)[1])
    assert job["task"]["name"] == "layernorm_relu_add"
    assert job["task"]["catalog"] is True


def test_a_priority_is_the_jobs_and_one_that_is_none_is_told(shelf: Shelf) -> None:
    answer = shelf.client.post(f"{shelf.url}/ui/submit", data=form(priority="-3"))
    assert answer.status_code == 303
    assert shelf.service.job(answer.headers["location"].rsplit("/", 1)[1])["priority"] == -3
    for wrong in ("10", "-5", "high"):
        answer = shelf.client.post(f"{shelf.url}/ui/submit", data=form(priority=wrong))
        assert answer.status_code == 422
        controls = {one.attributes.get("id"): one for one in parse(answer.text).every()}
        assert controls["priority"].attributes["aria-invalid"] == "true"
        assert controls["priority"].attributes["value"] == wrong


def test_pasted_source_is_the_same_task_however_the_browser_ends_its_lines(shelf: Shelf) -> None:
    answer = shelf.client.post(
        f"{shelf.url}/ui/submit",
        data=form(kind="source", source=stored.REFERENCE.replace("\n", "\r\n")),
    )
    job = shelf.service.job(answer.headers["location"].rsplit("/", 1)[1])
    assert job["task"]["sha256"] == stored.job()["task"]["sha256"]


def test_a_form_with_mistakes_comes_back_as_it_was_and_names_them(shelf: Shelf) -> None:
    answer = shelf.client.post(
        f"{shelf.url}/ui/submit", data=form(kind="source", source="   ", seconds="soon", name="kept & shown")
    )
    assert answer.status_code == 422
    page = parse(answer.text)
    alert = next(one for one in page.every() if one.attributes.get("role") == "alert").text
    assert "Source: is empty" in alert
    assert "Time budget: " in alert
    controls = {one.attributes.get("id"): one for one in page.every()}
    assert controls["seconds"].attributes["aria-invalid"] == "true"
    assert controls["name"].attributes["value"] == "kept & shown"
    assert "aria-invalid" not in controls["device"].attributes


def test_a_device_that_nobody_offers_is_refused_beside_its_field(shelf: Shelf) -> None:
    answer = shelf.client.post(f"{shelf.url}/ui/submit", data=form(device="cuda"))
    assert answer.status_code == 422
    assert "Device: no worker here offers" in parse(answer.text).text


@pytest.mark.parametrize("path", ["/ui/submit", "/ui/jobs/none/cancel"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
        {"Host": "evil.example"},
    ],
)
def test_forms_of_other_sites_are_refused(shelf: Shelf, path: str, headers: dict[str, str]) -> None:
    assert shelf.client.post(shelf.url + path, data=form(), headers=headers).status_code == 403


def test_the_cancel_button_asks_the_job_to_stop(shelf: Shelf) -> None:
    job_id = shelf.start_job("to be cancelled")
    answer = shelf.client.post(f"{shelf.url}/ui/jobs/{job_id}/cancel")
    assert answer.status_code == 303
    assert shelf.service.job(job_id)["state"] == "cancelling"
    assert "cancelling" in parse(shelf.client.get(shelf.url + answer.headers["location"]).text).text


@pytest.mark.parametrize(
    "path", ["/ui/jobs/none", "/ui/candidates/none", "/ui/static/secrets.txt", "/ui/static/..%2fpages.py"]
)
def test_what_does_not_exist_is_a_page_that_says_so(shelf: Shelf, path: str) -> None:
    answer = shelf.client.get(shelf.url + path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith(("text/html", "application/problem+json"))


def test_pages_carry_the_content_security_policy_and_static_files_may_be_kept(shelf: Shelf) -> None:
    page = shelf.client.get(f"{shelf.url}/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-store"
    sheet = next(one.attributes["href"] for one in parse(page.text).find("link", rel="stylesheet"))
    answer = shelf.client.get(f"{shelf.url}{sheet}")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")


def test_hostile_text_from_the_database_stays_text_on_every_page(shelf: Shelf) -> None:
    job_id = shelf.start_job(HOSTILE, source=HOSTILE)
    finding = {"rule": HOSTILE, "severity": "error", "evidence": HOSTILE}
    made = stored.candidate(HOSTILE, "external", source=HOSTILE)
    candidate_id = shelf.propose(job_id, made)
    shelf.judge(
        job_id, made, "screen", stored.verdict([], word="incorrect", reason=HOSTILE, findings=[finding])
    )
    for path in ("/", f"/ui/jobs/{job_id}", f"/ui/candidates/{candidate_id}"):
        page = parse(shelf.client.get(shelf.url + path).text)
        assert "<script>alert('x')</script>" in page.text
        assert all((one.attributes["src"] or "").startswith("/ui/static/") for one in page.find("script"))


def test_older_jobs_are_a_page_away(shelf: Shelf) -> None:
    for index in range(52):
        shelf.start_job(f"many {index}")
    page = parse(shelf.client.get(f"{shelf.url}/").text)
    assert len(page.find("table")[0].find("tbody")[0].find("tr")) == 50
    older = page.find("a", rel="next")[0].attributes["href"]
    assert len(parse(shelf.client.get(f"{shelf.url}{older}").text).find("tbody")[0].find("tr")) >= 2
