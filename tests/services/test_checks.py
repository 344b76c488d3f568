"""The form's other button: what the referee finds in a task is shown before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.db.models import Evaluation, Job
from services.jobs.endings import end_evaluation
from tests.browser.markup import Element, parse
from tests.services.keyed import Keyed
from tests.services.service import TINY_TASK, Service, wait_until

HOSTILE = "</li><script>alert('x')</script>"
#: The same without `DIMS`: its space has to be inferred.
UNDECLARED = TINY_TASK.replace(TINY_TASK[TINY_TASK.index("DIMS") : TINY_TASK.index("class Model")], "")
#: Whatever is put in, zeros come out: a candidate need not compute anything.
WORTHLESS = TINY_TASK.replace(
    "torch.relu(x) * self.weight + torch.ones_like(self.weight)", "torch.relu(x) * 0.0"
)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    yield made
    made.close()


def form(**fields: str) -> dict[str, str]:
    return {
        "kind": "source",
        "source": TINY_TASK,
        "task": "",
        "device": "",
        "seconds": "",
        "name": "",
        **fields,
    }


def part(page: Element, name: str) -> Element:
    return next(one for one in page.every() if one.attributes.get("id") == name)


def ended(keyed: Keyed, result: dict[str, Any] | None, state: str = "succeeded", **fields: str) -> str:
    """The address of a look that a worker ended with this."""
    location = keyed.client().post("/ui/check", data=form(**fields)).headers["Location"]
    with keyed.base.write() as session:
        row = session.get_one(Evaluation, location.partition("?")[0].rpartition("/")[2])
        end_evaluation(session, row, state, HOSTILE, result)
    return str(location)


def test_a_worker_looks_at_the_task_in_its_sandbox(service: Service) -> None:
    """Two that are looked at by the real referee: one whose space it infers, one that measures nothing."""
    found = []
    for source in (UNDECLARED, WORTHLESS):
        answer = service.client.post(
            f"{service.url}/ui/check", data=form(source=source, name="looked at", seconds="90")
        )
        assert answer.status_code == 303
        found.append(answer.headers["location"])
    pages = []
    for address in found:
        check_id = address.partition("?")[0].rpartition("/")[2]
        wait_until(lambda: service.get(f"/evaluations/{check_id}").json()["state"] == "succeeded", 90.0,  # noqa: B023
                   lambda: service.get(f"/evaluations/{check_id}").text)  # noqa: B023  # fmt: skip
        pages.append(parse(service.get(address).text))
    report = part(pages[0], "report").text
    assert report.startswith("Usable")
    assert "Shapes, as inferred" in report
    assert "rows is 1 to" in report
    assert "rows 8 · cols 32" in report
    assert "float32 8 × 32" in report
    refused = part(pages[1], "report").text
    assert refused.startswith("Task rejected")
    assert "To mend it:" in refused
    for page, source in zip(pages, (UNDECLARED, WORTHLESS), strict=True):
        assert part(page, "source").text == " ".join(source.split())
        assert part(page, "name").attributes["value"] == "looked at"
        assert part(page, "seconds").attributes["value"] == "90"
        assert "http-equiv" not in str([one.attributes for one in page.find("meta")])
    jobs = service.get("/jobs").json()["data"]
    assert not any(job["name"] == "looked at" for job in jobs), "nothing was started"


def test_the_form_has_both_buttons_and_nothing_is_started_by_a_look(keyed: Keyed) -> None:
    client = keyed.client()
    button = parse(client.get("/").text).find("button", formaction="/ui/check")[0]
    assert button.text == "Check first"
    answer = client.post("/ui/check", data=form(name="a & b", seconds="60"))
    page = parse(client.get(answer.headers["Location"]).text)
    assert "Waiting for a worker" in part(page, "report").text
    assert (
        page.find("meta", http_equiv="refresh")
        or 'http-equiv="refresh"' in client.get(answer.headers["Location"]).text
    )
    assert part(page, "name").attributes["value"] == "a & b"
    with keyed.base.read() as session:
        assert session.query(Job).count() == 0
        assert session.query(Evaluation).one().effort == "look"


def test_what_is_shown_again_is_the_same_task(keyed: Keyed) -> None:
    client = keyed.client()
    for source in (TINY_TASK, "\n\n" + TINY_TASK, TINY_TASK.replace("\n", "\r\n")):
        location = client.post("/ui/check", data=form(source=source)).headers["Location"]
        html = client.get(location).text
        inner = html[html.index("<textarea") :]
        text = inner[inner.index(">") + 1 : inner.index("</textarea>")]
        assert text.startswith("\n"), "a browser drops the first line break"
        again = parse(f"<p>{text[1:]}</p>").pieces
        assert "".join(again).strip(" ") == source.replace("\r\n", "\n")
    catalogue = client.post("/ui/check", data=form(kind="task", task="softmax")).headers["Location"]
    page = parse(client.get(catalogue).text)
    chosen = [one.attributes["value"] for one in page.find("option") if "selected" in one.attributes]
    assert "softmax" in chosen
    assert part(page, "source").text == ""


def test_mistakes_come_back_with_the_form(keyed: Keyed) -> None:
    client = keyed.client()
    answer = client.post("/ui/check", data=form(source=" ", seconds="soon"))
    assert answer.status_code == 422
    assert "Source: is empty" in parse(answer.text).text
    assert client.post("/ui/check", data=form(device="cuda")).status_code == 422
    limited = keyed.client(keyed.key("ada", jobs_queued=0))
    assert limited.post("/ui/check", data=form()).status_code == 429


def test_what_a_task_says_of_itself_stays_text(keyed: Keyed) -> None:
    finding = {"rule": HOSTILE, "severity": HOSTILE, "sentence": HOSTILE, "mending": HOSTILE}
    result = {
        "ok": False, "verdict": HOSTILE, "reason": HOSTILE, "detail": HOSTILE, "lint": {"findings": [finding]},
        "dims": {HOSTILE: {"choices": [HOSTILE]}}, "shapes": {"visible": [{HOSTILE: 1, "dtype": HOSTILE}]},
        "inputs": [{"dtype": HOSTILE, "shape": [2]}], "outputs": [{"value": 1}], "parameters": 3, "direction": HOSTILE,
    }  # fmt: skip
    for address in (ended(keyed, result, name=HOSTILE.replace("/", "")), ended(keyed, None, "failed")):
        answer = keyed.client().get(address)
        assert answer.status_code == 200
        page = parse(answer.text)
        assert "<script>alert('x')</script>" in part(page, "report").text
        assert all((one.attributes["src"] or "").startswith("/ui/static/") for one in page.find("script"))


def test_an_evaluation_is_no_look(keyed: Keyed) -> None:
    client = keyed.client()
    body = {"source": TINY_TASK, "candidate": TINY_TASK}
    made = client.post("/evaluate", json=body).json()["id"]
    for one in (made, "nothing", "0" * 26):
        assert client.get(f"/ui/checks/{one}").status_code == 404
    assert client.post("/evaluate", json={**body, "effort": "look"}).status_code == 422
