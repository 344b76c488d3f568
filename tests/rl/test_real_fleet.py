"""Rewards from the real referee: through a service's queue, and from referees of this machine."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from evaluator.fingerprint import type_of
from evaluator.sources import TaskSource
from rl.config import FleetPart, RewardPart
from rl.exemplars import ExemplarDatabase
from rl.fleet import Fleet
from rl.judges import Judge, LocalJudge, ServiceJudge
from rl.reward import shaping
from rl.verdicts import VerdictJournal
from tests.evaluator.judging import UNTIMED
from tests.services.service import CORRECT, ENDLESS, TINY_TASK, WRONG, Service, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TASK = TaskSource("tiny", TINY_TASK)
FLOOR = shaping(RewardPart()).floor


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.fleet._PAUSE_S", 0.1)


def fleet(judge: Judge, settings: FleetPart) -> Fleet:
    """A fleet that knows no verdict yet."""
    with tempfile.TemporaryDirectory() as folder:  # an open file outlives its name
        verdicts = VerdictJournal(Path(folder) / "verdicts")
    return Fleet(judge, {"tiny": TASK}, verdicts, group=2, settings=settings, reward=RewardPart())


def step(of: Fleet, *sources: str) -> list[float | None]:
    completions = [f"```python\n{source}```" for source in sources]
    return asyncio.run(of.rewards(["p"] * len(sources), completions, task=["tiny"] * len(sources)))


def timed_step(of: Fleet, *sources: str) -> list[float | None]:
    """See :func:`step`; a machine that is too noisy to time on is asked again, twice at most."""
    for _ in range(3):
        found = step(of, *sources)
        if UNTIMED not in " ".join(of.report.missing):
            break
    return found


def test_a_service_judges_for_rewards_and_dies_in_the_middle_of_a_step(tmp_path: Path) -> None:
    settings = FleetPart(device="cpu", width=2, tries=1, deadline_s=120, patience_s=120)
    with Service(tmp_path / "service") as service:
        judge = ServiceJudge(service.url, settings)
        of = fleet(judge, settings)
        right, wrong = timed_step(of, CORRECT, WRONG)
        assert right is not None
        assert wrong is not None
        assert right > wrong
        assert of.report.samples[1].score.value == FLOOR
        verdict = of.report.samples[0].verdict
        assert verdict is not None
        assert of.machine == type_of(verdict.environment)
        assert {row.split for row in verdict.shapes} <= {"visible", "adversarial"}
        (found,) = of.successes()
        with ExemplarDatabase(tmp_path / "exemplars") as database:
            database.advance([found])
            assert database.members(TASK.sha256, of.machine)[0].source == CORRECT

        results: list[list[float | None]] = []
        training = threading.Thread(target=lambda: results.append(step(of, ENDLESS, CORRECT)))
        training.start()
        wait_until(lambda: service.get("/metrics").text.count("running") > 0, 20, service.log_tail)
        service.kill()
        training.join(60)
        assert results == [[None, 0.0]]  # the second is known from before
        assert "no service answers" in next(iter(of.report.missing))
        judge.close()


def test_referees_of_this_machine_judge_and_one_that_hangs_is_begun_anew(tmp_path: Path) -> None:
    settings = FleetPart(device="cpu", tries=1, deadline_s=200, patience_s=200)
    judge = LocalJudge(settings, tmp_path)
    try:
        of = fleet(judge, settings)
        timed_step(of, CORRECT, WRONG)
        assert of.report.samples[0].score.speedup is not None
        assert of.report.samples[1].score.value == FLOOR
        # The other one is judged by the referee that is begun anew, so it is the candidate and not the fleet.
        hasty = fleet(judge, settings.model_copy(update={"patience_s": 30.0}))
        assert step(hasty, ENDLESS, WRONG) == [None, 0.0]
        assert hasty.report.samples[1].verdict is not None
        again = fleet(judge, settings)
        assert step(again, WRONG, "no code") == [0.0, 0.0]
        assert again.report.samples[0].verdict is not None
    finally:
        judge.close()
