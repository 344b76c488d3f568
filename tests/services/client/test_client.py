"""The typed client against a real service, over networks that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.client import (
    BudgetRequest,
    CandidateRequest,
    Client,
    Conflict,
    EvaluateRequest,
    Invalid,
    NotFound,
    OptimizeRequest,
    Problem,
    TooMany,
    Unauthorized,
    UnexpectedAnswer,
    Unreachable,
    UnsafeAddress,
    WaitedTooLong,
    sending,
)
from services.client import client as client_module
from services.db.models import Bundle
from services.db.session import Database
from tests.services.client.network import answering, relay
from tests.services.service import TINY_TASK, UNPARSABLE, WRONG, Service

JOB = OptimizeRequest(source=TINY_TASK, name="tiny", budget=BudgetRequest(seconds=30))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a worker: what is submitted stays queued."""
    with Service(tmp_path_factory.mktemp("idle"), "--no-worker") as running:
        yield running


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sending.KEY_VARIABLE, raising=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries of a few milliseconds."""
    monkeypatch.setattr(sending, "_FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(sending, "_LONGEST_PAUSE_S", 0.05)


def port_of(service: Service) -> int:
    return int(service.url.rpartition(":")[2])


def test_a_job_is_submitted_listed_watched_and_cancelled(idle: Service) -> None:
    with Client(idle.url) as client:
        made = client.submit(JOB)
        assert (made.name, made.state, made.spend.seconds_cap) == ("tiny", "queued", 30.0)
        assert made.id in [job.id for job in client.jobs(limit=5)]
        assert client.cancel(made.id).state == client.cancel(made.id).state == "cancelled"
        assert client.wait(made.id).reason == "cancelled before it started"
        assert [event.name for event in client.watch(made.id)] == ["job.queued", "job.cancelled"]
        assert list(client.candidates(made.id)) == []


def test_jobs_are_listed_over_pages(idle: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PAGE", 2)
    with Client(idle.url) as client:
        made = [client.submit(JOB).id for _ in range(5)]
        assert [job.id for job in client.jobs(limit=5)] == made[::-1]
        assert [job.id for job in client.jobs()][:5] == made[::-1]
        assert len(list(client.jobs(limit=3))) == 3


def test_candidates_are_listed_over_pages(idle: Service) -> None:
    with Client(idle.url) as client:
        job_id = client.submit(JOB).id
        client.add_candidate(job_id, CandidateRequest(candidate="class ModelNew: pass", label="mine"))
        (mine,) = client.candidates(job_id)
    assert (mine.label, mine.origin, mine.state) == ("mine", "external", "pending")

    def page(first: int, last: int, *, more: bool) -> bytes:
        rows = [mine.model_copy(update={"id": f"{job_id}.{number}"}) for number in range(first, last + 1)]
        shown = [row.model_dump(mode="json") for row in rows]
        whole = {"data": shown, "has_more": more, "first_id": rows[0].id, "last_id": rows[-1].id}
        return json.dumps(whole).encode()

    pages = (page(1, 2, more=True), page(3, 4, more=True), page(5, 5, more=False))
    with answering(*((200, {}, one) for one in pages)) as (url, got), Client(url) as client:
        assert [one.id[-1] for one in client.candidates(job_id)] == ["1", "2", "3", "4", "5"]
        assert [request.partition("?")[2] for request, _ in got] == [
            "limit=100", f"limit=100&after={job_id}.2", f"limit=100&after={job_id}.4"
        ]  # fmt: skip


@pytest.mark.usefixtures("impatient")
def test_a_stream_that_breaks_off_goes_on_without_gap_or_repetition(idle: Service) -> None:
    with Client(idle.url) as client:
        job_id = client.submit(JOB).id
        client.cancel(job_id)
        whole = list(client.watch(job_id))
    raw = idle.get(f"/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}).content
    behind_first = raw.index(b"\n\n", raw.index(b"data:")) + 2
    head = 400  # more than the headers of an answer, which count as well
    # nothing at all, within the headers, within the first event, within the second
    with relay(port_of(idle), 0, 40, head, head + behind_first) as broken, Client(broken.url) as client:
        assert list(client.watch(job_id)) == whole
        assert broken.connections >= 5


@pytest.mark.usefixtures("impatient")
def test_a_service_that_stays_away_is_given_up(idle: Service) -> None:
    with Client(idle.url) as client:
        job_id = client.submit(JOB).id
    with relay(port_of(idle), *[0] * 50) as dead, Client(dead.url) as client:
        with pytest.raises(Unreachable, match="no service answers"):
            list(client.watch(job_id, tries=3))
        assert dead.connections == 3


@pytest.mark.usefixtures("impatient")
def test_a_repeated_submission_makes_one_job(idle: Service) -> None:
    with Client(idle.url) as client:
        before = len(list(client.jobs()))
        with relay(port_of(idle), 30, 0) as broken, Client(broken.url) as through:
            made = through.submit(JOB)
        assert broken.connections == 3, "the job was made at the first, and its answer lost"
        after = list(client.jobs())
    assert len(after) == before + 1
    assert after[0].id == made.id


@pytest.mark.usefixtures("impatient")
def test_what_may_not_happen_twice_is_sent_once(idle: Service) -> None:
    with Client(idle.url) as client:
        job_id = client.submit(JOB).id
    with relay(port_of(idle), 0) as broken, Client(broken.url) as client:
        with pytest.raises(Unreachable):
            client.add_candidate(job_id, CandidateRequest(candidate="class ModelNew: pass"))
        assert broken.connections == 1


def test_a_bundle_appears_whole_or_not_at_all(idle: Service, tmp_path: Path, impatient: None) -> None:
    content = bytes(range(256)) * 4000
    with Client(idle.url) as client:
        job_id = client.submit(JOB).id
        with pytest.raises(Conflict, match="made at its end"):
            client.fetch(job_id, tmp_path)
        base = Database(f"sqlite:///{idle.data_dir / 'kernelwright.db'}")
        with base.write() as session:
            session.add(Bundle(job_id=job_id, file_name="tiny.zip", content=content))
        told: list[tuple[int, int | None]] = []
        path = client.fetch(job_id, tmp_path, lambda done, total: told.append((done, total)))
    assert path == tmp_path / f"kernelwright-{job_id}.zip"
    assert path.read_bytes() == content
    assert told[-1] == (len(content), len(content))
    with relay(port_of(idle), 200_000, 300_000) as broken, Client(broken.url) as client:
        client.fetch(job_id, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == content
    with relay(port_of(idle), *[200_000] * 9) as broken, Client(broken.url) as client:
        with pytest.raises(Unreachable):
            client.fetch(job_id, tmp_path / "never.zip")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.zip", path.name]


def test_refusals_are_exceptions_of_their_own(idle: Service) -> None:
    with Client(idle.url) as client:
        with pytest.raises(NotFound) as missing:
            client.job("0" * 26)
        assert (missing.value.status, missing.value.type) == (404, "/problems/not-found")
        with pytest.raises(Invalid) as invalid:
            client.submit(OptimizeRequest(task="no_such_task"))
        assert [error.field for error in invalid.value.errors] == ["task"]
        assert "task: " in str(invalid.value)
        client.submit(JOB, idempotency_key="mine")
        with pytest.raises(Conflict):
            client.submit(OptimizeRequest(source=TINY_TASK), idempotency_key="mine")


@pytest.mark.parametrize("job_id", ["../readyz", "..", "", "a/b", "a?b", "a b", "a\nb"])
def test_an_id_leads_nowhere_else(job_id: str) -> None:
    with Client() as client, pytest.raises(ValueError, match="is no id"):
        client.job(job_id)


def test_a_verdict_is_waited_for(recorded: Service) -> None:
    with Client(recorded.url) as client:
        asked = EvaluateRequest(source=TINY_TASK, candidate=WRONG)
        found = client.evaluate(asked, seconds=120)
    assert found.state == "succeeded"
    assert found.verdict == (found.result or {})["verdict"] == "incorrect"


def test_waiting_ends_when_it_should(idle: Service) -> None:
    with Client(idle.url) as client:
        with pytest.raises(WaitedTooLong, match="still queued") as told:
            client.evaluate(EvaluateRequest(source=TINY_TASK, candidate=UNPARSABLE), seconds=1.2)
        assert client.cancel_evaluation(told.value.waited_for).state == "cancelled"
        assert client.evaluation(told.value.waited_for).state == "cancelled"
        job_id = client.submit(JOB).id
        with pytest.raises(WaitedTooLong, match="still queued"):
            client.wait(job_id, seconds=0)


@pytest.mark.parametrize(
    "url",
    [
        "http://kernels.example.org",
        "http://10.0.0.1:8000",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "HTTP://EXAMPLE.ORG",
        "http://127.0.0.1@example.org",
        "ftp://127.0.0.1",
        "127.0.0.1:8000",
    ],
)
def test_a_key_does_not_travel_in_the_clear(url: str) -> None:
    with pytest.raises(UnsafeAddress):
        Client(url, "kw_secret_value")


@pytest.mark.parametrize(
    "url", ["https://example.org", "http://localhost:1", "http://[::1]:1", "http://127.8.9.1:1"]
)
def test_a_key_may_go_where_nobody_reads_it(url: str) -> None:
    with Client(url, "kw_secret_value") as client:
        assert "kw_secret" not in repr(client)
    Client("http://10.0.0.1", "kw_secret_value", allow_insecure_key=True).close()
    Client("http://10.0.0.1").close()


def test_a_key_is_no_way_to_write_headers() -> None:
    with pytest.raises(UnsafeAddress, match="no key has"):
        Client("https://example.org", "kw_x\r\nX-Admin: yes")


def test_the_key_of_the_environment_is_sent_to_the_service_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sending.KEY_VARIABLE, "kw_from_environment")
    with (
        answering((200, {}, b"{}")) as (other_url, other),
        answering((307, {"Location": f"{other_url}/jobs/1"}, b"")) as (url, got),
    ):
        monkeypatch.setenv("HTTP_PROXY", other_url)
        with Client(url) as client, pytest.raises(Problem, match="307"):
            client.job("1")
        with Client(url, "kw_given") as client, pytest.raises(Problem):
            client.job("1")
    assert [headers["authorization"] for _, headers in got] == [
        "Bearer kw_from_environment",
        "Bearer kw_given",
    ]
    assert other == [], "neither a redirect nor a proxy gets the key"


@pytest.mark.usefixtures("impatient")
def test_a_busy_service_is_asked_again_when_it_says() -> None:
    busy = (429, {"Retry-After": "0"}, b'{"detail": "slowly"}')
    page = b'{"data": [], "has_more": false, "first_id": null, "last_id": null}'
    with answering(busy, (503, {}, b"<html>"), (200, {}, page)) as (url, got), Client(url) as client:
        assert list(client.jobs()) == []
        assert len(got) == 3
    raced = (409, {"Retry-After": "0"}, b"{}")
    with answering(raced, (200, {}, page)) as (url, got), Client(url) as client:
        assert list(client.jobs()) == []
    for refusal in ((409, {}, b"{}"), (429, {"Retry-After": "3600"}, b"{}")):
        with answering(refusal) as (url, got), Client(url) as client:
            with pytest.raises(Problem):
                list(client.jobs())
            assert len(got) == 1
    with answering(busy) as (url, got), Client(url) as client:
        with pytest.raises(TooMany, match="slowly") as found:
            client.add_candidate("1", CandidateRequest(candidate="x"))
        assert found.value.retry_after_s == 0
        assert len(got) == 1


def test_a_wrong_key_is_told_at_once() -> None:
    refusal = (
        b'{"type": "/problems/unauthorized", "detail": "this key has expired\\u001b[31m", "errors": "none"}'
    )
    with answering((401, {}, refusal)) as (url, got), Client(url) as client:
        with pytest.raises(Unauthorized, match="expired") as found:
            list(client.watch("1"))
        assert "\x1b" not in str(found.value), "a terminal would obey it"
        assert len(got) == 1


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b'{"id": 1}', b"[]"])
def test_something_else_that_listens_there_is_noticed(body: bytes) -> None:
    with answering((200, {}, body)) as (url, _), Client(url) as client:
        with pytest.raises(UnexpectedAnswer):
            client.job("1")
        with pytest.raises(UnexpectedAnswer):
            list(client.watch("1"))
