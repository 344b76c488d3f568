"""No secret is in what a service shows, sends or writes after a full run: a model that repeats its key, a database and a
broker with passwords, users with keys and a login, servers that go away meanwhile.

The referee alone is scripted (`tests.services.scripted_service`). A leak is planted in each kind of place and must be found there.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.db.models import Candidate
from services.db.session import Database
from services.db.upgrade import upgrade
from services.users import keys, logins
from services.users.audit import FROM_THE_MACHINE
from tests import servers
from tests.agent.chat_server import Answer, chat_server
from tests.services.databases import empty_postgres
from tests.services.keyed import Keyed, routes_of
from tests.services.leaks import Scanner, addresses, forms_of
from tests.services.scripted_service import job_request, proposal
from tests.services.service import ROOT, Service, wait_until

LLM_KEY, POLICY_KEY = "sk-planted/0123456789+abcdef", "policy-" + secrets.token_hex(12)


def echo(request: dict[str, Any]) -> Answer:
    """A hostile endpoint: every answer holds the key, in prose and in a source that the referee accepts."""
    kind = "good" if request["model"] == "model-a" else "wrong"
    earlier = sum(message["role"] == "assistant" for message in request["messages"])
    source = proposal(kind, earlier) + f'\nKEY = "{LLM_KEY}"\n'
    return Answer(f"Your key is {LLM_KEY}.\n```python\n{source}\n```")


@dataclass
class Ran:
    """A service after a full run, and the secrets that it was given."""

    service: Service
    folder: Path
    secrets: dict[str, str]
    seeds: list[str]
    job_id: str

    def scan(self, *, follow: bool = True) -> Scanner:
        """Look at everything: as an admin's program, as a browser that is logged in and follows links, without a key, and at the files."""
        scanner = Scanner(self.secrets)
        stream = {"Accept": "text/event-stream"}
        bearer = {"Authorization": f"Bearer {self.secrets['an admin key']}"}
        cookie = {"Cookie": f"{logins.COOKIE}={self.secrets['a login']}"}
        for headers in (bearer, cookie, {}):
            with httpx.Client(base_url=self.service.url, headers=headers, timeout=30) as client:
                seeds = self.seeds if headers else ["/", "/login", "/readyz", "/nothing"]
                scanner.walk(client, seeds, follow=follow and headers is cookie)
        with httpx.Client(base_url=self.service.url, headers=bearer, timeout=30) as client:
            scanner.look("event stream", client.get(f"/jobs/{self.job_id}/events", headers=stream).content)
        scanner.look_at_files(self.folder)
        return scanner


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Ran]:
    """A full run: API and worker processes on PostgreSQL and a Redis that was away for a while."""
    folder = tmp_path_factory.mktemp("leaks")
    password = {name: f"{name}-{secrets.token_hex(12)}" for name in ("database", "broker")}
    redis = servers.redis_program(folder)
    command = [*redis.command, "--requirepass", password["broker"]]
    with empty_postgres(postgres_url) as url, chat_server(chosen=echo) as models:
        base = Database(url)
        upgrade(base)
        with base.write() as session:
            made = [
                keys.make_key(session, FROM_THE_MACHINE, "somebody", scope, scope, None)
                for scope in ("admin", "submit")
            ]
            token = logins.log_in(session, keys.verify_key(session, made[0].text))
        given = {
            "the LLM key": LLM_KEY,
            "the policy's key": POLICY_KEY,
            "the database's password": password["database"],
            "the broker's password": password["broker"],
            "an admin key": made[0].text,
            "a user's key": made[1].text,
            "a login": token,
        }
        environment = {
            # PostgreSQL's `trust` takes any password
            "KERNELWRIGHT_DATABASE_URL": url.replace(
                "kernelwright@", f"kernelwright:{password['database']}@"
            ),
            "KERNELWRIGHT_BROKER_URL": redis.url.replace("//", f"//:{password['broker']}@"),
            "KERNELWRIGHT_LLM_BASE_URL": models.base_url,
            "KERNELWRIGHT_LLM_API_KEY": LLM_KEY,
            "KERNELWRIGHT_POLICY_API_KEY": POLICY_KEY,
            "KERNELWRIGHT_RATE_LIMIT": "1000000/second",
            "KERNELWRIGHT_LOG_FORMAT": "json",
            "SCRIPTED_SECONDS": "0",
        }
        with Service(folder / "api", "--no-worker", environment=environment) as service:
            service.client.headers["Authorization"] = f"Bearer {made[1].text}"
            with (folder / "worker.log").open("ab") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "tests.services.scripted_service", "worker", "--log-level", "DEBUG"],
                    cwd=ROOT, env=service.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            try:
                job_id = service.submit(
                    **job_request()
                )  # before there is a broker: the worker takes it nevertheless
                service.wait_for(job_id, 60)
                with servers.running(command, redis.log, redis.answers):
                    wait_until(lambda: "ready" in service.get("/readyz").text, 30, service.log_tail)
                    body = {**job_request(), "candidate": proposal("good", 9)}
                    body = {name: body[name] for name in ("source", "candidate")}
                    judged = service.post("/evaluate", body, headers={"Prefer": "wait=30"}).json()
                assert service.job(job_id)["state"] == "succeeded", service.job(job_id)
                with base.read() as session:
                    candidate = session.query(Candidate).filter_by(job_id=job_id).first()
                    assert candidate is not None
                    ids = {"job_id": job_id, "candidate_id": candidate.id, "evaluation_id": judged["id"]}
                keyed = Keyed(tmp_path_factory.mktemp("routes"))
                routes = [path for method, path in routes_of(keyed.app) if method == "GET"]
                keyed.close()
                yield Ran(service, folder, given, list(addresses(routes, ids)), job_id)
            finally:
                worker.terminate()
                worker.wait(timeout=30)
                base.close()
        assert all(LLM_KEY in one for one in models.authorizations), "the endpoint did get the key"


