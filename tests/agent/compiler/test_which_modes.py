"""Which of the compiler's modes become candidates: those that were the best baseline somewhere, where nothing else wins."""

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


def verdict(low: float, baselines: list[str], lost: int = 0) -> dict[str, Any]:
    """Judged to be at least `low` at every shape but the last `lost`."""
    shapes: list[dict[str, Any]] = [
        {"dims": {"rows": n}, "best_baseline": name, "timed": True, "speedup": low, "ci95": [low, low + 0.1]}
        for n, name in enumerate(baselines)
    ]
    for row in shapes[len(shapes) - lost :]:
        row |= {"speedup": 0.7, "ci95": [0.69, 0.71]}
    summary = {"geomean_speedup": low, "geomean_ci95": [low, low + 0.1]}
    return {"verdict": "accepted", "shapes": shapes, "summary": summary}


def labels(
    folder: Path, device: str, low: float, baselines: list[str], lost: int = 0, extracted: str = ""
) -> list[str]:
    """What is proposed after one candidate was judged so; where nothing can be extracted, unless it is given."""
    store = FolderStore(folder)
    for label in ("inductor C++", "inductor Triton"):
        found_there = (
            {"source": extracted, "operators": []} if extracted else {"reason": "nothing to extract"}
        )
        store.finish_step(f"compiler.extract.{label}", found_there)
    store.add_candidate(FIRST)
    for phase in ("screen", "validation"):
        store.add_verdict(FIRST.sha256, phase, verdict(low, baselines, lost))
    context = ProposalContext(TaskSource("t", task_text("matmul_bias_relu")), {}, device, None, store)  # type: ignore[arg-type]
    found = [candidate.label for candidate in CompilerProposer().propose(context)]
    assert found == [candidate.label for candidate in CompilerProposer().propose(context)], (
        "after a resume, too"
    )
    return found


@pytest.mark.parametrize(
    ("device", "low", "baselines", "wanted"),
    [
        ("cuda", 0.7, ["cuda_graph", "eager"], ["CUDA graph"]),
        ("cuda", 0.7, ["compile_max_autotune"], ["compile dynamic", "compile max-autotune"]),
        (
            "cuda",
            0.7,
            ["cuda_graph", "compile_default"],
            ["CUDA graph", "compile dynamic", "compile default"],
        ),
        ("cuda", 0.7, ["eager"], []),
        ("cuda", 1.2, ["cuda_graph"], []),
        ("cpu", 0.7, ["compile_default/2t"], ["compile dynamic", "compile default", "compile one thread"]),
        ("cpu", 0.7, ["eager/1t"], []),
    ],
)
def test_those_that_were_a_best_baseline_enter(
    tmp_path: Path, device: str, low: float, baselines: list[str], wanted: list[str]
) -> None:
    assert labels(tmp_path, device, low, baselines) == wanted


def test_all_enter_where_nothing_is_known(tmp_path: Path) -> None:
    assert len(labels(tmp_path, "cuda", 0.0, [])) == 5


def test_a_graph_enters_for_the_shapes_that_are_not_won(tmp_path: Path) -> None:
    """On average a kernel wins; where calls are short the reference as a graph would stand in, or the kernels as one."""
    both = ["compile_default", "cuda_graph"]
    assert labels(tmp_path / "won", "cuda", 1.2, both) == []
    assert labels(tmp_path / "lost", "cuda", 1.2, both, lost=1) == ["CUDA graph"]
    assert labels(tmp_path / "cpu", "cpu", 1.2, both, lost=1) == []
    kernels = (
        "from torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    assert labels(tmp_path / "kernels", "cuda", 1.2, both, lost=1, extracted=kernels) == [
        "inductor Triton",
        "CUDA graph",
        "inductor Triton in a CUDA graph",
    ]
