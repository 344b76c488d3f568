"""What is not let in, and how the door says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.jobs.requests import OptimizeRequest
from tests.services.service import CORRECT, TINY_TASK, Service


def fields(response: Any) -> list[str]:
    """The fields that a 422 names."""
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return sorted(error["field"] for error in response.json()["errors"])


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"source": TINY_TASK, "colour": "red"}, ["colour"]),
        ({"source": TINY_TASK, "budget": {"secnods": 5}}, ["budget.secnods"]),
        ({"source": TINY_TASK, "budget": {"seconds": -1}}, ["budget.seconds"]),
        ({"source": TINY_TASK, "budget": {"seconds": "soon"}}, ["budget.seconds"]),
        ({"source": TINY_TASK, "budget": {"seconds": True}}, ["budget.seconds"]),
        ({"source": TINY_TASK, "strategy": {"rounds": False, "tune": True}}, ["strategy.rounds"]),
        ({"source": TINY_TASK, "budget": {"candidates": 0}}, ["budget.candidates"]),
        ({"source": TINY_TASK, "budget": {"gpu_seconds": 5}}, ["budget.gpu_seconds"]),
        ({"source": TINY_TASK, "task": "layernorm_relu_add"}, ["body"]),
        ({}, ["body"]),
        ({"source": ""}, ["source"]),
        ({"source": "x = 1\x00"}, ["source"]),
        ({"task": "no_such_task"}, ["task"]),
        ({"source": TINY_TASK, "device": "tpu"}, ["device"]),
        ({"source": TINY_TASK, "traffic": []}, ["traffic"]),
        ({"source": TINY_TASK, "traffic": [{"dims": {"n": 4}}]}, ["traffic.0.weight"]),
        ({"source": TINY_TASK, "traffic": [{"dims": {"n": 4}, "weight": 0}]}, ["traffic.0.weight"]),
        ({"source": TINY_TASK, "traffic": [{"dims": {"n": 0.5}, "weight": 1}]}, ["traffic.0.dims.n"]),
        ({"source": TINY_TASK, "space": {}}, ["space"]),
        ({"source": TINY_TASK, "space": {"n": {"min": -1}}}, ["space.n.min"]),
        ({"source": TINY_TASK, "space": {"n": {"max": 4, "choices": [4]}}}, ["space.n"]),
        ({"source": TINY_TASK, "space": {"n": {"most": 4}}}, ["space.n.most"]),
        ({"source": TINY_TASK, "device": "cuda"}, ["device"]),
        ({"source": TINY_TASK, "gpu": "H200"}, ["gpu"]),
        ({"source": TINY_TASK, "precision": "fp32"}, ["precision"]),
        ({"source": TINY_TASK, "origins": ["nobody"]}, ["origins.0"]),
        ({"source": TINY_TASK, "origins": ["policy"]}, ["origins"]),
        ({"source": TINY_TASK, "origins": ["llm"]}, ["origins"]),
        ({"source": TINY_TASK, "origins": []}, ["origins"]),
        ({"source": TINY_TASK, "models": ["some-model"]}, ["models"]),
        (
            {"source": TINY_TASK, "models": [{"model": "m", "base_url": "http://10.0.0.1"}]},
            ["models.0.base_url"],
        ),
        ({"source": TINY_TASK, "shapes": {"secret": [{"rows": 1}]}}, ["shapes.secret"]),
        (
            {"task": "layernorm_relu_add", "shapes": {"visible": [{"rows": 1, "columns": 8}]}},
            ["shapes.visible.0"],
        ),
        (
            {"task": "layernorm_relu_add", "traffic": [{"dims": {"batch": 8}, "weight": 1}]},
            ["traffic.0.dims"],
        ),
        ({"source": TINY_TASK, "shapes": {"visible": [{"rows": 1.5}]}}, ["shapes.visible.0.rows"]),
        ({"source": TINY_TASK, "name": "two\nlines"}, ["name"]),
    ],
)
def test_a_request_that_cannot_be_honoured_is_refused_with_the_fields_name(
    door: Service, body: dict[str, Any], wrong: list[str]
) -> None:
    assert fields(door.post("/optimize", body)) == sorted(wrong)
    assert door.get("/jobs").json()["data"] == []


def test_a_refusal_never_repeats_what_was_sent(door: Service) -> None:
    response = door.post("/optimize", {"source": "<script>alert(1)</script>\x00", "name": "<b>\n</b>"})
    assert fields(response) == ["name", "source"]
    assert "script" not in response.text
    assert "<b>" not in response.text


def test_text_that_no_encoding_can_hold_is_refused_and_not_a_fault(door: Service) -> None:
    response = door.client.post(
        door.url + "/optimize", content=b'{"source": "\\ud800"}', headers={"Content-Type": "application/json"}
    )
    assert fields(response) == ["source"]


def test_a_body_that_is_not_json_is_refused(door: Service) -> None:
    response = door.client.post(
        door.url + "/optimize", content=b'{"source": ', headers={"Content-Type": "application/json"}
    )
    assert fields(response) == ["body"]


@pytest.mark.parametrize(("kind", "said"), [({}, "missing"), ({"Content-Type": "text/plain"}, "another one")])
def test_a_body_of_another_kind_is_called_that(door: Service, kind: dict[str, str], said: str) -> None:
    """It was called an invalid dictionary."""
    response = door.client.post(door.url + "/optimize", content=b'{"source": "x = 1"}', headers=kind)
    assert fields(response) == ["body"]
    assert response.json()["detail"] == f"the Content-Type is {said}: send application/json"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Model(:\n    pass\n", "is no Python: line 1: invalid syntax"),
        ("import torch\n\ndef get_inputs()\n    return []\n", "is no Python: line 3: expected ':'"),
        ("x = 'open\n", "is no Python: line 1: unterminated string literal (detected at line 1)"),
    ],
)
def test_a_task_that_does_not_parse_is_refused_at_once(door: Service, source: str, message: str) -> None:
    """It failed minutes later, in the queue."""
    for path, more in (("/optimize", {}), ("/evaluate", {"candidate": "x = 1\n"})):
        response = door.post(path, {"source": source, **more})
        assert fields(response) == ["source"]
        assert response.json()["errors"][0]["message"] == message


def test_a_task_that_is_nested_too_deep_to_be_parsed_here_is_left_to_the_worker() -> None:
    for source in ("-" * 29_000 + "1", "a" + ".a" * 14_000, "x = (\n" * 10_000):
        assert OptimizeRequest(source=source).source == source


@pytest.mark.parametrize("path", ["/optimize", "/evaluate", "/jobs/x/candidates"])
def test_a_body_over_the_limit_gets_413(door: Service, path: str) -> None:
    response = door.post(path, {"source": "x" * 30_000})
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == 413


def test_a_body_that_does_not_say_how_long_it_is_gets_413_too(door: Service) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    response = door.client.post(
        door.url + "/optimize", content=pieces(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
    ],
)
def test_a_web_page_of_another_origin_cannot_start_a_job(door: Service, headers: dict[str, str]) -> None:
    response = door.post("/optimize", {"source": TINY_TASK}, headers=headers)
    assert response.status_code == 403, response.text
    assert door.get("/jobs").json()["data"] == []


def test_a_rebound_name_cannot_even_read(door: Service) -> None:
    assert door.get("/jobs", headers={"Host": "evil.example"}).status_code == 403


def test_the_services_own_page_may_post(door: Service) -> None:
    headers = {"Origin": door.url, "Sec-Fetch-Site": "same-origin"}
    response = door.post("/jobs/nothing/cancel", headers=headers)
    assert response.status_code == 404
    port = urlsplit(door.url).port
    headers = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert door.post("/jobs/nothing/cancel", headers=headers).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/nothing",
        "/jobs/nothing/candidates",
        "/jobs/nothing/events",
        "/jobs/nothing/bundle",
        "/candidates/nothing",
        "/evaluations/nothing",
        "/no/such/path",
    ],
)
def test_what_does_not_exist_is_a_404_problem(door: Service, path: str) -> None:
    for accept in ("application/json", "text/event-stream"):
        response = door.get(path, headers={"Accept": accept})
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"
        assert set(response.json()) >= {"type", "title", "status", "detail"}


def test_evaluate_and_candidates_know_their_fields(door: Service) -> None:
    assert fields(door.post("/evaluate", {"source": TINY_TASK})) == ["candidate"]
    assert fields(
        door.post("/evaluate", {"source": TINY_TASK, "candidate": CORRECT, "splits": ["held_out"]})
    ) == ["splits"]
    held_out = {"source": TINY_TASK, "candidate": CORRECT, "shapes": {"held_out": [{"rows": 3}]}}
    assert fields(door.post("/evaluate", held_out)) == ["shapes.held_out"]
    whole = {"source": TINY_TASK, "candidate": CORRECT}
    assert fields(door.post("/evaluate", {**whole, "shapes": {}})) == ["shapes"]
    assert fields(door.post("/evaluate", {**whole, "shapes": {"visible": []}})) == ["shapes.visible"]
    long = {"visible": [{"rows": "x" * 201}]}
    assert fields(door.post("/evaluate", {**whole, "shapes": long})) == ["shapes.visible.0.rows"]
    assert fields(door.post("/jobs/nothing/candidates", {"candidate": " ", "origin": "human"})) == [
        "candidate",
        "origin",
    ]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x"])
def test_a_page_has_a_sensible_size(door: Service, query: str) -> None:
    assert fields(door.get(f"/jobs?{query}")) == ["limit"]
