"""The global leaderboard on both databases: what ranks, in which order, who was first when, and what is never shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.orm import with_loader_criteria

from evaluator.fingerprint import platform, type_of
from kernelbench_tasks import catalog
from services.db.models import Job, Leaderboard, LeaderboardEntry
from services.db.session import Database
from services.errors import NotFound, Refused
from services.leaderboard import reading
from tests.services.databases import BOTH_DATABASES, fresh_database, new_sqlite
from tests.services.ranked import H200, TASK, ended_job

OTHER_GPU = {**H200, "device_name": "NVIDIA H100"}
NEWER_DRIVER = {**H200, "driver": "590.1"}


@pytest.fixture(params=BOTH_DATABASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of each kind."""
    with fresh_database(request.param, tmp_path, request) as found:
        yield found


@pytest.fixture(scope="module")
def unranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database of jobs none of which ranks."""
    found = new_sqlite(tmp_path_factory.mktemp("unranked"))
    yield found
    found.close()


def board(base: Database, task: str = TASK, **wanted: Any) -> Any:
    with base.read() as session:
        return reading.read_board(session, task, **wanted)


def place(base: Database, job_id: str) -> Any:
    with base.read() as session:
        job = session.get(Job, job_id)
        assert job is not None
        return reading.place_of(session, job)


def test_a_confirmed_figure_of_a_catalogue_task_ranks_with_all_that_a_board_shows(base: Database) -> None:
    dims = {"rows": 8, "cols": 16}
    steps = {
        "profile": {"least_s": 4e-6},
        "describe": {"dims": {name: {"default": size} for name, size in dims.items()}},
    }
    screen = {
        "verdict": "accepted",
        "shapes": [{"timed": True, "split": "visible", "dims": dims, "candidate_us": 5.0}],
    }
    slow = ended_job(base, 1.5)
    fast = ended_job(base, 2.0, usd=1.75, steps=steps, screen=screen)
    found = board(base)
    assert [(row.rank, row.job_id) for row in found.data] == [(1, fast), (2, slow)]
    first = found.data[0]
    assert (first.geomean_speedup, first.ci95, first.worst_speedup) == (2.0, (1.96, 2.04), 1.6)
    assert (first.usd, first.shapes, first.origin, first.model, first.label) == (
        1.75,
        4,
        "llm",
        "m-1",
        "m-1 #1",
    )
    assert first.roofline_share == pytest.approx(0.8)
    assert found.data[1].roofline_share is None
    assert (found.board.task, found.board.gpu, found.board.entries) == (TASK, "NVIDIA H200", 2)
    assert place(base, slow).model_dump(include={"state", "rank", "entries"}) == {
        "state": "ranked",
        "rank": 2,
        "entries": 2,
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": "incorrect"}, "not accepted"),
        ({"effort": "screen"}, "provisional"),
        ({"splits": ["validation"]}, "provisional"),
        ({"timing__pairs": 1}, "provisional"),
        ({"timing": {}}, "provisional"),
        ({"environment__harness": "5"}, "version 5"),
        ({"environment__device_name": ""}, "not known"),
        ({"environment": {}}, "not known"),
        ({"environment__sandbox_tier": "none"}, "sandbox"),
        ({"findings": [{"rule": "decoy_kernel", "severity": "warning"}]}, "decoy kernel"),
        ({"findings": [{"rule": "never_heard_of", "severity": "warning"}]}, "never heard of"),
        ({"findings": [{"rule": "x", "severity": "cheat"}]}, "remarked"),
        ({"findings": [{"rule": "fallback_ran", "severity": "error"}]}, "remarked"),
        ({"findings": [{"rule": "interpreted", "severity": "info"}]}, "interpreted"),
        ({"task__sha256": "0" * 64}, "another task"),
        ({"summary": {}}, "not measured"),
        ({"summary__geomean_ci95": [3.0, 4.0]}, "not measured"),
        ({"summary__worst_speedup": None}, "not measured"),
        ({"summary__geomean_speedup": "9"}, "not measured"),
        ({"shapes": []}, "not measured"),
        ({"request": {"shapes": {"held_out": [{"rows": 1}]}}}, "shapes were the user's"),
        ({"request": {"traffic": [{"dims": {"rows": 1}, "weight": 1}]}}, "traffic"),
        ({"request": {"space": {"rows": {"max": 2}}}}, "sizes"),
        ({"task_source": "# mine\n" + catalog.load(TASK).source}, "catalogue"),
    ],
)
def test_what_does_not_rank_is_listed_nowhere_and_says_why(
    unranked: Database, changes: dict[str, Any], why: str
) -> None:
    job_id = ended_job(unranked, 9.0, **changes)
    assert board(unranked).data == []
    with unranked.read() as session:
        assert reading.list_boards(session) == ([], None)
    told = place(unranked, job_id)
    assert told.state == "not_listed"
    assert why in told.reason


def test_harmless_findings_do_not_keep_a_job_off(base: Database) -> None:
    findings = [
        {"rule": "fallback_ran", "severity": "warning"},
        {"rule": "compiled_before", "severity": "info"},
    ]
    ended_job(base, 1.5, findings=findings)
    assert len(board(base).data) == 1


def test_platforms_are_never_mixed(base: Database) -> None:
    ended_job(base, 2.0)
    ended_job(base, 5.0, environment=OTHER_GPU)
    ended_job(base, 1.2, environment={**H200, "gpu_uuid": "GPU-2"})  # another card of the same kind
    ended_job(base, 7.0, environment=NEWER_DRIVER)
    by_platform = {
        key: [row.geomean_speedup for row in board(base, platform=platform(where)).data]
        for key, where in (("H200", H200), ("H100", OTHER_GPU), ("newer", NEWER_DRIVER))
    }
    assert by_platform == {"H200": [2.0, 1.2], "H100": [5.0], "newer": [7.0]}
    assert [row.geomean_speedup for row in board(base, gpu="NVIDIA H100").data] == [5.0]
    newest = board(base, gpu=type_of(H200))
    assert (newest.board.platform, len(newest.boards)) == (platform(NEWER_DRIVER), 2)
    assert board(base, gpu="NVIDIA B200").board is None
    with base.read() as session:
        boards, _ = reading.list_boards(session)
        assert sorted((one.gpu, one.first.geomean_speedup) for one in boards if one.first) == [
            ("NVIDIA H100", 5.0),
            ("NVIDIA H200", 2.0),
            ("NVIDIA H200", 7.0),
        ]
        assert reading.gpu_types(session) == ["NVIDIA H100", "NVIDIA H200"]


def test_origins_and_models_rank_among_themselves(base: Database) -> None:
    ended_job(base, 3.0, origin="human", label="library")
    ended_job(base, 2.0, model="m-2", label="m-2 #1")
    ended_job(base, 1.5)
    assert [(row.rank, row.origin) for row in board(base).data] == [(1, "human"), (2, "llm"), (3, "llm")]
    assert [(row.rank, row.model) for row in board(base, origin="llm").data] == [(1, "m-2"), (2, "m-1")]
    assert [(row.rank, row.geomean_speedup) for row in board(base, model="m-1").data] == [(1, 1.5)]


def test_measuring_the_same_source_again_replaces_its_figure(base: Database) -> None:
    lucky = ended_job(base, 3.0, source="# the same\n")
    ended_job(base, 2.5)
    again = ended_job(base, 2.0, source="# the same\n")
    assert [row.geomean_speedup for row in board(base).data] == [2.5, 2.0]
    assert (place(base, lucky).state, place(base, again).rank) == ("replaced", 2)
    with base.read() as session:
        assert [row.geomean_speedup for row in reading.history(session, TASK)] == [3.0, 2.5]


def test_history_says_who_was_first_when(base: Database) -> None:
    first, _, third = (ended_job(base, speed) for speed in (1.5, 1.4, 1.9))
    with base.read() as session:
        held = reading.history(session, TASK)
    assert [(row.job_id, row.geomean_speedup) for row in held] == [(first, 1.5), (third, 1.9)]
    assert held[0].until == held[1].since
    assert held[1].until is None


def test_pages_of_a_board_count_on_and_of_equal_figures_the_earlier_is_first(base: Database) -> None:
    made = [ended_job(base, speed) for speed in (1.5, 2.0, 1.5, 1.5, 3.0)]
    seen: list[tuple[int, str | None]] = []
    after = None
    for _ in range(9):
        page = board(base, limit=2, after=after)
        seen += [(row.rank, row.job_id) for row in page.data]
        after = page.next
        if after is None:
            break
    assert seen == [(1, made[4]), (2, made[1]), (3, made[0]), (4, made[2]), (5, made[3])]
    other = ended_job(base, 1.0, environment=OTHER_GPU)
    cursor = board(base, platform=platform(H200), limit=2).next
    assert other
    with pytest.raises(Refused):
        board(base, gpu="NVIDIA H100", after=cursor)


def test_boards_of_many_tasks_are_paged(base: Database) -> None:
    names = sorted(task.name for task in catalog.list_tasks())[:5]
    for name in names:
        ended_job(base, 1.5, task=name)
    with base.read() as session:
        page, after = reading.list_boards(session, limit=3)
        rest, end = reading.list_boards(session, limit=3, after=after)
    assert [one.task for one in [*page, *rest]] == names
    assert end is None


def test_boards_of_an_older_referee_are_not_shown(base: Database) -> None:
    job_id = ended_job(base, 1.5)
    with base.write() as session:
        session.execute(text("UPDATE leaderboards SET harness = 'older'"))
    assert board(base).board is None
    with base.read() as session:
        assert reading.list_boards(session) == ([], None)
    assert place(base, job_id).state == "not_listed"


def test_an_unknown_task_has_no_board(base: Database) -> None:
    with pytest.raises(NotFound):
        board(base, "no_such_task")


def test_neither_a_source_nor_a_private_name_nor_a_path_is_stored_on_a_board(base: Database) -> None:
    folder = "/srv/checkpoints/acme/run-7"
    ended_job(base, 1.5, origin="policy", model=folder, label=f"{folder} #3")
    entry = board(base).data[0]
    assert (entry.model, entry.label) == ("run-7", "run-7 #3")
    with base.read() as session:
        rows = [
            str([getattr(row, column.name) for column in table.__table__.columns])
            for table in (Leaderboard, LeaderboardEntry)
            for row in session.scalars(select(table))
        ]
    assert rows
    # None of these can stand in an id, whose alphabet has neither "i" nor "o".
    assert not [row for row in rows if any(one in row for one in ("private", "checkpoints", "client said"))]


@pytest.mark.parametrize(("provider", "shown"), [("policy", "run-7"), ("openai", "checkpoints/run-7")])
def test_a_local_model_is_shown_by_the_last_part_of_its_path(
    base: Database, provider: str, shown: str
) -> None:
    model = "checkpoints/run-7"
    models = [{"model": model, "origin": "policy", "provider": provider}]
    ended_job(base, 1.5, origin="policy", label=f"{model} #3", request={"models": models})
    entry = board(base).data[0]
    assert (entry.model, entry.label) == (shown, f"{shown} #3")


def test_jobs_that_end_together_leave_one_board_and_a_true_first_place(base: Database) -> None:
    speeds = [1.0 + index / 10 for index in range(8)]
    threads = [threading.Thread(target=ended_job, args=(base, speed)) for speed in speeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.geomean_speedup for row in board(base).data] == sorted(speeds, reverse=True)
    with base.read() as session:
        held = [row.geomean_speedup for row in reading.history(session, TASK)]
    assert held == sorted(held)
    assert held[-1] == max(speeds)


@pytest.mark.services("postgres")
def test_who_enters_a_board_waits_for_whoever_is_at_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with fresh_database("postgres", tmp_path, request) as base:
        ended_job(base, 1.5)
        second = threading.Thread(target=ended_job, args=(base, 2.0))
        with base.write() as session:
            session.scalars(select(Leaderboard).with_for_update()).one()
            second.start()
            second.join(1.0)
            assert second.is_alive(), "two jobs would both have found themselves first"
        second.join(20)
        assert [row.geomean_speedup for row in board(base).data] == [2.0, 1.5]


def test_a_board_is_read_from_indexes(base: Database) -> None:
    for number in range(60):
        ended_job(base, 1.0 + number / 100, origin="llm" if number % 2 else "human")
    with base.write() as session:
        if base.engine.dialect.name == "postgresql":
            session.execute(text("SET LOCAL enable_seqscan = off"))
            session.execute(text("ANALYZE"))
    plans = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT") and "leaderboard" in statement and not context.isinsert:
            word = "EXPLAIN QUERY PLAN " if base.engine.dialect.name == "sqlite" else "EXPLAIN "
            other = conn.connection.cursor()
            if base.engine.dialect.name == "postgresql":
                other.execute("SET enable_seqscan = off")  # 60 rows are quicker read whole
            other.execute(word + statement, parameters)
            plans.append("\n".join(str(row) for row in other.fetchall()))
            if base.engine.dialect.name == "postgresql":
                other.execute("RESET enable_seqscan")
            other.close()

    event.listen(base.engine, "before_cursor_execute", explain)
    page = board(base, limit=10)
    board(base, limit=10, after=page.next, origin=None)
    board(base, limit=10, origin="human")
    with base.read() as session:
        reading.list_boards(session)
        reading.history(session, TASK)
    event.remove(base.engine, "before_cursor_execute", explain)
    assert len(plans) >= 8
    scans = [plan for plan in plans if "Seq Scan" in plan or "SCAN leaderboard" in plan]
    assert scans == []
    assert any("entries_by_origin" in plan for plan in plans)
    assert any("entries_in_order" in plan for plan in plans)


def test_a_board_names_only_jobs_that_its_reader_may_see(base: Database) -> None:
    shown, hidden = (ended_job(base, speed) for speed in (1.5, 2.0))
    only_shown = with_loader_criteria(Job, Job.id == shown)

    def condition(state: Any) -> None:
        if state.is_select:
            state.statement = state.statement.options(only_shown)

    with base.read() as session:
        event.listen(session, "do_orm_execute", condition)
        found = reading.read_board(session, TASK)
        assert [(row.geomean_speedup, row.job_id) for row in found.data] == [(2.0, None), (1.5, shown)]
        boards, _ = reading.list_boards(session)
        assert boards[0].first is not None
        assert (boards[0].first.job_id, boards[0].entries) == (None, 2)
        assert [row.job_id for row in reading.history(session, TASK)] == [shown, None]
    assert hidden