@pytest.mark.services("postgres", "redis")
def test_no_secret_is_shown_sent_or_written_and_a_planted_one_is_found(ran: Ran) -> None:
    clean = ran.scan()
    assert clean.found == {}
    seen = "\n".join(clean.looked_at)
    for place in ("GET /audit", "GET /ui/keys", "GET /metrics", "GET /ui/workers", "GET /login", "event stream",
                  f"GET /ui/jobs/{ran.job_id}/tables/", "/optimized.py", "/report.html", "/evidence.json", f"GET /jobs/{ran.job_id}/bundle!",
                  "file worker.log", "file api/serve.log"):  # fmt: skip
        assert place in seen, f"{place} was not looked at"
    assert "***" in (ran.folder / "worker.log").read_text() or "***" in json.dumps(
        ran.service.get(f"/jobs/{ran.job_id}/candidates").json()
    ), "the endpoint's echo was masked"

    # a job's name is shown in pages and told in events: there a secret must be found
    planted = ran.service.submit(**{**job_request(), "name": ran.secrets["the database's password"]})
    ran.service.post(f"/jobs/{planted}/cancel")
    (ran.folder / "other.log").write_text("redis://:" + ran.secrets["the broker's password"] + "@host")
    ran.seeds[:] = ["/", "/jobs", f"/jobs/{planted}/events"]
    leaky = ran.scan(follow=False)
    (ran.folder / "other.log").unlink()
    assert {"GET /", "GET /jobs", f"GET /jobs/{planted}/events"} <= leaky.found["the database's password"]
    assert leaky.found["the broker's password"] == {"file other.log"}
    assert set(leaky.found) == {"the database's password", "the broker's password"}


def test_a_secret_is_found_in_a_bundle_and_however_it_is_written() -> None:
    secret = 'pass/word+"quoted" ' + os.urandom(4).hex()
    for form in forms_of(secret):
        scanner = Scanner({"it": secret})
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("report.html", b"x" * 50 + form + b"x" * 50)
        scanner.look("bundle", packed.getvalue())
        assert scanner.found == {"it": {"bundle!report.html"}}, form
    scanner = Scanner({"it": secret})
    scanner.look("page", b"nothing of it")
    assert scanner.found == {}
