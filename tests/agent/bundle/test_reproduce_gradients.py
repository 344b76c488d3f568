"""reproduce.py of a bundle whose calls are forward and backward: it compares gradients, and sees whether the kernel ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.candidates import Candidate
from tests.agent.bundle.building import optimized_text, written
from tests.agent.bundle.test_reproduce import reproduce

TASK = """
import torch
from torch import nn

DIRECTION = "forward_backward"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x):
        return torch.tanh(x) * self.weight


def get_inputs():
    return [torch.randn(128, 64)]


def get_init_inputs():
    return []
"""
MEMBER = """
import torch
from torch import nn


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        t = torch.tanh(x)
        ctx.save_for_backward(t, weight)
        return t * weight

    @staticmethod
    def backward(ctx, given):
        t, weight = ctx.saved_tensors
        return given * weight * (1 - t * t), (given * t).sum(0)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x):
        return Tanh.apply(x, self.weight)
"""


def bundle(folder: Path, text: str, member: str = MEMBER) -> Path:
    """An unpacked bundle with this text as optimized.py."""
    candidate = Candidate(member, "human", "tanh")
    optimized = Candidate(text, "human", "optimized.py", candidate.sha256)
    rows = [{"dims": {}, "split": "held_out", "timed": True, "speedup": 0.01, "baseline_us": 100.0}]
    return written("tanh", TASK, candidate, optimized, rows, 0.01, folder)


def text_of(member: str = MEMBER) -> str:
    return optimized_text([Candidate(member, "human", "tanh")], task=TASK, dims={})


@pytest.mark.slow
def test_gradients_are_compared_and_the_kernel_is_seen_to_run(tmp_path: Path) -> None:
    result = reproduce(bundle(tmp_path / "right", text_of()))
    assert result.returncode == 0, result.stdout + result.stderr
    wrong = MEMBER.replace("(1 - t * t)", "(1 - t)")
    result = reproduce(bundle(tmp_path / "wrong", text_of(wrong), wrong))
    assert result.returncode == 1 and "is allowed" in result.stdout, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (
            "if not torch.is_grad_enabled()",
            "if torch.is_grad_enabled()",
        ),  # it goes to the reference, and says so
        ("_dispatch.trace[MEMBERS[_index][1]] += 1", "pass"),  # it says that a member runs, and none does
    ],
)
def test_a_file_that_runs_the_reference_is_told(tmp_path: Path, line: str, instead: str) -> None:
    text = text_of()
    assert text.count(line) == 1
    result = reproduce(bundle(tmp_path, text.replace(line, instead)))
    assert result.returncode == 2, result.stdout + result.stderr
    assert "the kernel does not run here" in result.stdout
    assert "optimized.py runs the reference on this machine" in result.stdout
