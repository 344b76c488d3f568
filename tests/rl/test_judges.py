"""Judges by themselves: what a service is asked when nobody waits any more, addresses that are none, a device that is not there."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.errors import EvaluatorError, SandboxUnavailable
from evaluator.sources import TaskSource
from rl import judges
from rl.config import FleetPart
from rl.errors import ConfigError
from rl.judges import ServiceJudge, Unjudged, check_address, machine_of
from services.client import Unreachable
from services.client import client as client_module
from services.client.sending import KEY_VARIABLE
from tests.servers import serving

TASK = TaskSource("t", "class Model: ...\n")
LONG = "class ModelNew: 'takes long'\n"
SHORT = "class ModelNew: 'is judged at once'\n"


class Deaf:
    """A service that has no verdict on `LONG`: it says so at once, or holds the request until `let_go` (with `first_free` not the first one).

    Attributes:
        asked: how often each evaluation was asked for, or about.
        keys: of requests for evaluations.
        stopped: ids of evaluations that it was asked to stop, in order.
    """

    def __init__(self, *, holds: bool, first_free: bool = False) -> None:
        self.holds = holds
        self.first_free = first_free
        self.stopped: list[str] = []
        self.let_go = threading.Event()
        self.asked: Counter[str] = Counter()
        self.keys: list[str | None] = []
        self.url = ""


@contextmanager
def deaf(*, holds: bool, first_free: bool = False) -> Iterator[Deaf]:
    """Such a service, over HTTP."""
    known = Deaf(holds=holds, first_free=first_free)

    class Handler(BaseHTTPRequestHandler):
        """Answers on evaluations."""

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            if self.path.endswith("/cancel"):
                name = self.path.split("/")[2]
                known.stopped.append(name)
                self._answer(name)
                return
            body = json.loads(sent)
            first = not known.keys
            known.keys.append(self.headers["idempotency-key"])
            name = "long" if body["candidate"] == LONG else "short"
            if name == "long" and known.holds and not (first and known.first_free):
                known.asked[name] += 1
                known.let_go.wait(20)
            self._answer(name)

        def do_GET(self) -> None:
            self._answer(self.path.rpartition("/")[2])

        def _answer(self, name: str) -> None:
            known.asked[name] += 1
            ended = name == "short"
            view = {
                "id": name,
                "state": "succeeded" if ended else "running",
                "attempt": 1,
                "verdict": "accepted" if ended else None,
                "reason": None,
                "device": "cpu",
                "effort": "screen",
                "result": {"verdict": "accepted"} if ended else None,
                "created_at": "2026-01-01T00:00:00Z",
                "started_at": None,
                "finished_at": None,
                "task": {"name": "t", "sha256": "0" * 64, "catalog": False},
                "candidate": {"sha256": "1" * 64},
                "urls": {"self": f"/evaluations/{name}"},
            }
            sent = json.dumps(view).encode()
            try:
                self.send_response(202)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
            except OSError:
                pass  # who asked is gone

        def log_message(self, *_: Any) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as known.url:
        yield known
        known.let_go.set()


def settings(**more: Any) -> FleetPart:
    return FleetPart(device="cpu", **{"deadline_s": 60, "patience_s": 60, **more})


async def given_up(judge: ServiceJudge, after_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await judge.judge(TASK, LONG)


async def given_up_and_another(judge: ServiceJudge, after_s: float) -> Any:
    await given_up(judge, after_s)
    async with asyncio.timeout(10):
        return await judge.judge(TASK, SHORT)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges look and ask again sooner than in service."""
    monkeypatch.setattr(judges, "_PAUSE_S", 0.02)
    monkeypatch.setattr(client_module, "_POLL_S", 0.02)


