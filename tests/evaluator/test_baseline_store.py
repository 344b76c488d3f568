"""Times of baselines outlive the referee that measured them, and are believed only when fresh rounds agree."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from evaluator.keeping import keep_sealed, read_sealed
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.processes.baseline_store import BaselineStore
from evaluator.referee.session import baseline_ranking as ranking
from evaluator.referee.sides.open_shape import OpenShape
from tests.attacks.test_candidates import TASK
from tests.evaluator.few_baselines import without_autotune

pytestmark = pytest.mark.alone

TIMES = {"eager/1t": (3.5, ""), "compile_default/1t": (0.0, "no compiler")}
DIMS = {"rows": 64, "cols": 96}


def test_times_come_back_for_the_same_question_alone(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.put({"torch": "1"}, "task", [("rows", 1)], TIMES)
    assert store.get({"torch": "1"}, "task", [("rows", 1)], list(TIMES)) == TIMES
    assert store.get({"torch": "2"}, "task", [("rows", 1)], list(TIMES)) is None
    assert store.get({"torch": "1"}, "other", [("rows", 1)], list(TIMES)) is None
    assert store.get({"torch": "1"}, "task", [("rows", 2)], list(TIMES)) is None
    assert store.get({"torch": "1"}, "task", [("rows", 1)], ["eager/1t"]) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"name": "eager/1t"}]', "NaN", "[" * 9999])
def test_a_broken_file_is_no_ranking(tmp_path: Path, text: str) -> None:
    store = BaselineStore(tmp_path)
    store.put({}, "task", [], TIMES)
    (file,) = tmp_path.iterdir()
    file.write_text(text, encoding="utf-8")
    assert store.get({}, "task", [], list(TIMES)) is None


def test_a_file_under_another_one_s_name_is_no_ranking(tmp_path: Path) -> None:
    """Fresh rounds try two baselines: where a third was called slow, nobody would look."""
    store = BaselineStore(tmp_path)
    store.put({}, "task", [("rows", 1)], TIMES)
    (file,) = tmp_path.iterdir()
    store.put({}, "task", [("rows", 2)], TIMES)
    (other,) = set(tmp_path.iterdir()) - {file}
    other.replace(file)
    assert store.get({}, "task", [("rows", 1)], list(TIMES)) is None


def test_a_digit_that_has_changed_is_no_ranking(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.put({}, "task", [], TIMES)
    store.keep_agreement({}, "task", {"median": 1.5})
    for file in tmp_path.iterdir():
        file.write_text(
            file.read_text(encoding="utf-8").replace("3.5", "9.5").replace("1.5", "1.0"), encoding="utf-8"
        )
    assert store.get({}, "task", [], list(TIMES)) is None
    assert store.agreement({}, "task") is None


def test_an_old_ranking_is_made_anew(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path)
    store.put({}, "task", [], TIMES)
    (file,) = tmp_path.iterdir()
    os.utime(file, (time.time() - 8 * 24 * 3600,) * 2)
    assert store.get({}, "task", [], list(TIMES)) is None


def test_another_referees_agreement_counts_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    store, found = BaselineStore(tmp_path), {"median": 1.001, "ci95": [0.99, 1.01]}
    store.keep_agreement({"torch": "1"}, "task", found)
    assert store.agreement({"torch": "1"}, "task") == found
    assert store.agreement({"torch": "2"}, "task") is None
    assert store.agreement({"torch": "1"}, "other") is None
    (file,) = tmp_path.iterdir()
    os.utime(file, (time.time() - 1000,) * 2)
    assert store.agreement({"torch": "1"}, "task") is None
    file.write_text("{", encoding="utf-8")
    assert store.agreement({"torch": "1"}, "task") is None


def rank(core: RefereeCore, *, then_every: bool = False) -> tuple[OpenShape, set[str]]:
    """A ranking at one shape by a referee that has just opened the task, and the baselines that it loaded for it.

    With ``then_every`` it is asked for all of them afterwards, as for a confirmation.
    """
    core._drop(TASK)
    loaded: set[str] = set()
    with core.fleet.device_lock.shared():
        session = core.session(TASK)
        prepare = session.prepare
        session.prepare = lambda side, baseline, **how: (  # type: ignore[method-assign]
            loaded.add(baseline.name),
            prepare(side, baseline, **how),
        )[1]
        shape = session.open(DIMS)
        session.compile_baselines([shape], lambda *_: None)
    with core.fleet.device_lock.exclusive():
        before = set(loaded)
        if not session.rank_baselines([shape], lambda *_: None):
            assert loaded == before, "it compiled while it held the clock"
            session.compile_baselines([shape], lambda *_: None, has_device=True)
            assert session.rank_baselines([shape], lambda *_: None)
    if then_every:
        with core.fleet.device_lock.shared():
            before = set(loaded)
            session.compile_baselines([shape], lambda *_: None, every=True)
            assert loaded > before
            assert not shape.remembered
            assert not shape.ranked
            loaded = before
    return shape, loaded


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_next_referee_loads_the_contenders_and_checks_them(
    core: RefereeCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_autotune(core)
    core.fleet.baseline_store = BaselineStore(tmp_path)
    first, loaded = rank(core)
    assert not first.remembered
    assert loaded == {baseline.name for baseline in first.baselines}
    (file,) = tmp_path.iterdir()
    kept = read_sealed(file)
    assert {row["name"]: row["median_us"] for row in kept} == {b.name: b.median_us for b in first.baselines}

    # Whatever the noise of this machine: fresh rounds agree.
    monkeypatch.setattr(ranking, "_REMEMBERED_WITHIN", math.inf)
    _, loaded = rank(core, then_every=True)
    assert loaded == {baseline.name for baseline in first.contenders} < {b.name for b in first.baselines}
    assert read_sealed(file) == kept

    # A time that nobody can measure again: all are loaded and timed, and the file is put right.
    monkeypatch.undo()
    leader = min((row for row in kept if not row["failure"]), key=lambda row: row["median_us"])
    leader["median_us"] /= 10
    keep_sealed(file, kept)
    third, loaded = rank(core)
    assert not third.remembered
    assert loaded == {baseline.name for baseline in first.baselines}
    assert third.best.median_us > 2 * leader["median_us"]
    assert read_sealed(file) != kept


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_compilers_made_of_a_task_serves_every_referee_of_a_batch(tmp_path: Path) -> None:
    """Each has a work folder of its own; the second one finds libraries there before it has compiled anything."""
    libraries = []
    for name in ("one", "other"):
        core = RefereeCore("cpu", tmp_path / name, "landlock", tmp_path / "verdicts", referees=2)
        try:
            with core.fleet.device_lock.shared():
                session = core.session(TASK)
                folder = core.fleet.store / session.folder
                before = {path.name for path in folder.rglob("*.so")}
                session.compile_baselines([session.open(DIMS)], lambda *_: None)
                libraries.append((before, {path.name for path in folder.rglob("*.so")}))
        finally:
            core.close()
    (nothing, made), (found, after) = libraries
    assert not nothing and made
    assert found == after == made
