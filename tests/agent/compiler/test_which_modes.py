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


def verdict(low: float, baselines: list[str]) -> dict[str, Any]:
    shapes = [{"dims": {"rows": n}, "best_baseline": name} for n, name in enumerate(baselines)]
    summary = {"geomean_speedup": low, "geomean_ci95": [low, low + 0.1]}
    return {"verdict": "accepted", "shapes": shapes, "summary": summary}


def labels(folder: Path, device: str, low: float, baselines: list[str]) -> list[str]:
    """What is proposed after one candidate was judged so; where nothing can be extracted."""
    store = FolderStore(folder)
    for label in ("inductor C++", "inductor Triton"):
        store.finish_step(f"compiler.extract.{label}", {"reason": "nothing to extract"})
    store.add_candidate(FIRST)
    for phase in ("screen", "validation"):
        store.add_verdict(FIRST.sha256, phase, verdict(low, baselines))
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
