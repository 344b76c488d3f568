"""What the compiler proposes and in which order: another layout first, and no mode that is a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.candidates import Candidate
from agent.proposers.base import ProposalContext
from agent.proposers.compiler import CompilerProposer
from agent.stores.folder import FolderStore
from evaluator.sources import TaskSource
from tests.agent.compiler.extraction import task_text

FIRST = Candidate("class ModelNew: pass\n", "human", "a kernel")
KERNELS = (
    "from torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"
)


def verdict(low: float) -> dict[str, Any]:
    summary = {"geomean_speedup": low, "geomean_ci95": [low, low + 0.1]}
    return {"verdict": "accepted", "shapes": [], "summary": summary}


IMAGES = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(2, 3, 16, 16)]
"""


def labels(
    folder: Path, device: str, low: float, extracted: str = "", task: str = task_text("matmul_bias_relu")
) -> list[str]:
    """What is proposed after one candidate was judged so (not for 0); where nothing can be extracted, unless it is given."""
    store = FolderStore(folder)
    for label in ("inductor C++", "inductor Triton"):
        found_there = (
            {"source": extracted, "operators": []} if extracted else {"reason": "nothing to extract"}
        )
        store.finish_step(f"compiler.extract.{label}", found_there)
    if low:
        store.add_candidate(FIRST)
        for phase in ("screen", "validation"):
            store.add_verdict(FIRST.sha256, phase, verdict(low))
    context = ProposalContext(TaskSource("t", task), {}, device, None, store)  # type: ignore[arg-type]
    found = [candidate.label for candidate in CompilerProposer().propose(context)]
    assert found == [candidate.label for candidate in CompilerProposer().propose(context)], (
        "after a resume, too"
    )
    return found


@pytest.mark.parametrize(("device", "label"), [("cuda", "inductor Triton"), ("cpu", "inductor C++")])
@pytest.mark.parametrize("low", [0.0, 0.7, 1.2])
def test_modes_of_the_compiler_are_no_candidates(tmp_path: Path, device: str, label: str, low: float) -> None:
    """A baseline that is judged as a candidate ends at 1.0x: it took 50 of the first 84 seconds of a job on a GPU."""
    assert labels(tmp_path, device, low, KERNELS) == [label]


def test_a_module_without_kernels_to_extract_has_no_candidate(tmp_path: Path) -> None:
    assert labels(tmp_path, "cuda", 0.0) == []


def test_another_layout_comes_before_what_takes_long_to_make(tmp_path: Path) -> None:
    found = labels(tmp_path, "cuda", 0.0, KERNELS, task=IMAGES)
    assert found == ["channels-last", "channels-last, compiled", "inductor Triton"]
