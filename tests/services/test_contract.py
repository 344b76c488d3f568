"""The service does what its OpenAPI document says, whatever it is sent: schemathesis with all of its checks.

Here with few examples. The long run is the same command with more of them, and the phase `coverage`:

    KERNELWRIGHT_RATE_LIMIT=1000000/minute KERNELWRIGHT_RATE_LIMIT_WITHOUT_KEY=1000000/minute kernelwright serve --no-worker
    schemathesis --config-file tests/services/schemathesis.toml run http://127.0.0.1:8000/openapi.json --checks all \
        --max-examples 100 [-H "Authorization: Bearer kw_..."]

A key of scope admin ends others' keys on the way, and perhaps itself, so that is asked of a database to throw away.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.keyed import URL, Keyed
from tests.services.serving import serving

CONFIG = Path(__file__).with_name("schemathesis.toml")
PROGRAM = Path(sys.executable).with_name("schemathesis")
OFTEN = {"rate_limit": "1000000/minute", "rate_limit_without_key": "1000000/minute"}


def complaints(url: str, *options: str) -> str:
    """What schemathesis has to say against a service; nothing if it has nothing."""
    command = [
        str(PROGRAM), "--config-file", str(CONFIG), "run", f"{url}/openapi.json", "--checks", "all", "--seed", "1",
        "--continue-on-failure", "--no-shrink", "--warnings", "off", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("examples", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scope", [None, pytest.param("submit", marks=pytest.mark.slow)])
def test_every_answer_is_one_that_the_document_names(
    tmp_path: Path, scope: str | None, examples: int
) -> None:
    keyed = Keyed(tmp_path, **OFTEN)
    options = [] if scope is None else ["-H", f"Authorization: Bearer {keyed.key('ada', scope).text}"]
    with serving(keyed.app) as url:
        found = complaints(
            url, "--phases", "examples,fuzzing,stateful", "--max-examples", str(examples), *options
        )
    assert not found, found[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("scope", [None, "submit", "admin"])
def test_every_limit_of_every_field_holds(tmp_path: Path, scope: str | None) -> None:
    keyed = Keyed(tmp_path, **OFTEN)
    options = [] if scope is None else ["-H", f"Authorization: Bearer {keyed.key('ada', scope).text}"]
    with serving(keyed.app) as url:
        found = complaints(url, "--phases", "coverage", *options)
    assert not found, found[-6000:]


def document(keyed: Keyed, **headers: str) -> Any:
    """The document as a caller gets it."""
    return keyed.client(**headers).get("/openapi.json").json()


def test_the_document_says_who_needs_a_key(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    without = document(keyed)
    assert {} in without["paths"]["/jobs"]["get"]["security"]
    made = keyed.key("ada", "read")
    behind = document(keyed, Authorization=f"Bearer {made.text}")
    assert behind["paths"]["/jobs"]["get"]["security"] == [{"HTTPBearer": []}]
    assert behind["paths"]["/healthz"]["get"]["security"] == []


def test_every_refusal_is_a_problem_document_in_the_document(tmp_path: Path) -> None:
    found = document(Keyed(tmp_path))
    for path, item in found["paths"].items():
        for method, operation in item.items():
            for status, said in operation["responses"].items():
                if int(status) >= 400:
                    assert "application/problem+json" in said["content"], (path, method, status)
    assert "HTTPValidationError" not in json.dumps(found)


def test_every_body_has_an_example_that_is_taken(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    found = document(keyed)
    for name in ("OptimizeRequest", "EvaluateRequest"):
        for example in found["components"]["schemas"][name]["examples"]:
            path = f"/{name.removesuffix('Request').lower()}"
            assert keyed.client().post(path, json=example).status_code == 202, name


def test_a_method_that_a_path_lacks_is_told_all_that_it_has(tmp_path: Path) -> None:
    client = Keyed(tmp_path).client()
    assert client.delete("/jobs/x/candidates").headers["Allow"] == "GET, POST"
    assert client.put("/keys/x").headers["Allow"] == "GET, DELETE"


def test_the_page_of_the_api_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = Keyed(tmp_path).client().get("/docs")
    for nested in (
        "budget.seconds",
        "traffic[].weight",
        "models[].samples",
        "strategy.rounds",
        "space.NAME.max",
    ):
        assert f"<code>{nested}</code>" in page.text, nested
    assert "&#34;weight&#34;: 12" in page.text, "an example"
    assert page.status_code == 200
    assert "POST /optimize" in page.text.replace("<wbr>", "")
    assert "idempotency-key" in page.text
    assert "//" not in page.text.replace(URL, "").replace("http://www.w3.org", "")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
