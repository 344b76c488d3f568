"""On a GPU: ceilings against a plain copy and product, planted waits, and what a graph's replay tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.profiling import ceilings
from evaluator.profiling.counters import find_ncu
from evaluator.profiling.profile import profile_task
from evaluator.referee.judging.core import RefereeCore
from kernelbench_tasks import catalog

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ceilings.ceilings(tmp_path_factory.mktemp("work"), "cuda")


@pytest.fixture(scope="module")
def rates(measured: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = measured["rates"]
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    core = RefereeCore("cuda", tmp_path_factory.mktemp("referee"), "landlock")
    try:
        yield core
    finally:
        core.close()


def test_every_ceiling_was_measured(rates: dict[str, Any]) -> None:
    assert [name for name, value in rates.items() if value is None] == []
    assert rates["dram_bytes_per_s"] < rates["l2_bytes_per_s"] < rates["shared_bytes_per_s"]
    assert rates["float32_flops_per_s"] < rates["tf32_flops_per_s"] < rates["bfloat16_flops_per_s"]
    # A product cannot beat the multiply-adds that it is made of.
    assert rates["float32_flops_per_s"] < 1.05 * rates["vector_flops_per_s"]


@pytest.mark.parametrize("name", ["dram_bytes_per_s", "dram_read_bytes_per_s", "bfloat16_flops_per_s"])
def test_a_ceiling_is_a_plateau(measured: dict[str, Any], name: str) -> None:
    tried = sorted((row["rate"] for row in measured["tried"][name]), reverse=True)
    assert tried[0] == measured["rates"][name]
    assert tried[1] > 0.9 * tried[0], "of two sizes, one alone would have been taken for the ceiling"


@pytest.mark.parametrize(
    ("name", "dims", "label"),
    [
        ("swiglu", {"rows": 16384, "cols": 8192}, "memory"),
        ("gram_lower", {"rows": 8192, "cols": 1024}, "compute"),
        ("optimal_transport", {}, "launch"),
        ("grid_components", {}, "synchronization"),
    ],
)
def test_one_task_of_each_kind(
    core: RefereeCore, rates: dict[str, Any], name: str, dims: dict[str, Any], label: str
) -> None:
    found = profile_task(core, catalog.load(name).source, rates, device="cuda", dims=dims)
    assert found.label == label, found.sentences
    assert found.confirmed is not False, found.sentences


def test_a_planted_wait_and_a_copy_are_found(
    core: RefereeCore, rates: dict[str, Any], tmp_path: Path
) -> None:
    text = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        n = x.sum().item()
        y = x.cpu()
        return x * 2

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
    found = profile_task(core, text, rates, device="cuda")
    assert {line for line, _, _ in found.waits} == {7, 8}
    assert (8, "to the host", 64 * 64 * 4) in found.transfers


def test_counters_are_read_where_ncu_is_or_it_is_said_why_not(
    core: RefereeCore, rates: dict[str, Any]
) -> None:
    text = catalog.load("softmax").source
    found = profile_task(core, text, rates, device="cuda", dims={"rows": 8192, "cols": 4096}, counts=True)
    if find_ncu() is None:
        assert found.counters is None
        return
    assert found.counters is not None
    for kernel in found.counters.kernels:
        assert 0 < kernel.seconds < 1
    assert found.counters.kernels or len(found.counters.notes) == 1, found.counters
