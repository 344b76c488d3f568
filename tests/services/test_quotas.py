"""Quotas: counted as things are made, held to at the door and at the worker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from agent.spec import Budget
from services.db.models import Evaluation, Job, Usage, User, utc_now
from services.db.session import Database
from services.db.upgrade import upgrade
from services.jobs import lease
from services.jobs.lease import Lease
from services.jobs.store import SqlJobStore
from services.users import keys, quotas
from services.users.audit import FROM_THE_MACHINE
from services.users.keys import NewKey
from tests.services.databases import empty_postgres
from tests.services.keyed import Keyed, evaluate, submit
from tests.services.service import CORRECT, TINY_TASK, WRONG, Service


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path, llm_base_url="http://127.0.0.1:1/v1", llm_prices={"m": (1.0, 1.0)})
    yield found
    found.close()


def use(base: Database, key: NewKey, **used: float) -> None:
    with base.write() as session:
        quotas.add_usage(session, key.user.id, **used)


def refusal(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 429, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return dict(answer.json())


def claimed(base: Database, job_id: str, model: Any = Job) -> Lease | None:
    with base.write() as session:
        return lease.claim(session, model, job_id, "one", 60.0, 3)


@pytest.mark.parametrize(
    ("quota", "used"),
    [
        ({"candidates_per_day": 5}, {"candidates": 5}),
        ({"candidates_per_month": 5}, {"candidates": 6}),
        ({"cpu_seconds_per_day": 10.0}, {"cpu_seconds": 10.0}),
        ({"cpu_seconds_per_month": 10.0}, {"cpu_seconds": 12.5}),
    ],
)
def test_a_job_for_which_nothing_is_left_is_refused_with_what_was_used(
    keyed: Keyed, quota: dict[str, float], used: dict[str, float]
) -> None:
    key = keyed.key("ada", **quota)
    client = keyed.client(key)
    assert submit(client).status_code == 202
    use(keyed.base, key, **used)
    (name, limit), (amount,) = next(iter(quota.items())), used.values()
    for ask in (submit, evaluate):
        answer = ask(client)
        told = refusal(answer)
        assert (told["quota"], told["limit"], told["used"]) == (name, limit, amount)
        resets_at = datetime.fromisoformat(told["resets_at"])
        assert resets_at > utc_now()
        assert (resets_at.hour, resets_at.minute) == (0, 0)
        assert resets_at.day == 1 or name.endswith("_per_day")
        assert 0 < int(answer.headers["Retry-After"]) <= 31 * 86400
    assert len(client.get("/jobs").json()["data"]) == 1
    assert submit(keyed.client(keyed.key("bob"))).status_code == 202, "another user's business"


def test_a_refused_submission_from_the_page_is_told_too(keyed: Keyed) -> None:
    key = keyed.key("ada", candidates_per_day=0)
    answer = keyed.client(key).post("/ui/submit", data={"kind": "task", "task": "softmax", "name": "kept"})
    assert answer.status_code == 429
    assert "0 of 0 candidates of this user were used today" in answer.text
    assert 'value="kept"' in answer.text, "the form as it was"


def test_dollars_limit_jobs_that_ask_models(keyed: Keyed) -> None:
    key = keyed.key("ada", usd_per_day=2.0)
    client = keyed.client(key)
    asks = {"origins": ["llm"], "models": ["m"]}
    assert submit(client, **asks).status_code == 202
    told = refusal(submit(client, **asks, budget={"usd": 2.5}))
    assert "more than the 2 that are left" in told["detail"]
    use(keyed.base, key, usd=1.5)
    assert refusal(submit(client, **asks, budget={"usd": 0.6}))["used"] == 1.5
    assert submit(client, **asks, budget={"usd": 0.5}).status_code == 202
    use(keyed.base, key, usd=0.5)
    assert refusal(submit(client, **asks))["quota"] == "usd_per_day"
    assert submit(client).status_code == 202, "no model is asked"
    unpriced = submit(client, origins=["llm"], models=["of unknown price"])
    assert unpriced.status_code == 422, "what costs nobody knows how much cannot be limited"


def test_a_budget_may_not_exceed_what_is_left(keyed: Keyed) -> None:
    key = keyed.key("ada", candidates_per_day=10, candidates_per_month=50)
    use(keyed.base, key, candidates=4)
    client = keyed.client(key)
    told = refusal(submit(client, budget={"candidates": 7}))
    assert (told["quota"], told["used"], told["limit"]) == ("candidates_per_day", 4, 10)
    assert submit(client, budget={"candidates": 6}).status_code == 202


def test_so_many_may_wait_and_so_many_run(keyed: Keyed) -> None:
    client = keyed.client(keyed.key("ada", jobs_queued=3, jobs_running=1))
    made = [submit(client).json()["id"] for _ in range(2)] + [evaluate(client).json()["id"]]
    told = refusal(submit(client))
    assert (told["quota"], told["used"], told["resets_at"]) == ("jobs_queued", 3, None)
    refusal(evaluate(client))
    assert claimed(keyed.base, made[0]) is not None
    assert claimed(keyed.base, made[1]) is None, "one runs already"
    with keyed.base.read() as session:
        assert not lease.any_claimable(session, Job, "cpu", 3)
    submit(keyed.client(keyed.key("bob")))
    with keyed.base.read() as session:
        assert lease.any_claimable(session, Job, "cpu", 3)
    assert submit(client).status_code == 202, "one fewer waits"
    client.post(f"/jobs/{made[0]}/cancel")
    with keyed.base.write() as session:
        session.get_one(Job, made[0]).state = "cancelled"
    assert claimed(keyed.base, made[1]) is not None
    assert claimed(keyed.base, made[2], Evaluation) is not None


def _asked_at_once(keyed: Keyed) -> None:
    key = keyed.key("ada", jobs_queued=3)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(keyed.client(key)).status_code, range(8)))
    assert sorted(answers) == [202] * 3 + [429] * 5


def test_asking_at_the_same_time_gains_nothing(keyed: Keyed) -> None:
    _asked_at_once(keyed)


@pytest.mark.services("postgres")
def test_asking_at_the_same_time_gains_nothing_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with empty_postgres(postgres_url) as url:
        keyed = Keyed(tmp_path, database_url=url)
        _asked_at_once(keyed)
        keyed.close()


def test_a_job_whose_worker_died_goes_on_although_its_user_has_no_room(keyed: Keyed) -> None:
    client = keyed.client(keyed.key("ada", jobs_running=1))
    job_id = submit(client).json()["id"]
    assert claimed(keyed.base, job_id) is not None
    with keyed.base.write() as session:
        lease.expire_leases_of(session, ["one"])
    assert claimed(keyed.base, job_id) is not None


def test_a_worker_gives_a_job_what_is_left_and_no_more(keyed: Keyed) -> None:
    key = keyed.key("ada", candidates_per_day=10, usd_per_month=3.0)
    job_id = submit(keyed.client(key)).json()["id"]
    use(keyed.base, key, candidates=4, usd=1.0)
    with keyed.base.write() as session:
        job = session.get_one(Job, job_id)
        job.usd = 0.25  # of an earlier attempt, and counted then
        found = [quotas.within(session, job, budget) for budget in (Budget(), Budget(usd=9.0, candidates=99))]
        assert found == [Budget(usd=2.25, candidates=6)] * 2
        small = Budget(usd=0.5, candidates=2, seconds=7.0)
        assert quotas.within(session, job, small) == small
        job.owner_id = None
        assert quotas.within(session, job, Budget()) == Budget()


def test_what_a_job_makes_is_counted_once_and_stops_it_when_nothing_is_left(keyed: Keyed) -> None:
    key = keyed.key("ada", candidates_per_day=2, usd_per_day=1.0)
    client = keyed.client(key)
    job_id = submit(client, origins=["llm"], models=["m"]).json()["id"]
    held = claimed(keyed.base, job_id)
    assert held is not None
    store = SqlJobStore(keyed.base, job_id, held, lambda: False)
    assert store.stop_requested() is None
    for _ in range(2):
        store.add_candidate(Candidate(CORRECT, "llm", "one"))
        store.event("budget.spent", {"request": "r", "usd": 0.25, "tokens": 5})
    with keyed.base.read() as session:
        row = session.get_one(Usage, (key.user.id, utc_now().date()))
        assert (row.candidates, row.usd) == (1, 0.25)
    assert store.stop_requested() is None
    store.add_candidate(Candidate(WRONG, "llm", "two"))
    assert store.stop_requested() == "budget", "what runs comes to its end, and nothing new begins"
    refusal(client.post(f"/jobs/{job_id}/candidates", json={"candidate": CORRECT + "# mine\n"}))


def test_days_and_months_end(keyed: Keyed) -> None:
    key = keyed.key("ada", usd_per_day=5.0, usd_per_month=50.0)
    now = datetime(2028, 2, 28, 23, 59, tzinfo=UTC)
    with keyed.base.write() as session:
        for days, usd in ((0, 1.0), (1, 2.0), (27, 4.0), (28, 8.0)):
            session.add(
                Usage(
                    user_id=key.user.id,
                    day=(now - timedelta(days=days)).date(),
                    candidates=0,
                    usd=usd,
                    gpu_seconds=0.0,
                    cpu_seconds=0.0,
                )
            )
    with keyed.base.read() as session:
        day, month = quotas.standing_of(session, key.user.id, now).spent
        assert (day.used, day.resets_at) == (1.0, datetime(2028, 2, 29, tzinfo=UTC))
        assert (month.used, month.resets_at) == (7.0, datetime(2028, 3, 1, tzinfo=UTC))
        later = quotas.standing_of(session, key.user.id, datetime(2028, 3, 1, tzinfo=UTC))
        assert [one.used for one in later.spent] == [0.0, 0.0]
        assert later.spent[1].resets_at == datetime(2028, 4, 1, tzinfo=UTC)


def test_seconds_count_for_the_device_on_which_they_were_used(keyed: Keyed) -> None:
    key = keyed.key("ada", gpu_seconds_per_day=1.0)
    use(keyed.base, key, gpu_seconds=2.0)
    assert submit(keyed.client(key)).status_code == 202, "on a CPU"
    with keyed.base.read() as session:
        standing = quotas.standing_of(session, key.user.id)
    assert standing.exhausted("cuda", pays=False) is not None
    assert standing.exhausted("cpu", pays=False) is None


@pytest.mark.services("postgres")
def test_postgresql_counts_and_holds_back_alike(postgres_url: str) -> None:
    base = Database(postgres_url)
    upgrade(base)
    with base.write() as session:
        made = keys.make_key(session, FROM_THE_MACHINE, f"ada-{utc_now():%H%M%S%f}", "k", "submit", None)
        made.user.quotas = {"jobs_running": 1, "usd_per_day": 1.0}
    user_id = made.user.id
    jobs = [f"{user_id[-20:]}-{number}" for number in range(2)]
    with base.write() as session:
        for job_id in jobs:
            job = Job(id=job_id, owner_id=user_id, name="n", device="cpu", task_name="t", task_sha256="x")
            job.task_source, job.request = "s", {}
            session.add(job)
    for _ in range(2):
        use(base, made, usd=0.5, candidates=1)
    with base.read() as session:
        row = session.get_one(Usage, (user_id, utc_now().date()))
        assert (row.usd, row.candidates) == (1.0, 2)
        gone = quotas.standing_of(session, user_id).exhausted("cpu", pays=True)
        assert gone is not None
        assert gone.quota == "usd_per_day"
    assert claimed(base, jobs[0]) is not None
    assert claimed(base, jobs[1]) is None
    with base.write() as session:
        session.get_one(User, user_id).quotas = {}
    assert claimed(base, jobs[1]) is not None
    with base.write() as session:
        for job_id in jobs:
            session.delete(session.get_one(Job, job_id))
    base.close()


@pytest.mark.slow
def test_a_worker_counts_the_seconds_of_its_bench(tmp_path: Path) -> None:
    with Service(tmp_path / "data") as running:
        base = Database(f"sqlite:///{running.data_dir / 'kernelwright.db'}")
        with base.write() as session:
            made = keys.make_key(session, FROM_THE_MACHINE, "ada", "k", "submit", None)
            made.user.quotas = {"candidates_per_day": 2, "cpu_seconds_per_day": 1e6}
        running.client.headers["Authorization"] = f"Bearer {made.text}"
        running.wait_until_ready()
        job = running.wait_for(running.submit(source=TINY_TASK, origins=["human"], start_from=WRONG))
        assert job["counts"]["candidates"] >= 1
        with base.read() as session:
            row = session.get_one(Usage, (made.user.id, utc_now().date()))
            assert row.candidates == job["counts"]["candidates"]
            assert 0.1 < row.cpu_seconds < 600
            assert row.gpu_seconds == 0
        base.close()
