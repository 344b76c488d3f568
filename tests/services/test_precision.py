"""A request's precision: written into the task's file, and a job in another one than the catalogue's is another task."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from evaluator.precision import TIERS, declared
from kernelbench_tasks import catalog
from services.dashboard import ranking
from services.jobs import submit
from services.jobs.requests import EvaluateRequest, OptimizeRequest, Precision
from services.settings import Settings

_TASK = "class Model: ...\n"


@pytest.mark.parametrize("asked", ["strict", "tf32", None])
def test_the_tier_is_in_the_file_that_is_judged(asked: str | None, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for request in (
        OptimizeRequest(source=_TASK, precision=asked),
        EvaluateRequest(source=_TASK, candidate="class ModelNew: ...", precision=asked),
    ):
        assert declared(submit._task(request, None, settings).source) == (asked or "default")


def test_a_task_of_the_catalogue_stays_itself_in_its_own_tier_alone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)

    def known(precision: str | None) -> bool:
        request = OptimizeRequest(task="softmax", precision=precision)
        return catalog.find_by_sha256(submit._task(request, None, settings).sha256) is not None

    assert (known(None), known("default"), known("strict")) == (True, True, False)


def test_requests_know_the_tiers_that_the_referee_knows() -> None:
    assert set(get_args(Precision)) == set(TIERS)


def test_pages_say_in_which_precision_it_was_measured() -> None:
    assert ranking.how_measured({"environment": {"device": "cpu"}, "precision": "strict"}) == {
        "device": "cpu",
        "precision": "strict",
    }
    assert ranking.how_measured({"environment": {"device": "cpu"}}) == {"device": "cpu", "precision": None}
    assert ranking.how_measured({"environment": {}}) == {} and ranking.how_measured(None) == {}
