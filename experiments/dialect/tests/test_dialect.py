"""Smoke test: programs are exactly what their tokens say, and reinforcement on invented figures finds what is fast."""

from __future__ import annotations

import pytest
import torch

from experiments.dialect.arms import ReplaySettings, World, mean_score, run_arm
from experiments.dialect.grammar import Grammar
from experiments.dialect.learning import GrpoSettings, SftSettings
from experiments.dialect.model import ModelSize
from experiments.dialect.own_learner import OwnLearner
from experiments.dialect.tests.planted import planted_table
from experiments.dialect.tokenizer import build_tokenizer, check

pytestmark = pytest.mark.slow
SETTINGS = ReplaySettings(
    model=ModelSize(layers=1, width=48, heads=4),
    sft=SftSettings(steps=150, batch=16, learning_rate=4e-3),
    grpo=GrpoSettings(steps=25, learning_rate=2e-3),
    tasks_per_step=6,
)


@pytest.mark.parametrize(("device", "size"), [("cpu", "full"), ("cuda", "full")])
def test_every_program_is_read_as_its_phrases_and_written_back(device: str, size: str) -> None:
    grammar = Grammar(device, size)
    check(build_tokenizer(grammar), [(program.pieces, program.source) for program in grammar.programs])
    assert len(grammar.by_source) == len(grammar.programs)


def test_reinforcement_finds_what_is_fast() -> None:
    torch.set_num_threads(1)
    world = World(planted_table(("row_sum",)))
    supervised: dict[str, object] = {}
    before, _ = run_arm(world, "sft", OwnLearner(), SETTINGS, 0, supervised)
    after, _ = run_arm(world, "plain", OwnLearner(), SETTINGS, 0, supervised)
    assert mean_score(after) > 1.1 * mean_score(before)
