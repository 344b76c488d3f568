"""On a GPU: what compilers made is found by the next process, building takes no lock, and nobody sits on the timing cores."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import row_kernels
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.candidate import CandidateRun
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from kernelbench_tasks import catalog
from tests.corpus import controls
from tests.evaluator import judging

ROW_SUM = TaskSource("row_sum", catalog.load("row_sum").source)
SHAPES = [{"rows": 8, "cols": 128, "dtype": "float32"}, {"rows": 33, "cols": 257, "dtype": "float32"}]
#: Before a kernel of the corpus: the second process of this text fails if Triton has to compile anything.
TRITON_LISTENS = """
import os
import triton

SECOND = os.path.exists(os.environ["TRITON_CACHE_DIR"] + "/first")
os.makedirs(os.environ["TRITON_CACHE_DIR"], exist_ok=True)
open(os.environ["TRITON_CACHE_DIR"] + "/first", "w").close()

def _seen(cache_hit, **_):
    if SECOND and not cache_hit:
        raise RuntimeError("compiled again")

triton.knobs.compilation.listener = _seen
"""
INDUCTOR = """
import os
import torch
from torch import nn

FOLDER = os.environ["TORCHINDUCTOR_CACHE_DIR"]
SECOND = os.path.exists(FOLDER + "/first")
os.makedirs(FOLDER, exist_ok=True)
open(FOLDER + "/first", "w").close()
compiled = torch.compile(lambda x: (x * 1.0).sum(dim=-1), dynamic=False)


class ModelNew(nn.Module):
    def forward(self, x):
        y = compiled(x)
        if SECOND and torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"]:
            raise RuntimeError("compiled again")
        return y
"""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    referee = RefereeCore("cuda", tmp_path_factory.mktemp("throughput-cuda"), "landlock")
    try:
        yield referee
    finally:
        referee.close()


def judge(core: RefereeCore, source: str) -> Verdict:
    candidate = CandidateSource(source, "external", "inline")
    request = Request(ROW_SUM, candidate, "screen", ("adversarial",), {"adversarial": SHAPES}, 120.0)
    return core.evaluate(request, lambda *_: None)


@pytest.mark.parametrize("compiler", ["triton", "inductor"])
def test_the_second_process_compiles_nothing(core: RefereeCore, compiler: str) -> None:
    kernel = next(entry for entry in controls.every() if entry.name == "row_sum_triton_512_2w").source
    source = TRITON_LISTENS + kernel if compiler == "triton" else INDUCTOR
    first = judge(core, source)
    assert first.verdict == "accepted", (first.reason, first.detail)
    again = judge(core, source)
    assert again.verdict == "accepted", (again.reason, again.detail)
    assert "compiled_before" not in judging.rules(first)
    assert "compiled_before" in judging.rules(again)
    print(compiler, "correctness", first.stages_s["correctness"], "then", again.stages_s["correctness"])


def test_tritons_own_library_is_made_once_for_all(core: RefereeCore) -> None:
    assert core.fleet.triton_basics()


def test_extensions_are_built_while_somebody_times(core: RefereeCore) -> None:
    source = row_kernels.inline("row_sum", secrets.token_hex(4))
    run = CandidateRun(core.fleet, core.session(ROW_SUM), CandidateSource(source, "external", "inline"))
    with core.fleet.device_lock.exclusive():
        run.build_ahead()
    assert run.compile_s > 0
    again = judge(core, source)
    assert again.verdict == "accepted", (again.reason, again.detail)
    assert again.compile_s < run.compile_s


@pytest.mark.parametrize("make", [row_kernels.nvrtc, row_kernels.inline])
@pytest.mark.parametrize("task", row_kernels.TASKS)
def test_the_benchmarks_kernels_are_right(core: RefereeCore, task: str, make: Any) -> None:
    source = make(task, "test")
    request = Request(
        TaskSource(task, catalog.load(task).source),
        CandidateSource(source, "external", "inline"),
        "screen",
        ("adversarial",),
        {"adversarial": SHAPES},
        120.0,
    )
    verdict = core.evaluate(request, lambda *_: None)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


def test_roles_keep_off_the_timing_cores(core: RefereeCore) -> None:
    cores = core.fleet.role_cores
    if cores is None:
        pytest.skip("too few cores to set any apart")
    assert core.fleet.core not in cores
    tool = core.fleet.tool(None, device=False)
    try:
        for process in (core.session(ROW_SUM).process, tool):
            assert os.sched_getaffinity(process.pid) <= cores
    finally:
        tool.close()
