"""Whose turn it is: however much one user queues, another's one row gets the next slot; and no row is given out twice."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from services.db.ids import new_id
from services.db.models import Evaluation, Job, Turn, Usage, User, utc_now
from services.db.session import Database
from services.jobs import lease, turns
from services.jobs.lease import Lease
from services.jobs.requests import MOST_PRIORITY, OWN_PRIORITY, TaskRequest
from services.jobs.submit import make_look
from services.settings import Settings
from services.worker.slots import SLOTS, Slots
from tests.services.databases import BOTH_DATABASES, fresh_database, new_sqlite
from tests.services.keyed import Keyed
from tests.services.service import TINY_TASK, UNPARSABLE, WRONG, Service, wait_until

ATTEMPTS = 3
_NUMBERS = itertools.count()
NO_TASK = "x = 1\n"  # judged at once


@pytest.fixture(params=BOTH_DATABASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh_database(request.param, tmp_path, request) as found:
        yield found


def queue(base: Database, owner: str | None, count: int = 1, **columns: Any) -> list[str]:
    """Evaluations of a user that wait, oldest first."""
    made = []
    with base.write() as session:
        for _ in range(count):
            made.append(f"{next(_NUMBERS):026d}")
            row = {
                "id": made[-1], "owner_id": owner, "device": "cpu", "effort": "screen", "task_name": "t",
                "task_sha256": "s", "task_source": TINY_TASK, "candidate_sha256": "c", "candidate_source": UNPARSABLE,
                **columns,
            }  # fmt: skip
            session.add(Evaluation(**row))
    return made


def take(base: Database, worker: str = "one", device: str = "cpu", seconds: float = 60.0) -> Lease | None:
    return turns.take(base, Evaluation, device, worker, seconds, ATTEMPTS)


def served(base: Database, count: int, *, end: bool = False) -> list[str | None]:
    """Whose the next rows are; `end`: each ends before the next is taken, as on a single slot."""
    found = []
    for _ in range(count):
        held = take(base)
        if held is None:
            break
        with base.write() as session:
            row = lease.locked_row(session, held)
            found.append(row.owner_id)
            if end:
                row.state = "succeeded"
    return found


@pytest.mark.parametrize("end", [True, False], ids=["one slot", "many slots"])
def test_anothers_one_row_gets_the_next_slot_beside_two_hundred(base: Database, end: bool) -> None:
    queue(base, "ada", 200)
    assert served(base, 5, end=end) == ["ada"] * 5
    queue(base, "bob")
    assert served(base, 3, end=end) == ["bob", "ada", "ada"]


def test_users_take_turns_and_those_without_a_key_are_one_of_them(base: Database) -> None:
    for owner, count in (("ada", 20), ("bob", 3), (None, 3)):
        queue(base, owner, count)
    assert Counter(served(base, 9, end=True)) == {"ada": 3, "bob": 3, None: 3}
    assert served(base, 20, end=True) == ["ada"] * 17


def test_who_has_less_running_goes_first_although_served_later(base: Database) -> None:
    queue(base, "ada", 5)
    queue(base, "bob", 5)
    held = [take(base) for _ in range(4)]  # two of each
    with base.write() as session:
        ended = lease.locked_row(session, held[-1])  # type: ignore[arg-type]
        ended.state = "succeeded"
        last = ended.owner_id
    assert served(base, 1) == [last]


def test_a_priority_orders_ones_own_rows_and_gains_nothing_over_others(base: Database) -> None:
    usual, urgent_to_her = queue(base, "ada"), queue(base, "ada", priority=OWN_PRIORITY)
    low = queue(base, "ada", priority=-OWN_PRIORITY)
    queue(base, "bob", 4)
    taken = [take(base) for _ in range(6)]
    hers = [held.row_id for held in taken if held and held.row_id in usual + urgent_to_her + low]
    assert hers == urgent_to_her + usual + low
    with base.read() as session:
        owners = [session.get_one(Evaluation, held.row_id).owner_id for held in taken if held]
    assert set(owners[:2]) == set(owners[2:4]) == {"ada", "bob"}


def test_what_an_admin_hurries_goes_before_everybodys_turn(base: Database) -> None:
    queue(base, "bob")
    queue(base, "ada", 3)
    assert set(served(base, 2)) == {"ada", "bob"}, "ada has one running now, and bob none that waits"
    queue(base, "bob")
    first = queue(base, "ada", priority=MOST_PRIORITY)
    second = queue(base, "cleo", priority=OWN_PRIORITY + 1)
    held = [take(base), take(base)]
    assert [one.row_id for one in held if one] == first + second


def test_only_what_the_worker_can_judge_and_what_is_wanted_is_taken(base: Database) -> None:
    [cuda] = queue(base, "ada", device="cuda")
    queue(base, "ada", cancel_requested=True)
    queue(base, "ada", stalled_attempts=ATTEMPTS)
    assert take(base) is None
    held = take(base, device="cuda")
    assert held is not None
    assert held.row_id == cuda


def test_a_row_whose_worker_died_comes_first_and_counts_as_no_turn(base: Database) -> None:
    [lost] = queue(base, "ada")
    assert take(base, "dead", seconds=0.0) is not None
    queue(base, "bob", 2)
    time.sleep(0.05)
    held = take(base, "two")
    assert held is not None
    assert (held.row_id, held.attempt) == (lost, 2)
    for attempt in range(ATTEMPTS):  # it kills whoever takes it; others' rows must not wait for ever
        with base.write() as session:
            lease.expire_leases_of(session, ["two"])
        again = take(base, "two")
        assert again is not None
        assert (again.row_id == lost) == (attempt < ATTEMPTS - 2)


def test_who_may_run_no_more_is_passed_over(base: Database) -> None:
    with base.write() as session:
        session.add(User(id="ada", name="ada", quotas={"jobs_running": 1}))
        session.add(User(id="bob", name="bob", quotas={}))
    queue(base, "ada", 3)
    queue(base, "bob", 3)
    assert Counter(served(base, 10)) == {"ada": 1, "bob": 3}
    with base.read() as session:
        query = turns._owners_in_turn(Evaluation, "cpu")
        assert session.scalar(query, {"passed": ()}) is None, "or each look would try, and write"


def test_what_runs_on_another_device_costs_no_turn(base: Database) -> None:
    queue(base, "ada", 2, device="cuda")
    assert [take(base, device="cuda") is not None for _ in range(2)] == [True, True]
    queue(base, "bob", 2)
    assert served(base, 1) == ["bob"]
    queue(base, "ada")
    assert served(base, 1) == ["ada"], "bob has one running here, and ada none"


def test_of_many_slots_that_look_at_once_none_gets_anothers_row(base: Database) -> None:
    rows = queue(base, "ada", 16) + queue(base, None, 16) + queue(base, "bob", 8)
    got: list[str] = []

    def work(name: str) -> None:
        while (held := take(base, name)) is not None:
            got.append(held.row_id)

    threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(rows)


@pytest.mark.services("postgres")
def test_a_row_that_somebody_has_locked_is_passed_over(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database("postgres", tmp_path, request) as base:
        first, second = queue(base, None, 2)
        queue(base, "bob")
        with base.write() as session:
            session.get_one(Evaluation, first, with_for_update=True)
            held = take(base)
        assert held is not None
        assert held.row_id == second
        with base.write() as session:
            session.get_one(Evaluation, first, with_for_update=True)
            assert served(base, 2) == ["bob"], "a user whose rows are all locked ends no look"


def test_jobs_have_turns_of_their_own(base: Database) -> None:
    def job(owner: str) -> None:
        with base.write() as session:
            row = Job(
                id=new_id(), owner_id=owner, name="j", device="cpu", task_name="t", task_sha256="s", task_source="x",
                request={},
            )  # fmt: skip
            session.add(row)

    queue(base, "ada", 4)
    assert served(base, 3) == ["ada"] * 3
    for owner in ("ada", "ada", "bob"):
        job(owner)
    held = [turns.take(base, Job, "cpu", "one", 60.0, ATTEMPTS) for _ in range(3)]
    with base.read() as session:
        owners = [session.get_one(Job, one.row_id).owner_id for one in held if one]
    assert owners == ["ada", "bob", "ada"], "three evaluations that run cost ada no turn at jobs"


def test_a_greater_priority_takes_an_admins_key(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    try:
        user, admin = keyed.client(keyed.key("ada")), keyed.client(keyed.key("root", "admin"))
        for path, body in (("/optimize", {}), ("/evaluate", {"candidate": UNPARSABLE})):
            body = {"task": "softmax", **body}
            refused = user.post(path, json={**body, "priority": OWN_PRIORITY + 1})
            assert refused.status_code == 422
            assert [error["field"] for error in refused.json()["errors"]] == ["priority"]
            assert user.post(path, json={**body, "priority": MOST_PRIORITY + 1}).status_code == 422
            assert user.post(path, json={**body, "priority": OWN_PRIORITY}).json()["priority"] == OWN_PRIORITY
            assert (
                admin.post(path, json={**body, "priority": MOST_PRIORITY}).json()["priority"] == MOST_PRIORITY
            )
        made = user.post("/optimize", json={"task": "softmax", "priority": 3}).json()
        assert "priority 3" in user.get(f"/ui/jobs/{made['id']}").text
        external = {"candidate": UNPARSABLE}
        assert user.post(f"/jobs/{made['id']}/candidates", json=external).status_code == 202
        with keyed.base.uncommitted() as session:
            [row] = session.scalars(select(Evaluation).where(Evaluation.job_id == made["id"]))
            assert row.priority == 3, "a job's candidate is as urgent as the job"
            look = make_look(session, TaskRequest(task="softmax"), Settings(data_dir=tmp_path)).id
            assert session.get_one(Evaluation, look).priority == OWN_PRIORITY
    finally:
        keyed.base.close()


def test_a_slot_works_on_sleeps_till_it_is_woken_and_takes_nothing_while_its_worker_refuses() -> None:
    refusal: list[str | None] = ["the sandbox did not hold"]
    waiting, looked = [Evaluation] * 3, threading.Semaphore(0)
    stopping = threading.Event()

    def work(model: Any) -> bool:
        looked.release()
        if model is Job:
            raise RuntimeError("the database is gone")
        return bool(waiting) and waiting.pop() is not None

    slots = Slots(work, lambda: refusal[0], stopping)
    slots.start()
    try:
        slots.wake()
        assert not looked.acquire(timeout=0.3)
        assert len(waiting) == 3
        refusal[0] = None
        begin = time.monotonic()
        slots.wake()
        wait_until(lambda: not waiting, 4.0, lambda: f"{waiting} wait")
        assert time.monotonic() - begin < 4.0, "less than the time after which a slot looks by itself"
    finally:
        stopping.set()
        slots.stop(5.0)
    assert len(SLOTS) == 3
    assert not any(thread.is_alive() for thread in slots._threads)


@contextmanager
def two_users(base: Database) -> Iterator[None]:
    """Ada and Bob, and afterwards nothing of them."""
    with base.write() as session:
        session.add_all([User(id=name, name=name, quotas={}) for name in ("ada", "bob")])
    try:
        yield
    finally:
        with base.write() as session:
            session.execute(delete(Evaluation).where(Evaluation.owner_id.in_(("ada", "bob"))))
            for model, owner in ((Usage, Usage.user_id), (Turn, Turn.owner), (User, User.id)):
                session.execute(delete(model).where(owner.in_(("ada", "bob"))))


def rows_of(base: Database, owner: str, *states: str) -> list[Evaluation]:
    query = select(Evaluation).where(Evaluation.owner_id == owner)
    with base.read() as session:
        return list(session.scalars(query.where(Evaluation.state.in_(states)) if states else query))


def test_a_real_workers_next_slot_is_anothers_one(recorded: Service) -> None:
    service = recorded
    base = Database(f"sqlite:///{service.data_dir / 'kernelwright.db'}")
    with two_users(base):
        queue(base, "ada", 200, candidate_source=WRONG)
        wait_until(lambda: bool(rows_of(base, "ada", "succeeded")), 60, service.log_tail)
        [one] = queue(base, "bob", candidate_source=WRONG)
        came = utc_now()
        wait_until(lambda: bool(rows_of(base, "bob", "succeeded")), 60, service.log_tail)
        with base.write() as session:
            session.execute(update(Evaluation).where(Evaluation.state == "queued").values(state="cancelled"))
        wait_until(lambda: not rows_of(base, "ada", "running"), 60, service.log_tail)
        served_at = rows_of(base, "bob")[0].started_at
        assert served_at is not None
        between = [
            row for row in rows_of(base, "ada") if row.started_at and came < row.started_at < served_at
        ]
        assert len(between) <= len(SLOTS) - 1, f"{one}: more than those that had looked already"
    base.close()


@pytest.mark.slow
def test_turns_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    base = new_sqlite(tmp_path)
    service = Service(tmp_path / "data", environment={"KERNELWRIGHT_DATABASE_URL": str(base.engine.url)})
    try:
        with two_users(base):
            service.start()
            queue(base, "ada", 200, task_source=NO_TASK)
            wait_until(lambda: bool(rows_of(base, "ada", "succeeded")), 120, service.log_tail)
            service.kill()
            queue(base, "bob", task_source=NO_TASK)
            before = utc_now()
            service.start()
            wait_until(lambda: bool(rows_of(base, "bob", "succeeded")), 120, service.log_tail)
            assert service.stop() == 0
            served_at = rows_of(base, "bob")[0].started_at
            assert served_at is not None
            new = [
                row for row in rows_of(base, "ada") if row.started_at and before < row.started_at < served_at
            ]
            assert len(new) <= len(SLOTS) - 1, (
                "what the killed worker had in hand is gone on with, and no more"
            )
            assert not rows_of(base, "ada", "running", "failed")
            assert {row.attempt for row in rows_of(base, "ada", "succeeded")} <= {1, 2}
    finally:
        service.end()
        base.close()
