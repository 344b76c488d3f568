"""Triton kernels are compiled for a GPU in a process that has none, and the next process finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.errors import RoleReported
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.roles.spawn import ForkServer
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.corpus import controls

pytest.importorskip("triton")

ROW_SUM = TaskSource("row_sum", catalog.load("row_sum").source)
KERNEL = next(entry for entry in controls.every() if entry.name == "row_sum_triton_512_2w").source
#: Before a kernel: a process that has been given the files of an earlier one fails if Triton has to compile anything.
LISTENS = """
import os
import triton

FOLDER = os.environ["TRITON_CACHE_DIR"]
SECOND = os.path.exists(FOLDER)

def _seen(cache_hit, **_):
    if SECOND and not cache_hit:
        raise RuntimeError("compiled again")

triton.knobs.compilation.listener = _seen
"""


AUTOTUNED = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune([triton.Config({"BLOCK": size}) for size in (512, 1024)], key=["cols"], cache_results=True)
@triton.jit
def _sum(x, y, cols, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + place, place < cols, 0.0)))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        _sum[(x.shape[0],)](x, y, x.shape[1])
        return y
"""


@pytest.fixture(scope="module")
def core(core: RefereeCore) -> Iterator[RefereeCore]:
    """A referee whose compile role is that of a GPU machine: without a device, and without Triton's interpreter."""
    fleet = core.fleet
    server = ForkServer(
        "run",
        fleet.store,
        fleet.tier,
        gpu=False,
        threads=1,
        chain_library=fleet.chain_library,
        headers=fleet.headers,
        compiler=False,
    )
    fleet._servers = {"run": server}
    # There is no driver to link Triton's own library with.
    fleet._basics = b""
    yield core
    server.close()


def shapes(core: RefereeCore) -> list[OpenShape]:
    session = core.session(ROW_SUM)
    return [session.open({"rows": 8, "cols": cols, "dtype": "float32"}) for cols in (128, 257)]


def run_of(core: RefereeCore, source: str) -> CandidateRun:
    run = CandidateRun(core.fleet, core.session(ROW_SUM), CandidateSource(source, "external", "inline"))
    run.interpreted = False  # as where there is a GPU
    return run


@pytest.mark.slow
def test_the_next_process_compiles_nothing(core: RefereeCore) -> None:
    open_shapes = shapes(core)
    run = run_of(core, LISTENS + KERNEL)
    run.rehearse(open_shapes, "9.0")
    files = core.fleet.kept_files.get(run._files_key)
    # Two machine codes: one for a row whose length is a multiple of 16, one for any.
    assert files.count(b'.cubin"') >= 2
    process = run._fork("compile")
    try:
        run._load(process, files=files, rehearses="9.0")
        for shape in open_shapes:
            run.call_on_host(process, shape)
    finally:
        process.close()
    # For another GPU they are of no use, which shows that the above can fail.
    process = run._fork("compile")
    try:
        run._load(process, files=files, rehearses="8.0")
        with pytest.raises(RoleReported, match="compiled again"):
            run.call_on_host(process, open_shapes[0])
    finally:
        process.close()


@pytest.mark.slow
def test_what_fails_without_a_device_costs_nothing_but_time(core: RefereeCore) -> None:
    open_shapes = shapes(core)
    half = KERNEL.replace(
        "def forward(self, x):", "def forward(self, x):\n        assert x.shape[1] == 128\n", 1
    )
    assert half != KERNEL
    run = run_of(core, half)
    run.rehearse(open_shapes, "9.0")
    assert core.fleet.kept_files.get(run._files_key), "what was compiled before it failed is kept"
    for source in ("import triton\nraise RuntimeError", "import triton\nimport os\nos._exit(3)"):
        run = run_of(core, source)
        run.rehearse(open_shapes, "9.0")
        assert not core.fleet.kept_files.get(run._files_key)


def test_an_autotuner_gets_all_its_kernels_and_no_opinion(core: RefereeCore) -> None:
    open_shapes = shapes(core)
    run = run_of(core, AUTOTUNED)
    run.rehearse(open_shapes[:1], "9.0")
    files = core.fleet.kept_files.get(run._files_key)
    assert files.count(b'.cubin"') >= 2
    assert b".autotune.json" not in files
