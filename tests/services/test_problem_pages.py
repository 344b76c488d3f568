"""Every `type` of a problem document leads to a page that says what it means and what to do, for whoever lacks a key, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from services import errors
from services.api import problems
from services.api.problem_kinds import KINDS, OF_STATUS
from tests.browser.markup import parse
from tests.services.keyed import Keyed, submit
from tests.services.service import ROOT

#: What answers with a status of its own: `problem(404, ...)`, `_Refusal(401, ...)`, `HTTPException(400, ...)`.
_ANSWERING = ("problem", "_Refusal", "HTTPException")
#: Statuses that starlette and FastAPI raise by themselves: a body that is not UTF-8, a method that a route does not take.
_OF_FRAMEWORK = {400, 405}
#: Those of the service's own errors.
_OF_ERRORS = {one.status for one in vars(errors).values() if hasattr(one, "status")}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    made = Keyed(tmp_path_factory.mktemp("keyed"))
    made.key("root", "admin")
    yield made
    made.close()


def statuses_in(folder: Path) -> set[int]:
    """Every status that code below a folder answers with by writing it down."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in _ANSWERING and isinstance(node.args[0].value, int):
                    found.add(node.args[0].value)
    return found


def test_the_statuses_of_the_code_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("problem(418, 'x')\nother(419)\nraise api.HTTPException(420, 'y')\n")
    assert statuses_in(tmp_path) == {418, 420}


def test_every_type_that_is_answered_has_a_page_and_every_page_a_type(keyed: Keyed) -> None:
    answered = statuses_in(ROOT / "services") | _OF_ERRORS | _OF_FRAMEWORK
    assert answered == set(OF_STATUS), "a status without a kind, or a kind that nothing answers with"
    assert len({kind.name for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("status", OF_STATUS)
def test_a_type_leads_to_its_page(keyed: Keyed, status: int) -> None:
    document = bytes(problems.problem(status, "why").body).decode()
    address = re.search(r'"type":"([^"]+)"', document)
    assert address is not None
    answer = keyed.client(Accept="text/html").get(address[1])
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page, kind = parse(answer.text), OF_STATUS[status]
    assert [one.text for one in page.find("h1")] == [kind.title]
    assert f"HTTP status {status}" in page.text
    assert HTTPStatus(status)
    assert kind.meaning in page.text
    assert [one.text for one in page.find("ul")[0].find("li")] == list(kind.remedies)
    overview = parse(keyed.client().get("/problems").text)
    assert overview.find("a", href=address[1])


def test_what_is_no_kind_of_problem_has_no_page(keyed: Keyed) -> None:
    for name in ("nothing", "..%2f..%2fjobs", "<script>alert(1)</script>"):
        answer = keyed.client().get(f"/problems/{name}")
        assert answer.status_code in (401, 404), "a path that leads elsewhere needs a key"
        assert "<script>" not in answer.text


def test_documents_of_a_real_conversation_lead_to_pages(keyed: Keyed) -> None:
    ada = keyed.client(keyed.key("ada"))
    job_id = submit(ada).json()["id"]
    for answer in (
        keyed.client().get("/jobs"),
        keyed.client(keyed.key("reader", "read")).post("/optimize", json={}),
        ada.get("/jobs/none"),
        ada.delete("/jobs"),
        ada.get(f"/jobs/{job_id}/bundle"),
        ada.post("/optimize", json={"task": 1}),
        ada.post("/optimize", content=b"\xff\xfe{", headers={"Content-Type": "application/json"}),
        ada.post("/optimize", content=b"x" * (keyed.settings.max_body_bytes + 1)),
    ):
        document = answer.json()
        assert document["type"] == OF_STATUS[answer.status_code].type, answer.text
        assert keyed.client().get(document["type"]).status_code == 200


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md"), key=str), ids=lambda path: path.name)
def test_types_that_the_documentation_names_exist(path: Path) -> None:
    named = set(re.findall(r"/problems/([a-z-]+)", path.read_text()))
    assert named <= {kind.name for kind in KINDS}
