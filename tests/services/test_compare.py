"""The page that sets candidates side by side: what differs and nothing else, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.db.models import Job
from tests.browser import stored
from tests.browser.markup import Element, parse
from tests.browser.shelf import Shelf
from tests.services.keyed import Keyed

HOSTILE = "</td><script>alert('x')</script>"


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    yield made
    made.close()


def told(keyed: Keyed, owner_id: str | None = None, **changes: Any) -> list[str]:
    """A job with three judged candidates; their ids: faster, slower at one shape, wrong."""
    shelf = Shelf(None, keyed.base)  # type: ignore[arg-type]  # nobody serves this one
    job_id = shelf.start_job("compared")
    ids = []
    for label, origin, speedups in (
        ("one pass", "human", [1.5, 2.0, 1.2]),
        ("two passes", "llm", [1.5, 0.8, 1.2]),
    ):
        made = stored.candidate(label, origin)
        ids.append(shelf.propose(job_id, made))
        body = stored.verdict(speedups)
        body["environment"] = {**body["environment"], **(changes if label == "two passes" else {})}
        shelf.judge(job_id, made, "validation", body)
    wrong = stored.candidate(HOSTILE, "external", source=f"x = '''{HOSTILE}'''\n")
    ids.append(shelf.propose(job_id, wrong))
    shelf.judge(job_id, wrong, "screen", stored.verdict([], word="incorrect", reason=HOSTILE))
    with keyed.base.write() as session:
        session.get_one(Job, job_id).owner_id = owner_id
    return ids


def address(ids: list[str], path: str = "/ui/compare") -> str:
    return f"{path}?{'&'.join(f'candidate={one}' for one in ids)}"


def table(page: Element, name: str) -> dict[str, list[str]]:
    part = next(one for one in page.every() if one.attributes.get("id") == name)
    rows = part.find("tbody")[0].find("tr")
    return {row.find("th")[0].text: [cell.text for cell in row.find("td")] for row in rows}


def test_only_what_differs_is_shown(keyed: Keyed) -> None:
    one, two, _ = told(keyed)
    answer = keyed.client().get(address([one, two]))
    assert answer.status_code == 200
    page = parse(answer.text)
    facts = table(page, "facts")
    assert facts["label"] == ["one pass", "two passes"]
    assert facts["origin"] == ["human: kernel library", "LLM"]
    assert facts["Validation: worst shape"] == ["1.20×", "0.80×"]
    assert not {"verdict", "job", "task", "measured on", "Validation: verdict"} & set(facts)
    assert "others are the same for all" in page.text
    assert table(page, "shapes") == {
        "Validation, rows 7 · cols 33 · float32": ["2.00× (1.94 to 2.06)", "0.80× (0.78 to 0.82)"]
    }
    assert "2 other shapes are the same for all" in page.text
    diff = page.find("table", class_="diff")[0]
    assert [row.find("td", class_="src")[0].text for row in diff.find("tr", class_="added")] == [
        "# two passes"
    ]
    assert "different tasks" not in page.text
    assert "different platforms" not in page.text


def test_three_candidates_one_of_them_hostile(keyed: Keyed) -> None:
    ids = told(keyed)
    page = parse(keyed.client().get(address(ids)).text)
    assert len(page.find("table", class_="diff")) == 2
    assert table(page, "facts")["verdict"] == ["accepted", "accepted", "incorrect"]
    assert table(page, "facts")["Validation: speedup"][2] == "not measured"
    assert "<script>alert('x')</script>" in page.text
    assert not page.find("script")


def test_other_tasks_and_other_machines_are_said_to_be_so(keyed: Keyed) -> None:
    one, two, _ = told(keyed, torch="2.99.0")
    assert "different platforms" in keyed.client().get(address([one, two])).text
    with keyed.base.write() as session:
        session.get_one(Job, two.partition(".")[0]).task_source = "other = 1\n"
    three = told(keyed)[0]
    page = parse(keyed.client().get(address([two, three])).text)
    assert "different tasks" in page.text


def test_the_job_s_page_leads_there_without_script(keyed: Keyed) -> None:
    one, two, _ = told(keyed)
    client = keyed.client()
    page = parse(client.get(f"/ui/jobs/{one.partition('.')[0]}").text)
    form = page.find("form", id="compare")[0]
    assert (form.attributes["method"], form.attributes["action"]) == ("get", "/ui/compare")
    boxes = [box.attributes["value"] for box in page.find("input", form="compare", name="candidate")]
    assert {one, two} < set(boxes)
    assert client.get("/ui/compare", params={"candidate": boxes}).status_code == 200


def test_both_tables_are_there_as_data(keyed: Keyed) -> None:
    one, two, _ = told(keyed)
    client = keyed.client()
    for name in ("facts", "shapes"):
        found = client.get(address([one, two], f"/ui/compare/tables/{name}.json")).json()
        assert found["columns"] == ["what", one, two]
        assert all(row[one] != row[two] for row in found["data"])
        assert client.get(address([one, two], f"/ui/compare/tables/{name}.csv")).text.startswith(
            f"what,{one},{two}\r\n"
        )
    assert client.get(address([one, two], "/ui/compare/tables/nothing.csv")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/ui/compare", "/ui/compare/tables/facts.json", "/ui/compare/tables/shapes.csv"]
)
def test_another_user_s_candidate_is_none(keyed: Keyed, path: str) -> None:
    ada, mallory = keyed.key("ada"), keyed.key("mallory")
    hers, his = told(keyed, ada.user.id), told(keyed, mallory.user.id)
    client = keyed.client(mallory)
    assert client.get(address(his[:2], path)).status_code == 200
    theirs = client.get(address([his[0], hers[0]], path))
    nothing = f"{'0' * 26}.{'0' * 12}"
    absent = client.get(address([his[0], nothing], path))
    assert theirs.status_code == absent.status_code == 404
    assert theirs.text.replace(hers[0], "") == absent.text.replace(nothing, "")
    assert keyed.client(keyed.key("root", "admin")).get(address([his[0], hers[0]], path)).status_code == 200
    assert keyed.client().get(address(hers[:2], path)).status_code == 401


def test_one_or_too_many_are_refused(keyed: Keyed) -> None:
    ids = told(keyed)
    client = keyed.client()
    for wanted in ([], ids[:1], [ids[0], ids[0]], [f"{ids[0]}{number}" for number in range(7)]):
        assert client.get(address(wanted)).status_code == 422
    for wanted in ([ids[0], "\x00"], [ids[0], HOSTILE], [ids[0], "../../x"]):
        answer = client.get("/ui/compare", params={"candidate": wanted})
        assert answer.status_code == 404
        assert "<script>" not in answer.text
