"""What a job makes of joules that were measured: only shapes that all candidates have, and nobody who was wrong meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from agent.candidates import Candidate
from agent.clock import Clock
from agent.job import _Job
from agent.judging import ENERGY_STEPS, rejected_meanwhile, relative_joules
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from tests.agent import small_job
from tests.agent.portfolio.measured import entry

HOT, COOL = entry("hot", 1.5), entry("cool", 1.5, order=1)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path)
    for one in (HOT, COOL):
        store.add_candidate(one.candidate)
        for phase in ("screen", "validation"):
            store.add_verdict(one.candidate.sha256, phase, one.verdict)
    return store


def measured(store: FolderStore, candidate: Candidate, verdict: str, **ratios: float) -> None:
    store.finish_step(ENERGY_STEPS + candidate.sha256, {"verdict": verdict, "ratios": ratios})


def entries(store: FolderStore, *, energy: bool) -> dict[str, float | None]:
    spec = replace(small_job.spec("http://127.0.0.1:9"), energy=energy)
    job = _Job(spec, store, cast(Referee, None), Path(), None, lambda _: None, Clock(None))
    return {one.candidate.label: one.relative_joules for one in job._entries()}


def test_joules_are_compared_where_everybody_was_measured(store: FolderStore) -> None:
    measured(store, HOT.candidate, "accepted", large=0.9, middle=0.9)
    measured(store, COOL.candidate, "accepted", middle=0.8, small=0.1)
    assert entries(store, energy=True) == {"hot": pytest.approx(0.9), "cool": pytest.approx(0.8)}
    assert entries(store, energy=False) == {"hot": None, "cool": None}


def test_nothing_is_said_where_no_shape_is_common(store: FolderStore) -> None:
    measured(store, HOT.candidate, "accepted", large=0.9)
    measured(store, COOL.candidate, "accepted", small=0.1)
    assert relative_joules(store) == {}


def test_who_was_wrong_while_joules_were_measured_is_not_delivered(store: FolderStore) -> None:
    measured(store, HOT.candidate, "accepted", large=0.9)
    measured(store, COOL.candidate, "incorrect")
    assert rejected_meanwhile(store) == {COOL.candidate.sha256}
    assert list(entries(store, energy=True)) == ["hot"]


def test_a_measurement_that_came_to_nothing_says_nothing_of_the_candidate(store: FolderStore) -> None:
    measured(store, COOL.candidate, "not_judged")
    assert rejected_meanwhile(store) == set()
    assert list(entries(store, energy=True)) == ["hot", "cool"]
