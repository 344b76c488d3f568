"""The reference as a CUDA graph, captured by hand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agent.bundle.sections import cut
from agent.compiler.cuda_graph import cuda_graph_source
from agent.errors import ProposalFailed
from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.agent.compiler.extraction import run_program, task_text

NAME = "matmul_bias_relu"

#: Sizes and weights change, a copy is made, and gradients are wanted.
USED = """
import copy, json, torch, reference, candidate
device = "cuda" if torch.cuda.is_available() else "cpu"
model = reference.Model(16, 8).eval().to(device)
new = candidate.ModelNew(16, 8).eval().to(device)
right = True
for _ in range(3):
    for weight in model.parameters():
        weight.data = torch.randn_like(weight)
    new.load_state_dict(model.state_dict(), strict=True)
    for rows in (3, 70, 3):
        x = torch.randn(rows, 16, device=device)
        with torch.no_grad():
            first, second = new(x), new(x + 1)
            right &= torch.allclose(first, model(x), atol=1e-4) and torch.allclose(second, model(x + 1), atol=1e-4)
            right &= torch.allclose(copy.deepcopy(new)(x), first, atol=1e-5)
    for weight in new.parameters():
        weight.data = torch.randn_like(weight)
    with torch.no_grad():
        right &= not torch.allclose(new(x), first, atol=1e-4)
new(x).sum().backward()
print(json.dumps({"right": bool(right), "graphs": len(new._graphs), "graded": new.weight.grad is not None
                  if hasattr(new, "weight") else all(p.grad is not None for p in new.parameters())}))
"""


def run(folder: Path) -> dict[str, object]:
    (folder / "reference.py").write_text(task_text(NAME))
    (folder / "candidate.py").write_text(cuda_graph_source(task_text(NAME), NAME))
    return run_program(folder, USED)


def test_it_is_a_file_of_its_own() -> None:
    source = cuda_graph_source(task_text(NAME), NAME)
    ast.parse(source)
    assert "kernelbench_tasks" not in source
    assert cut(source, "ModelNew").text


def test_a_reference_that_uses_its_names_is_left_alone() -> None:
    text = task_text(NAME).replace("import torch\n", "import torch\n\n\ndef copied(x):\n    return x\n", 1)
    text = text.replace("def forward(self, x):\n", "def forward(self, x):\n        x = copied(x)\n", 1)
    with pytest.raises(ProposalFailed, match="copied"):
        cuda_graph_source(text, NAME)


def test_without_a_gpu_it_is_the_reference(tmp_path: Path) -> None:
    answer = run(tmp_path)
    assert answer["right"] and answer["graded"]


@pytest.mark.gpu
def test_on_a_gpu_it_replays_what_it_captured_for_each_size(tmp_path: Path) -> None:
    assert run(tmp_path) == {"right": True, "graphs": 2, "graded": True}


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["softmax", "matmul_bias_relu", "layernorm_relu_add"])
def test_the_referee_accepts_it(tmp_path: Path, name: str) -> None:
    with Referee("cuda", work_dir=tmp_path) as referee:
        verdict = referee.evaluate(
            TaskSource(name, task_text(name)),
            CandidateSource(cuda_graph_source(task_text(name), name), "compiler", "CUDA graph"),
            deadline_s=250.0,
        )
    assert verdict["verdict"] == "accepted", verdict["reason"]
