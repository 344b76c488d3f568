"""Generated candidates whose whole calls are repeated, on a GPU: captured, assembled, and called as a user would."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.compiler.inductor import assemble
from agent.kernels.writing import rewriting_text, with_library
from tests.agent.compiler.extraction import capture_text

pytestmark = pytest.mark.gpu

REFERENCE = """
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2048, 2048), nn.Linear(2048, 2048)
        self.norm = nn.LayerNorm(2048)

    def forward(self, x):
        y = F.gelu(self.first(x))
        z = self.second(self.norm(y))
        return torch.softmax(z.sin() - z.mean(-1, keepdim=True), -1), y.sum(-1)


def get_inputs(rows=2048):
    return [torch.randn(rows, 2048)]


def get_init_inputs():
    return []
"""
DIMS = {"rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 2048}}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("capture") / "a"
    files = {"rewriting.py": rewriting_text()}
    return capture_text(folder, REFERENCE, DIMS, "cuda", files, own={"rows": 2048})


def candidate(capture: bytes, folder: Path, *, own: bool) -> types.ModuleType:
    source = assemble(capture, REFERENCE, "t", changed=lambda module: with_library(module)[0], own=own)
    assert "_kw_call = repeated_call(call)" in source
    path = folder / "candidate.py"
    path.write_text(source)
    module = types.ModuleType("candidate")
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def made(module: types.ModuleType) -> Any:
    torch.manual_seed(0)
    return module.ModelNew().cuda().eval()


@pytest.mark.parametrize("own", [True, False], ids=["its own size", "any size"])
def test_repeated_calls_compute_what_the_reference_does(capture: bytes, tmp_path: Path, own: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    assert json.loads(capture)["library_fault"] == ""
    module = candidate(capture, tmp_path, own=own)
    model = made(module)
    exact = module.Model().cuda().eval().double()
    exact.load_state_dict(model.state_dict())

    def check(given: torch.Tensor, results: Any) -> None:
        for result, wanted in zip(results, exact(given.double()), strict=True):
            assert float((result - wanted).norm() / wanted.norm()) < 2e-6

    known = module._kw_call.__wrapped__.known  # type: ignore[attr-defined]
    sizes, alive = [2048] if own else [1, 1500, 2048], []
    with torch.no_grad():
        for rows in sizes * 4:
            given = torch.randn(rows, 2048, device="cuda")
            results = model(given)
            check(given, results)
            alive.append((given, results))
        # The products of one row are torch's, so nothing is repeated there.
        repeated = [notes is not None and notes.is_whole for notes in known.values()]
        assert repeated == [rows > 1 for rows in sizes]
        assert all(len(notes._launches) > 4 for notes in known.values() if notes.is_whole)
        for given, results in alive:
            check(given, results)

        # Weights may change in place, and move.
        for weights in (model.first.weight, exact.first.weight):
            weights.mul_(0.5)
        model.second.weight = torch.nn.Parameter(model.second.weight.clone())
        check(given, model(given))

        # In a graph, and beside another stream.
        given, graph = torch.randn(sizes[-1], 2048, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = model(given)
        given.copy_(torch.randn_like(given))
        graph.replay()
        check(given, results)
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            results = model(given)
        other.synchronize()
        check(given, results)


def test_a_repeated_call_takes_no_more_memory_than_the_call(capture: bytes, tmp_path: Path) -> None:
    model = made(candidate(capture, tmp_path, own=True))
    given = torch.randn(2048, 2048, device="cuda")
    peaks = []
    with torch.no_grad():
        for _ in range(4):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            model(given)
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[3] <= 1.05 * peaks[0], peaks
