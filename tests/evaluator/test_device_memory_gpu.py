"""On a GPU: processes share what their shapes need, a shape that needs more gets it, and nobody is blamed for others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import NO_ROOM, Verdict
from kernelbench_tasks import catalog
from tests.evaluator import judging

ROW_SUM = TaskSource("row_sum", catalog.load("row_sum").source)
SMALL = {"rows": 33, "cols": 257, "dtype": "float32"}
LARGE: dict[str, Any] = {"rows": 8192, "cols": 8192, "dtype": "float32"}
#: So many that the usual memory for inputs is smaller than the large shape's 256 MiB, on any GPU there is.
REFEREES = 96
#: Takes a share of all memory before it returns what is right.
TAKES = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        taken = torch.empty(int({share} * total_bytes), dtype=torch.uint8, device=x.device)
        return x.sum(dim=-1)
"""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


#: So many share a GPU by default, of which a part has room for 2 of the large shape's outputs beside each other, not for 3.
USUAL_REFEREES = 6
HONEST = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    folder = tmp_path_factory.mktemp("memory-cuda")
    referee = RefereeCore("cuda", folder, "landlock", referees=REFEREES)
    try:
        yield referee
    finally:
        referee.close()


def judge(core: RefereeCore, share: float, *shapes: dict[str, Any], splits: str = "adversarial") -> Verdict:
    source = TAKES.format(share=share)
    candidate = CandidateSource(source, "external", "inline")
    request = Request(ROW_SUM, candidate, "screen", (splits,), {splits: list(shapes)}, 240.0)
    return core.evaluate(request, lambda *_: None)


def test_a_shape_that_does_not_fit_gets_all_that_there_is(core: RefereeCore) -> None:
    verdict = judge(core, 0.0, SMALL)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    session = core.session(ROW_SUM)
    size = session.process.memory.size
    assert size == core.fleet.budget.usual
    assert session.memory_of_others().inputs_bytes < size.inputs_bytes
    verdict = judge(core, 0.0, SMALL, LARGE)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert core.session(ROW_SUM).process.memory.size.total_bytes > size.total_bytes


def test_it_can_be_timed_in_what_it_got(core: RefereeCore) -> None:
    verdict = judge(core, 0.0, SMALL, LARGE, splits="visible")
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    print({name: round(seconds, 2) for name, seconds in verdict.stages_s.items()})


def test_who_asks_for_more_than_there_is_has_asked_for_too_much(core: RefereeCore) -> None:
    verdict = judge(core, 1.5, SMALL)
    assert verdict.verdict == "out_of_memory", (verdict.reason, verdict.detail)


def test_who_finds_the_gpu_full_is_not_blamed(core: RefereeCore) -> None:
    import torch

    assert core.fleet.keeper is not None
    others: list[torch.Tensor] = []
    try:
        # What the referee itself keeps for later would come free again; that of ended processes comes a moment after them.
        for _ in range(6):
            core.fleet.keeper.give_back()
            time.sleep(0.5)
            free_bytes, total_bytes = torch.cuda.mem_get_info()
            too_many_bytes = free_bytes - total_bytes // 16
            if too_many_bytes > 0:
                others.append(torch.empty(too_many_bytes, dtype=torch.uint8, device="cuda"))
        verdict = judge(core, 0.2, SMALL)
    finally:
        others.clear()
        torch.cuda.empty_cache()
    assert verdict.verdict == "not_judged", (verdict.reason, verdict.detail)
    assert NO_ROOM in judging.rules(verdict)
    verdict = judge(core, 0.2, SMALL)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


def test_large_outputs_of_an_honest_candidate_survive_where_memory_is_shared(tmp_path: Path) -> None:
    """One of 256 MiB was called overwritten: copies of three did not fit, and the referee took its own want for proof."""
    task = TaskSource("softmax", catalog.load("softmax").source)
    core = RefereeCore("cuda", tmp_path, "landlock", referees=USUAL_REFEREES)
    try:
        request = Request(
            task,
            CandidateSource(HONEST, "external", "inline"),
            "screen",
            ("adversarial",),
            {"adversarial": [LARGE]},
            240.0,
        )
        verdict = core.evaluate(request, lambda *_: None)
    finally:
        core.close()
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
