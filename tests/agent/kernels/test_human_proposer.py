"""The library as a proposer: a graph captured in the real sandbox, candidates that the real referee accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.candidates import Candidate
from agent.compiler import inductor
from agent.kernels.writing import rewriting_text
from agent.proposers import human
from agent.proposers.human import ROWS, HumanProposer
from agent.proposing import ProposalContext
from agent.stores.folder import FolderStore
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.agent.compiler.extraction import capture_text
from tests.evaluator.judging import until_timed

OWN = """
import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 4096, default=8), "cols": Dim(8, 4096, default=48)}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(cols, eps=1e-3), nn.SiLU())

    def forward(self, x, r):
        return torch.clamp_min(self.inner(r), -0.1) + x / x.shape[-1]


def get_inputs(rows=8, cols=48):
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs(cols=48):
    return [cols]
"""


def propose(source: str, referee: Referee, folder: Path, device: str = "cpu") -> tuple[list[Candidate], str]:
    """The candidates for a task, and why there are no more."""
    task = TaskSource("task", source)
    context = ProposalContext(task, referee.describe(task), device, referee, FolderStore(folder))
    candidates = list(HumanProposer().propose(context))
    events = (
        [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        if (folder / "events.jsonl").exists()
        else []
    )
    return candidates, "; ".join(event["data"]["skipped"] for event in events if "skipped" in event["data"])


@pytest.mark.slow
@pytest.mark.alone
def test_the_referee_accepts_the_loop_of_the_users_own_module(referee: Referee, tmp_path: Path) -> None:
    (candidate,), reason = propose(OWN, referee, tmp_path)
    assert (candidate.origin, candidate.label, reason) == ("human", ROWS, "")
    shapes = {"visible": [{"rows": 37, "cols": 129}, {"rows": 3, "cols": 1000}]}
    task, kernel = TaskSource("task", OWN), CandidateSource(candidate.source, "human")
    verdict = until_timed(lambda: referee.evaluate(task, kernel, splits=("visible",), shapes=shapes))
    assert verdict.verdict == "accepted", verdict.reason
    assert all(shape.correct for shape in verdict.shapes)


def test_a_job_that_starts_again_proposes_the_same(referee: Referee, tmp_path: Path) -> None:
    task = catalog.load("softmax").source
    first, _ = propose(task, referee, tmp_path / "a")
    again, _ = propose(task, referee, tmp_path / "b")
    assert [candidate.sha256 for candidate in first] == [candidate.sha256 for candidate in again] != []


def test_another_module_yields_nothing_and_says_why(referee: Referee, tmp_path: Path) -> None:
    assert propose(catalog.load("matmul_bias_relu").source, referee, tmp_path) == (
        [],
        "the module is no loop over rows: an input has other sizes",
    )


PAIRS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.unflatten(-1, (-1, 2)).sort(-1, descending=True).values.flatten(-2) * 2


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return []
"""


def test_a_rewritten_graph_without_calls_of_the_library_is_proposed_too(
    referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = capture_text(tmp_path / "capture", PAIRS, {}, files={"rewriting.py": rewriting_text()})
    monkeypatch.setattr(human, "kept_capture", lambda _: capture)
    [one], _ = propose(PAIRS, referee, tmp_path / "store", "cuda")
    told = json.loads(capture)
    assert "aten.sort" in told["module"], "the compiler's own code sorts"
    assert "aten.sort" not in one.source and "rewrote" in str(one.note) and one.label == human.LIBRARY
    plain = told | {"library": ""}
    monkeypatch.setattr(human, "kept_capture", lambda _: json.dumps(plain))
    assert propose(PAIRS, referee, tmp_path / "other", "cuda")[0] == []


def test_no_loop_over_rows_is_proposed_for_a_backward(referee: Referee, tmp_path: Path) -> None:
    found, reason = propose(OWN.replace("DIMS", 'DIRECTION = "forward_backward"\nDIMS', 1), referee, tmp_path)
    assert found == []
    assert reason == "the module is no loop over rows: the task is judged forward and backward"


FORGED = """
import json, os
os.makedirs("out")
with open("out/capture.json", "w") as sink:
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
        pytest.param(FORGED.format(report="[1]"), id="forges a list"),
        pytest.param(FORGED.format(report=json.dumps({"rows": [1]})), id="forges rows"),
        pytest.param(
            FORGED.format(
                report=json.dumps(
                    {"rows": {"code": "'''; import os", "inputs": [0], "outputs": ["full"], "main": 0}}
                )
            ),
            id="leaves a text",
        ),
        pytest.param("while True: pass", id="hangs"),
    ],
)
def test_a_hostile_module_yields_nothing(
    source: str, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "_DEADLINE_S", 8.0 if "while" in source else 60.0)
    task = TaskSource("task", source)
    context = ProposalContext(task, Description(), "cpu", referee, FolderStore(tmp_path))
    candidates = list(HumanProposer().propose(context))
    (event,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    reason = event["data"]["skipped"]
    assert candidates == []
    assert reason
