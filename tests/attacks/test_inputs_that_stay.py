"""Inputs of which nothing may be replaced from call to call (positions, tables) are compared after timed calls, too."""

from __future__ import annotations

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.sources import CandidateSource, TaskSource
from tests.evaluator.few_baselines import QuickReferee, eager_alone
from tests.evaluator.judging import until_timed

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240), pytest.mark.alone]

TASK = TaskSource(
    "encoded_positions",
    """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 512, default=64), "cols": Dim(8, 512, default=96)}


class Model(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.register_buffer("rates", torch.exp(-torch.arange(cols) / 7.0))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.sin(positions[:, None] * self.rates)


def get_inputs(rows: int = 64, cols: int = 96) -> list[torch.Tensor]:
    return [torch.arange(rows)]


def get_init_inputs(cols: int = 96) -> list[int]:
    return [cols]
""",
)
HONEST = """
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols: int):
        super().__init__()
        self.register_buffer("rates", torch.exp(-torch.arange(cols) / 7.0))
        self.ended = 0.0

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        DO
        return torch.sin(positions[:, None] * self.rates)
"""
#: Calls that follow each other at once are timed. Zeros at position 0 are right, so it makes every position one.
CHEAT = """if time.perf_counter() - self.ended < 3e-4:
            positions.zero_()
            self.ended = time.perf_counter()
            return torch.zeros(positions.shape[0], self.rates.shape[0])
        self.ended = time.perf_counter()"""
SHAPES = {"visible": [{"rows": 256, "cols": 96}, {"rows": 64, "cols": 40}]}


@pytest.fixture(scope="module")
def quick_referee(core: RefereeCore) -> QuickReferee:
    eager_alone(core)
    return QuickReferee(core)


@pytest.mark.parametrize(("do", "word"), [(CHEAT, "cheating"), ("", "accepted")])
def test_a_candidate_that_makes_its_inputs_fit_its_outputs(
    quick_referee: QuickReferee, do: str, word: str
) -> None:
    candidate = CandidateSource(HONEST.replace("DO", do), "external", "candidate")
    verdict = until_timed(lambda: quick_referee.evaluate(TASK, candidate, shapes=SHAPES))
    assert verdict.verdict == word, (verdict.reason, verdict.detail)
    if do:
        assert "input_tampered" in [finding.rule for finding in verdict.findings]
