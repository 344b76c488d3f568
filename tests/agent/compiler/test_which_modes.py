"""What the compiler proposes and in which order: its default mode first, unless something wins already."""

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


def labels(folder: Path, device: str, low: float, extracted: str = "") -> list[str]:
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
    context = ProposalContext(TaskSource("t", task_text("matmul_bias_relu")), {}, device, None, store)  # type: ignore[arg-type]
    found = [candidate.label for candidate in CompilerProposer().propose(context)]
    assert found == [candidate.label for candidate in CompilerProposer().propose(context)], (
        "after a resume, too"
    )
    return found


@pytest.mark.parametrize(
    ("device", "low", "wanted"),
    [
        ("cuda", 0.0, ["compile default", "inductor Triton"]),
        ("cuda", 0.7, ["compile default", "inductor Triton"]),
        ("cuda", 1.2, ["inductor Triton"]),
        ("cpu", 0.7, ["compile default", "inductor C++"]),
    ],
)
def test_the_default_mode_comes_first_unless_something_wins_already(
    tmp_path: Path, device: str, low: float, wanted: list[str]
) -> None:
    assert labels(tmp_path, device, low, KERNELS) == wanted


def test_a_module_without_kernels_to_extract_has_its_default_mode(tmp_path: Path) -> None:
    assert labels(tmp_path, "cuda", 0.0) == ["compile default"]