@pytest.mark.parametrize(
    "result", [{"verdict": "splendid"}, {}, {"verdict": "accepted", "findings": ["text"]}]
)
def test_what_is_no_verdict_is_no_answer(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    judge = ServiceJudge("http://127.0.0.1:9", settings(width=1))
    answered = SimpleNamespace(state="succeeded", reason="", result=result)
    monkeypatch.setattr(judge, "_verdict", lambda *_: answered)
    with pytest.raises(Unjudged, match="no verdict") as told:
        asyncio.run(judge.judge(TASK, SHORT))
    assert not told.value.again
    judge.close()


def test_whoever_is_asked_next_does_not_wait_for_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_LEAVE_S", 0.3)
    with deaf(holds=True) as service:
        judge = ServiceJudge(service.url, settings(width=1))

        assert asyncio.run(given_up_and_another(judge, 0.5)).verdict == "accepted"
        # else nothing was under way that could have been waited for
        assert service.asked["long"] == 1
        judge.close()


def test_a_service_is_asked_no_more_about_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_LOOK_S", 0.1)
    monkeypatch.setattr(judges, "_FIRST_LOOK_S", 0.1)
    with deaf(holds=False) as service:
        judge = ServiceJudge(service.url, settings(width=1))
        asyncio.run(given_up(judge, 1.0))
        assert len(service.keys) > 1
        assert len(set(service.keys)) == 1  # one evaluation, however often it was asked for
        time.sleep(0.5)
        before = service.asked["long"]
        time.sleep(0.5)
        assert service.asked["long"] == before
        judge.close()


def test_a_service_is_told_at_once_to_stop_what_was_given_up() -> None:
    with deaf(holds=True, first_free=True) as service:
        judge = ServiceJudge(service.url, settings(width=1))

        assert asyncio.run(given_up_and_another(judge, 1.5)).verdict == "accepted"
        judge.close()
        # While the request for it is still held, and of what was judged nothing is stopped.
        assert service.stopped == ["long"]
        assert not service.let_go.is_set()
        service.let_go.set()


def test_what_was_given_up_before_its_id_was_known_is_stopped_as_well() -> None:
    with deaf(holds=True) as service:
        judge = ServiceJudge(service.url, settings(width=1))
        asyncio.run(given_up(judge, 0.3))
        assert service.stopped == []
        threading.Timer(0.5, service.let_go.set).start()
        judge.close()  # waits for the answer that tells the id
        assert service.stopped == ["long"]


def test_the_end_does_not_wait_for_ever_for_a_service_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_LEAVE_S", 0.3)
    with deaf(holds=True) as service:
        judge = ServiceJudge(service.url, settings(width=1))
        asyncio.run(given_up(judge, 0.3))
        began_s = time.monotonic()
        judge.close()
        assert time.monotonic() - began_s < 5
        assert service.stopped == []


def test_who_asks_again_after_a_fault_of_the_network_asks_for_the_same_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with deaf(holds=False) as service:
        judge = ServiceJudge(service.url, settings(width=1))
        real = judge._client.evaluate

        def broken(*given: Any, **more: Any) -> Any:
            real(*given, **more)
            raise Unreachable("it was away when it answered")

        monkeypatch.setattr(judge._client, "evaluate", broken)
        with pytest.raises(Unjudged) as told:
            asyncio.run(judge.judge(TASK, SHORT))
        assert told.value.again
        monkeypatch.setattr(judge._client, "evaluate", real)
        assert asyncio.run(judge.judge(TASK, SHORT)).verdict == "accepted"
        assert len(service.keys) == 2
        assert len(set(service.keys)) == 1
        # Nor is what has been answered taken for another measurement.
        assert asyncio.run(judge.judge(TASK, SHORT)).verdict == "accepted"
        assert len(set(service.keys)) == 2
        judge.close()


def test_a_verdict_that_does_not_come_in_time_is_late() -> None:
    with deaf(holds=False) as service:
        judge = ServiceJudge(service.url, settings(deadline_s=5).model_copy(update={"patience_s": 1.5}))
        with pytest.raises(Unjudged, match=r"no verdict within 1\.5 s") as told:
            asyncio.run(judge.judge(TASK, LONG))
        assert told.value.late
        assert not told.value.again
        assert service.stopped == ["long"]
        judge.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://me@x", "http://[::1"])
def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    named = settings().model_copy(update={"url": url})  # which the config itself refuses
    for ask in (lambda: ServiceJudge(url, named), lambda: check_address(named)):
        with pytest.raises(ConfigError, match=r"^`fleet\.url` ") as told:
            ask()
        assert "\n" not in str(told.value)


def test_a_key_that_would_travel_in_the_clear_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-key")
    with pytest.raises(ConfigError, match="unencrypted") as told:
        check_address(settings(url="http://kernels.example.org"))
    assert "a-key" not in str(told.value)
    check_address(settings(url="http://127.0.0.1:9"))  # and asks nothing
    check_address(settings())


def test_a_machine_without_the_device_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise EvaluatorError(f"no usable {name} here")

    monkeypatch.setattr(judges, "open_device", nothing)
    with pytest.raises(
        Unjudged, match=r"nothing here can judge: no usable cuda here; .*`fleet\.url`"
    ) as told:
        machine_of(FleetPart())
    assert told.value.gone
    assert not told.value.again
    # Who needs no device here is not asked for one.
    assert machine_of(FleetPart(machine="NVIDIA H200")) == "NVIDIA H200"
    assert machine_of(FleetPart(url="http://127.0.0.1:9")) is None


class _Recording:
    """In a referee's place: which tasks it was given, in order, and the shapes.

    Attributes:
        holds: a candidate that is judged only after `let_go`.
    """

    alive = True
    holds: str | None = None
    let_go = threading.Event()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tasks: list[str] = []
        self.shapes: list[Any] = []

    def describe(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(
            ok=True,
            shapes={
                split: [{"n": n} for n in range(5)] for split in ("visible", "adversarial", "validation")
            },
        )

    def evaluate(self, task: TaskSource, candidate: Any, *, shapes: Any, **_: Any) -> str:
        self.tasks.append(task.name)
        self.shapes.append(shapes)
        if candidate.source == self.holds:
            assert self.let_go.wait(20)
        return "verdict"

    def kill(self) -> None:
        """Nothing runs."""

    close = kill


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """`_Recording` in a referee's place, which judges `LONG` only after this is set."""
    let_go = threading.Event()
    monkeypatch.setattr(judges, "Referee", _Recording)
    monkeypatch.setattr(_Recording, "holds", LONG)
    monkeypatch.setattr(_Recording, "let_go", let_go)
    yield let_go
    let_go.set()


def test_referees_of_this_machine_keep_to_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three referees share four tasks of four candidates, then many of one task."""
    monkeypatch.setattr(judges, "Referee", _Recording)
    judge = judges.LocalJudge(FleetPart(device="cpu", local_referees=3, width=24))
    referees: Any = list(judge._threads)
    tasks = [TaskSource(name, f"# {name}\n") for name in "abcd"]

    async def ask(given: list[TaskSource]) -> None:
        await asyncio.gather(*(judge.judge(task, SHORT) for task in given))

    asyncio.run(ask([task for task in tasks for _ in range(4)]))
    openings = sum(
        1 + sum(one != two for one, two in zip(r.tasks, r.tasks[1:], strict=False)) for r in referees
    )
    assert sum(len(one.tasks) for one in referees) == 16
    assert openings == 4
    before = [len(one.tasks) for one in referees]
    asyncio.run(ask(tasks[:1] * 12))
    assert all(len(one.tasks) > count for one, count in zip(referees, before, strict=True))
    judge.close()


def test_a_first_look_is_at_few_shapes_and_a_second_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "Referee", _Recording)
    monkeypatch.setattr(judges, "_SAME_LOOK", 4)
    judge = judges.LocalJudge(FleetPart(device="cpu", first_look={"visible": 2, "adversarial": 1}))
    (referee,) = list[Any](judge._threads)
    for _ in range(40):
        asyncio.run(judge.judge(TASK, SHORT))
    asyncio.run(judge.judge(TASK, SHORT, whole=True))
    judge.close()
    *first, second = referee.shapes
    assert second is None
    assert all(one["visible"] == [{"n": 0}, {"n": 1}] and len(one["adversarial"]) == 1 for one in first)
    others = [one["adversarial"][0]["n"] for one in first]
    assert len({*others}) > 1  # a policy cannot learn which
    assert all(len({*others[at : at + 4]}) == 1 for at in range(0, 40, 4))


async def _judged_by(*referees: _Recording) -> None:
    """Returns once each of them judges a candidate."""
    async with asyncio.timeout(20):
        while not all(one.tasks for one in referees):
            await asyncio.sleep(0.001)


def test_a_candidate_that_no_longer_waits_holds_no_referee(held: threading.Event) -> None:
    """Whether it is given up before it has a referee or in the moment in which it gets one."""
    judge = judges.LocalJudge(FleetPart(device="cpu", width=4))
    (referee,) = list[Any](judge._threads)
    tasks = [TaskSource(name, name) for name in "abcd"]

    async def ask() -> None:
        given = zip(tasks, (LONG, SHORT, SHORT, SHORT), strict=True)
        asked = [asyncio.create_task(judge.judge(*one)) for one in given]
        await _judged_by(referee)
        asked[1].cancel()
        await asyncio.sleep(0)
        held.set()
        while judge._waiting[0].task != tasks[3].sha256:  # until the third has been given the referee
            await asyncio.sleep(0)
        asked[2].cancel()
        assert await asyncio.wait_for(asked[3], 20) == "verdict"
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(ask())
    judge.close()
    assert referee.tasks in (["a", "d"], ["a", "c", "d"])


def test_what_waits_long_goes_to_any_free_referee(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three candidates are too few to open their task a second time, but the first takes long."""
    monkeypatch.setattr(judges, "_LONG_WAIT_S", 0.1)
    judge = judges.LocalJudge(FleetPart(device="cpu", local_referees=2, width=4))
    first, second = list[Any](judge._threads)

    async def ask() -> None:
        slow = asyncio.create_task(judge.judge(TASK, LONG))
        await _judged_by(first)
        async with asyncio.timeout(20):
            await asyncio.gather(*(judge.judge(TASK, SHORT) for _ in range(2)))
        held.set()
        await slow

    asyncio.run(ask())
    judge.close()
    assert [len(first.tasks), len(second.tasks)] == [1, 2]


def test_a_referee_that_ends_after_its_loop_serves_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step was given up while it judged; the next one runs in another event loop."""
    monkeypatch.setattr(judges, "Referee", _Recording)
    monkeypatch.setattr(
        _Recording, "evaluate", lambda *_, **__: time.sleep(0.3) or "verdict"
    )  # goes on after `kill`
    judge = judges.LocalJudge(FleetPart(device="cpu"))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(judge.judge(TASK, SHORT), 0.05)

    asyncio.run(give_up())
    assert asyncio.run(asyncio.wait_for(judge.judge(TASK, SHORT), 5)) == "verdict"
    judge.close()


def test_a_candidate_whose_loop_has_ended_holds_up_no_other(held: threading.Event) -> None:
    judge = judges.LocalJudge(FleetPart(device="cpu"))
    loop = asyncio.new_event_loop()
    judge._waiting.append(judges._Turn(TASK.sha256, loop.create_future()))
    loop.close()
    assert asyncio.run(asyncio.wait_for(judge.judge(TASK, SHORT), 10)) == "verdict"
    judge.close()


def test_a_closed_judge_says_so_to_those_that_wait(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Recording, "kill", lambda _: held.set())
    judge = judges.LocalJudge(FleetPart(device="cpu", width=3))
    (referee,) = list[Any](judge._threads)

    async def ask() -> list[Any]:
        asked = [asyncio.create_task(judge.judge(TASK, LONG)) for _ in range(3)]
        await _judged_by(referee)
        await asyncio.to_thread(judge.close)
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    first, *others = asyncio.run(ask())
    assert first == "verdict"
    assert [isinstance(one, Unjudged) for one in others] == [True, True]


def test_referees_start_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    all_start = threading.Barrier(3)

    class Starting(_Recording):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            all_start.wait(20)

    monkeypatch.setattr(judges, "Referee", Starting)
    judge = judges.LocalJudge(FleetPart(device="cpu", local_referees=3, width=3))
    assert len(judge._free) == 3
    judge.close()


def test_where_one_referee_does_not_start_all_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    count = itertools.count()

    class Failing(_Recording):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            if next(count) == 1:
                raise SandboxUnavailable("planted")

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(judges, "Referee", Failing)
    with pytest.raises(SandboxUnavailable, match="planted"):
        judges.LocalJudge(FleetPart(device="cpu", local_referees=3, width=3))
    assert len(closed) == 2
