"""Captures where the library has kernels: which sizes are symbols, and what a fault costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.kernels.writing import rewriting_text
from tests.agent.compiler import extraction
from tests.agent.compiler.extraction import PROGRAM, capture_text

SMALL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor=3):
        super().__init__()
        self.layer, self.factor = nn.Conv1d(4, 5, 3), factor

    def forward(self, x):
        return self.layer(x) * self.factor


def get_inputs():
    return [torch.randn(SIZES)]


def get_init_inputs(factor=3):
    return [factor]
"""


def captured_of(folder: Path, sizes: str, dims: dict[str, Any], rewriting: str) -> dict[str, Any]:
    reference = SMALL.replace("SIZES", sizes)
    found: dict[str, Any] = json.loads(
        capture_text(folder, reference, dims, files={"rewriting.py": rewriting})
    )
    return found


def test_a_second_attempt_with_fewer_symbols_rewrites_too(tmp_path: Path) -> None:
    """A factor that no tensor tells cannot stay a symbol."""
    dims = {"factor": {"min": 2, "max": 9, "multiple_of": 1, "default": 3}}
    found = captured_of(tmp_path / "a", "2, 4, 20", dims, rewriting_text())
    assert (found["library_fault"], found["library"].count("kernelwright.convolution.default(")) == ("", 1)


def test_sizes_that_vary_at_run_time_are_symbols_in_one_capture_and_numbers_in_the_other(
    tmp_path: Path,
) -> None:
    dims = {name: {"min": 1, "max": 99, "multiple_of": 1, "default": 20} for name in ("batch", "factor")}
    reference = SMALL.replace("get_inputs()", "get_inputs(batch=20)").replace("SIZES", "batch, 4, 20")
    files = {"rewriting.py": rewriting_text()}
    found = json.loads(capture_text(tmp_path / "a", reference, dims, files=files, own={"batch": 30}))
    assert "made_with == {'factor': 20}" in found["conditions"], "the configuration is that of the module"
    assert [len(one["sizes"]) for one in (found, found["own"])] == [1, 0]
    assert "(30, 4, 20,)" in found["own"]["shapes"][0]
    assert all("kernelwright.convolution.default(" in one["library"] for one in (found, found["own"]))
    assert "own" not in json.loads(capture_text(tmp_path / "b", reference, dims)), "no library, no use"


@pytest.mark.slow
def test_a_module_for_which_symbols_take_too_long_is_captured_at_its_own_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, count = re.subn(r"SYMBOLS_S = \d+", "SYMBOLS_S = 1", PROGRAM.read_text())
    assert count == 1
    slow = slow.replace("    env = ShapeEnv()\n", "    env = ShapeEnv()\n    while symbolic:\n        pass\n")
    monkeypatch.setattr(extraction, "PROGRAM", tmp_path / PROGRAM.name)
    extraction.PROGRAM.write_text(slow)
    dims = {"batch": {"min": 1, "max": 99, "multiple_of": 1, "default": 20}}
    reference = SMALL.replace("get_inputs()", "get_inputs(batch=20)").replace("SIZES", "batch, 4, 20")
    for files in ({"rewriting.py": rewriting_text()}, {}):
        found = json.loads(capture_text(tmp_path / str(len(files)), reference, dims, files=files))
        assert (found["sizes"], "own" in found) == ([], False)
        assert "(20, 4, 20,)" in found["shapes"][0]


def test_a_convolution_without_a_batch_stays_with_the_compiler(tmp_path: Path) -> None:
    found = captured_of(tmp_path / "a", "4, 20", {}, rewriting_text())
    assert (found["library_fault"], found["library"]) == ("", "")
    assert found["module"]


def test_a_fault_of_the_rewrite_costs_the_compiler_s_code_nothing(tmp_path: Path) -> None:
    planted = "from contextlib import nullcontext as recurrent_layers\ndef rewrite(graph):\n    raise ValueError('planted')\n"
    found = captured_of(tmp_path / "a", "2, 4, 20", {}, planted)
    assert (found["library_fault"], found["library"]) == ("ValueError: planted", "")
    assert found["module"]


def test_where_the_compiler_fails_on_symbols_it_does_without_a_look_for_neighbors(tmp_path: Path) -> None:
    fails = """
from torch._inductor import compile_fx, config
compiles = compile_fx.compile_fx


def compile_or_fail(*given):
    assert not config.triton.coalesce_tiling_analysis
    return compiles(*given)


compile_fx.compile_fx = compile_or_fail
"""
    dims = {"batch": {"min": 1, "max": 99, "multiple_of": 1, "default": 20}}
    reference = SMALL.replace("get_inputs()", "get_inputs(batch=20)").replace("SIZES", "batch, 4, 20") + fails
    found = json.loads(
        capture_text(tmp_path / "a", reference, dims, files={"rewriting.py": rewriting_text()})
    )
    assert ([len(one["sizes"]) for one in (found, found["own"])], found["library_fault"]) == ([1, 0], "")
