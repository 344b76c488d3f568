"""What the compiler proposes: the code that it generates, and no mode that is a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.proposers.compiler import CompilerProposer
from agent.proposing import ProposalContext
from agent.stores.folder import FolderStore
from evaluator.description import Description
from evaluator.sources import TaskSource
from tests.agent.compiler.extraction import task_text


def labels(folder: Path, device: str, kept: dict[str, Any]) -> list[str]:
    """What is proposed where the store has kept what the compiler's code was."""
    store = FolderStore(folder)
    for label in ("inductor C++", "inductor Triton"):
        store.finish_step(f"compiler.extract.{label}", kept)
    task = TaskSource("t", task_text("matmul_bias_relu"))
    context = ProposalContext(task, Description(), device, None, store)  # type: ignore[arg-type]
    return [candidate.label for candidate in CompilerProposer().propose(context)]


@pytest.mark.parametrize(("device", "label"), [("cuda", "inductor Triton"), ("cpu", "inductor C++")])
def test_modes_of_the_compiler_are_no_candidates(tmp_path: Path, device: str, label: str) -> None:
    """A baseline that is judged as a candidate ends at 1.0x: it took 50 of the first 84 seconds of a job on a GPU."""
    assert labels(tmp_path, device, {"source": "class ModelNew: pass\n"}) == [label]


def test_a_module_whose_code_does_not_stand_alone_has_no_candidate(tmp_path: Path) -> None:
    assert labels(tmp_path, "cuda", {"reason": "it draws random numbers"}) == []
