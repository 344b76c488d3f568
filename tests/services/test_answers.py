"""Answers that are made ready in the thread that made them are those that FastAPI would send."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.responses import FileResponse, Response

from services.api import answers
from services.api.compression import Compressed
from services.api.deps import Route
from services.api.routes import jobs
from services.jobs.views import Page, View, page_of
from tests.services.filled import fill
from tests.services.keyed import Keyed


class One(View):
    """A view with what JSON has no word for."""

    name: str
    figures: dict[str, Any]
    pair: tuple[float, float] | None = None


VIEW = One(
    name="é\u2028<b>\x00",
    figures={"inf": float("inf"), "nan": float("nan"), "deep": [{"x": 1e-300}]},
    pair=(1, 2),
)


def asked(route_class: type[APIRoute], view: Any, returned: Any, **options: Any) -> Response:
    """The answer of an application whose one route gives `view`."""
    app = FastAPI()
    app.router.route_class = route_class

    def endpoint() -> Any:
        return view

    endpoint.__annotations__["return"] = returned
    app.get("/", **options)(endpoint)
    return TestClient(app).get("/")  # type: ignore[return-value]  # httpx has an answer's attributes, too


@pytest.mark.parametrize(
    ("view", "returned"), [(VIEW, One), (page_of([VIEW, VIEW], 1), Page[One]), (page_of([], 1), Page[One])]
)
@pytest.mark.parametrize("status_code", [None, 202])
def test_a_view_is_written_as_fastapi_writes_it(view: Any, returned: Any, status_code: int | None) -> None:
    ours, theirs = (asked(kind, view, returned, status_code=status_code) for kind in (Route, APIRoute))
    assert ours.content == theirs.content  # type: ignore[attr-defined]
    assert ours.status_code == theirs.status_code == (status_code or 200)
    assert dict(ours.headers) == dict(theirs.headers)


def test_what_sets_headers_is_left_to_fastapi() -> None:
    app = FastAPI()
    app.router.route_class = Route

    @app.post("/", status_code=202)
    def endpoint(response: Response) -> One:
        response.headers["Location"] = "/elsewhere"
        return VIEW

    answer = TestClient(app).post("/")
    assert (answer.status_code, answer.headers["location"]) == (202, "/elsewhere")


def test_it_is_packed_in_the_thread_and_only_where_the_request_allows_it() -> None:
    app = FastAPI()
    app.router.route_class = Route
    threads = []

    @app.get("/keys")
    @app.get("/text")
    def endpoint() -> Response:
        threads.append(threading.current_thread())
        return Response("x" * 5000, media_type="text/html")

    served = TestClient(Compressed(app))
    packed = served.get("/text", headers={"Accept-Encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert int(packed.headers["content-length"]) < 200
    assert packed.text == "x" * 5000
    assert threads[0] is not threading.main_thread()
    for path, accepted in (("/text", "identity"), ("/keys", "gzip")):
        plain = served.get(path, headers={"Accept-Encoding": accepted})
        assert "content-encoding" not in plain.headers
        assert plain.text == "x" * 5000


def test_what_is_short_or_packed_or_of_another_kind_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file.html"
    file.write_text("x" * 5000)
    long = "x" * 5000
    kept = [
        Response("x" * (answers.AT_LEAST_BYTES - 1), media_type="text/html"),
        Response(long, media_type="application/zip"),
        Response(
            gzip.compress(os.urandom(5000)), media_type="text/html", headers={"Content-Encoding": "gzip"}
        ),
        FileResponse(file),
    ]
    with answers.packing(True):
        for answer in kept:
            before = (bytes(getattr(answer, "body", b"")), list(answer.raw_headers))
            assert answers.packed(answer) is answer
            assert (bytes(getattr(answer, "body", b"")), list(answer.raw_headers)) == before
        packed = answers.packed(Response(long, media_type="image/svg+xml"))
        assert gzip.decompress(bytes(packed.body)) == long.encode()
    untouched = answers.packed(Response(long, media_type="text/html"))
    assert bytes(untouched.body) == long.encode(), "the permission has ended with its block"


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    fill(made.base)
    yield made
    made.close()


def test_answers_of_the_service_fit_their_models(keyed: Keyed) -> None:
    client = keyed.client()
    job = client.get("/jobs").json()["data"][0]["id"]
    candidate = client.get(f"/jobs/{job}/candidates").json()["data"][0]["id"]
    models = {
        route.path: route.response_model
        for route in jobs.router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and route.response_model
    }
    looked_at = 0
    for path, model in models.items():
        answer = client.get(path.format(job_id=job, candidate_id=candidate))
        if answer.headers["content-type"] != "application/json":
            continue
        read = model.model_validate_json(answer.content)
        assert json.loads(read.model_dump_json()) == answer.json()
        looked_at += 1
    assert looked_at >= 4
