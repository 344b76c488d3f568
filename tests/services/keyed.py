"""The service's application in this process, with users, and rows that belong to one of them. Nothing is ever run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIRouter
from starlette.routing import Route
from starlette.testclient import TestClient

from services.api.streams import EventStreams
from services.application import create_app
from services.db.models import Bundle, Candidate, Job, Step, Verdict
from services.db.session import Database
from services.db.upgrade import upgrade
from services.jobs import events
from services.jobs.rows import candidate_row
from services.settings import Settings
from services.users import keys
from services.users.audit import FROM_THE_MACHINE
from services.users.keys import NewKey
from tests.services.databases import newest_sqlite
from tests.services.service import CORRECT, TINY_TASK

URL = "http://127.0.0.1"


class Keyed:
    """An application on a database of its own.

    Args:
        folder: its data folder.
        options: further settings.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.settings = Settings(data_dir=folder, **options)
        file = folder / "kernelwright.db"
        is_new = self.settings.database.startswith("sqlite") and not file.exists()
        if is_new:
            file.write_bytes(newest_sqlite())
        self.app: FastAPI = create_app(self.settings)
        self.base: Database = self.app.state.database
        if not is_new:
            upgrade(self.base)
        self.app.state.stopping = asyncio.Event()
        self.app.state.streams = EventStreams(
            self.base, self.app.state.stopping, self.settings.streams_per_key
        )

    def key(
        self, user: str, scope: str = "submit", *, lifetime: timedelta | None = None, **quotas: Any
    ) -> NewKey:
        """A new key of a user."""
        with self.base.write() as session:
            made = keys.make_key(
                session,
                FROM_THE_MACHINE,
                user,
                "test",
                scope,
                lifetime / timedelta(days=1) if lifetime is not None else None,
            )
            if quotas:
                made.user.quotas = quotas
            return made

    def client(
        self, key: NewKey | str | None = None, *, address: str = "127.0.0.1", **headers: str
    ) -> TestClient:
        """Somebody who calls from `address`, perhaps with a key."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key.text if isinstance(key, NewKey) else key}"
        return TestClient(
            self.app,
            base_url=URL,
            headers=headers,
            client=(address, 50000),
            follow_redirects=False,
            raise_server_exceptions=False,
        )

    def close(self) -> None:
        """Close the database."""
        self.base.close()


def submit(client: TestClient, **more: Any) -> Any:
    """POST /optimize."""
    return client.post("/optimize", json={"source": TINY_TASK, "origins": ["compiler"], **more})


def evaluate(client: TestClient, **more: Any) -> Any:
    """POST /evaluate."""
    return client.post("/evaluate", json={"source": TINY_TASK, "candidate": CORRECT, **more})


def whole_job(keyed: Keyed, client: TestClient) -> dict[str, str]:
    """A job that has everything that a job can have, an evaluation, and the ids of all of it."""
    job_id = submit(client, name="whole").json()["id"]
    candidate: Candidate = candidate_row(job_id, "a" * 64, "llm", "one", CORRECT)
    with keyed.base.write() as session:
        job = session.get_one(Job, job_id)
        job.state, job.winner_sha256 = "waiting", candidate.sha256
        session.add(candidate)
        body = {"verdict": "accepted", "reason": "", "summary": {"geomean_speedup": 2.0}}
        for phase in ("screen", "held_out"):
            session.add(
                Verdict(
                    job_id=job_id, sha256=candidate.sha256, phase=phase, word="accepted", reason="", body=body
                )
            )
        session.add(Step(job_id=job_id, name="batch.requests", value={"value": "{}\n"}))
        session.add(Bundle(job_id=job_id, file_name="b.zip", content=b"PK"))
        events.append(session, job_id, "job.waiting", {})
    evaluation_id = evaluate(client).json()["id"]
    look = client.post("/ui/check", data={"kind": "source", "source": TINY_TASK, "name": "n/" * 60})
    check_id = look.headers["Location"].partition("?")[0].rpartition("/")[2]
    ids = {"job_id": job_id, "candidate_id": candidate.id, "evaluation_id": evaluation_id}
    return {**ids, "check_id": check_id}


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Method and path of every route, those of included routers too.

    Raises:
        TypeError: a route of a kind that this does not know how to look into.
    """
    for route in _flat(app.router.routes):
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                yield method, route.path


def _flat(routes: Any) -> Iterator[Route | APIRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if isinstance(inner, APIRouter):
            yield from _flat(inner.routes)
        elif isinstance(route, Route | APIRoute):
            yield route
        else:
            raise TypeError(f"nobody knows what {route!r} serves")
