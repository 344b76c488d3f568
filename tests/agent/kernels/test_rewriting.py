"""Operations of a captured graph that the library computes: which are rewritten, and that the candidate computes the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.inductor import assemble
from agent.kernels.writing import rewriting_text, with_library
from evaluator.integrity.static import analyze
from tests.agent.compiler.extraction import capture_text, run_program

REFERENCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.apart = nn.Conv2d(8, 16, (3, 5), stride=2, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(16, 4, 3, stride=2, output_padding=1)

    def forward(self, x, rows, q, k):
        scores = (q @ k.transpose(-2, -1)) * 0.25
        scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, float("-inf"))
        attended = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ k + F.scaled_dot_product_attention(q, k, k)
        x = F.max_pool2d(torch.relu(self.first(x)), 4, 1, 1)
        x = F.max_pool2d(self.up(self.apart(x)), 2)
        x = F.avg_pool2d(x, 6, 2, 3, count_include_pad=False)
        return x, attended, torch.log_softmax(rows, -1), torch.softmax(rows * 2, -1)


def get_inputs():
    return [torch.randn(2, 3, 44, 36), torch.randn(2, 8000), *torch.randn(2, 2, 2, 260, 16)]


def get_init_inputs():
    return []
"""

RUN = """
import json, torch, reference, candidate
torch.manual_seed(0)
model, new = reference.Model().eval(), candidate.ModelNew().eval()
new.load_state_dict(model.state_dict(), strict=True)
reached, code = [], candidate.call
candidate.call = lambda given: (reached.append(1), code(given))[1]
with torch.no_grad():
    given = reference.get_inputs()
    same = [torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(new(*given), model(*given), strict=True)]
print(json.dumps({"reached": len(reached), "same": same}))
"""


INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from tests.agent.kernels import interpreting
interpreting.prepare()
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rewriting")
    data = capture_text(folder / "capture", REFERENCE, {}, files={"rewriting.py": rewriting_text()})
    found: dict[str, Any] = json.loads(data)
    return found


def test_what_the_library_computes_is_called(captured: dict[str, Any]) -> None:
    called = re.findall(r"torch\.ops\.kernelwright\.(\w+)\.default\(", captured["library"])
    assert sorted(called) == ["attention"] * 2 + ["convolution"] * 3 + ["max_pool", "mean_pool", "softmax"], (
        "small windows, and rows that can be fused, stay with the compiler"
    )
    assert "kernelwright" not in captured["module"]


def test_it_stands_alone_beside_names_of_the_reference(captured: dict[str, Any]) -> None:
    text, operations = with_library(captured["library"])
    assert operations == ("attention", "convolution", "max_pool", "mean_pool", "softmax")
    compile(assemble(json.dumps(captured), REFERENCE, "name", changed=lambda _: text), "candidate", "exec")


def test_the_referee_s_analysis_has_nothing_to_warn_of(captured: dict[str, Any]) -> None:
    source = assemble(json.dumps(captured), REFERENCE, "name", changed=lambda module: with_library(module)[0])
    assert [one for one in analyze(source).findings if one[1] not in ("info",)] == []


@pytest.mark.slow
def test_it_computes_what_the_reference_does(captured: dict[str, Any], tmp_path: Path) -> None:
    source = assemble(json.dumps(captured), REFERENCE, "name", changed=lambda module: with_library(module)[0])
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(source)
    assert run_program(tmp_path, INTERPRETED + RUN) == {"reached": 1, "same": [True] * 4}
