"""The library as a proposer: tracing in the real sandbox, candidates that the real referee accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.candidates import Candidate
from agent.memory.features import FEATURES_STEP, Features
from agent.proposers import human
from agent.proposers.human import HumanProposer
from agent.proposing import ProposalContext
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.agent.library.tracing import module_source
from tests.evaluator.judging import until_timed


def propose(source: str, referee: Referee, folder: Path, device: str = "cpu") -> tuple[list[Candidate], str]:
    """The candidates for a task, and the reason on record when there is none."""
    context = ProposalContext(TaskSource("task", source), Description(), device, referee, FolderStore(folder))
    candidates = list(HumanProposer().propose(context))
    step = context.store.step("library.match")
    assert isinstance(step, dict)
    assert step["kernels"] == [candidate.label for candidate in candidates]
    return candidates, str(step["reason"])


@pytest.mark.slow
@pytest.mark.alone
def test_the_referee_accepts_the_kernel_in_the_users_own_module(referee: Referee, tmp_path: Path) -> None:
    source = module_source(
        "torch.clamp_min(self.inner[0](r), 0.0) + x",
        setup="self.inner = nn.Sequential(nn.LayerNorm(cols, eps=1e-3))",
        dims=True,
    )
    (candidate,), reason = propose(source, referee, tmp_path)
    assert (candidate.origin, candidate.label, reason) == ("human", "library layernorm_relu_add", "")
    assert "recognized by its formula" in candidate.note
    shapes = {"visible": [{"rows": 37, "cols": 129}, {"rows": 3, "cols": 1000}]}
    task, kernel = TaskSource("task", source), CandidateSource(candidate.source, "human")
    verdict = until_timed(lambda: referee.evaluate(task, kernel, splits=("visible",), shapes=shapes))
    assert verdict.verdict == "accepted", verdict.reason
    assert all(shape.correct for shape in verdict.shapes)


def test_a_job_that_starts_again_proposes_the_same(referee: Referee, tmp_path: Path) -> None:
    task = catalog.load("softmax").source
    first, _ = propose(task, referee, tmp_path)
    again, _ = propose(task, referee, tmp_path)
    assert [candidate.sha256 for candidate in first] == [candidate.sha256 for candidate in again] != []


def test_the_gpu_gets_triton(referee: Referee, tmp_path: Path) -> None:
    (candidate,), _ = propose(catalog.load("swiglu").source, referee, tmp_path, "cuda")
    assert "@triton.jit" in candidate.source
    assert "load_inline" not in candidate.source


def test_what_was_traced_is_what_memory_knows_the_module_by(referee: Referee, tmp_path: Path) -> None:
    source = module_source("torch.softmax(x * r, dim=-1)")
    propose(source, referee, tmp_path)
    step = FolderStore(tmp_path).step(FEATURES_STEP)
    assert isinstance(step, dict)
    features = Features.from_json(step)
    assert (features.operators, features.written) == ({"mul": 1, "softmax": 1}, {"mul": 1, "softmax": 1})
    assert features.reductions == {"reduce:last"}


def test_an_unknown_module_yields_nothing_and_says_why(referee: Referee, tmp_path: Path) -> None:
    candidates, reason = propose(catalog.load("matmul_bias_relu").source, referee, tmp_path)
    assert candidates == []
    assert "neither a row vector nor as large as the input" in reason


FORGED = """
import json, os
os.makedirs("out")
with open("out/graphs.json", "w") as sink:
    sink.write({report!r})
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param("raise RuntimeError('no')", id="raises"),
        pytest.param("import os\nos._exit(0)", id="leaves without a word"),
        pytest.param("class Model: pass", id="is no module"),
        pytest.param("def f(:", id="does not parse"),
        pytest.param(FORGED.format(report="not json"), id="forges nonsense"),
        pytest.param(FORGED.format(report='{"traces": [{"nodes": [1], "output": 0}]}'), id="forges a graph"),
        pytest.param("while True: pass", id="hangs"),
    ],
)
def test_a_hostile_module_yields_nothing(
    source: str, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(human, "TRACE_DEADLINE_S", 8.0 if "while" in source else 60.0)
    candidates, reason = propose(source, referee, tmp_path)
    assert candidates == []
    assert reason
