"""What of a baseline's compilation is done before anybody waits for it: in the fork server, at the description, beside the checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evaluator.errors import RoleFailure
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.compile_ahead import CompileAhead, Work
from evaluator.referee.session.task_session import COMPILE_AHEAD, TaskSession
from evaluator.referee.sides.open_shape import freeze_dims
from evaluator.request import Request
from tests.evaluator.judging import replaced, task

pytestmark = pytest.mark.timeout(300)

ROWS = task("""
    from kernelbench_tasks import Dim

    DIMS = {"rows": Dim(1, 512, default=8)}

    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1

    def get_inputs(rows=8):
        return [torch.randn(rows, 40)]

    def get_init_inputs():
        return []
    """)
#: What a child knows of Inductor when it is born.
KNOWS = """
import os
from torch._inductor import cpu_vec_isa
from torch._inductor.fx_passes import joint_graph, post_grad

for function in (joint_graph.lazy_init, post_grad.lazy_init, cpu_vec_isa.valid_vec_isa_list):
    print(function.cache_info().currsize)
print(len(os.listdir("/proc/self/task")))
"""
#: Which caches the fork server looks into when it compiles ahead for its children.
LOOKS = """
from torch._dynamo import pgo
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import compile_fx
from torch._inductor.codecache import FxGraphCache
from torch._inductor.fx_passes import joint_graph
from evaluator.roles import forkserver

for owner, name in ((FxGraphCache, "_get_tmp_dir_for_key"), (AOTAutogradCache, "_get_tmp_dir_for_key"), (pgo, "code_state_path")):
    def told(*given, original=getattr(owner, name), name=name):
        print(name)
        return original(*given)
    setattr(owner, name, told)
forkserver._begin_compiling()
print(joint_graph.lazy_init.cache_info().currsize)
"""


class Asked:
    """Records what was asked for in the background and what was waited for. Nothing is compiled, loaded or timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.background: list[Work] = []
        self.first: set[Any] = set()
        self.awaited: set[Any] = set()
        monkeypatch.setattr(CompileAhead, "begin", self._begin)
        monkeypatch.setattr(CompileAhead, "finish", self._finish)
        monkeypatch.setattr(TaskSession, "_prepare", lambda *_, **__: None)
        monkeypatch.setattr(TaskSession, "rank_baselines", self._end)

    def _begin(self, work: Iterable[Work], *, first: bool = False) -> None:
        if first:
            self.first |= {key for one in work for key in one.keys}
        else:
            self.background += work

    def _finish(self, work: Iterable[Work], *_: Any, **__: Any) -> None:
        self.awaited |= {key for one in work for key in one.keys}

    def _end(self, *_: Any) -> bool:
        raise RoleFailure("timeout", "nothing is timed here")


def test_a_child_is_born_with_what_every_first_compilation_works_out_and_nothing_of_the_processor(
    core: RefereeCore,
) -> None:
    core.fleet.load_compiler()
    result = core.run_tool(KNOWS, {}, deadline_s=60.0)
    assert result.stdout.split() == ["1", "1", "0", "1"], (result.stdout, result.stderr)


@pytest.mark.slow
def test_a_fork_server_loads_nothing_that_a_child_may_have_left_in_a_cache(tmp_path: Path) -> None:
    """It imports the compiler once children run, and entries of these caches are unpickled."""
    ran = subprocess.run(
        [sys.executable, "-c", LOOKS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    assert ran.stdout.split() == ["1"], ran.stderr  # it did begin


def test_a_description_begins_with_the_quick_modes_at_visible_shapes_and_all_at_those_to_choose_by(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    assert core.describe(ROWS).ok and not asked.background, "switched off, as for all tests"
    core._drop(ROWS)
    monkeypatch.delenv(COMPILE_AHEAD)
    shapes = core.describe(ROWS).shapes
    assert [one.dims for one in asked.background] == [*shapes["visible"], *shapes["validation"]]
    visible = len(shapes["visible"])
    slow = [any("max_autotune" in name for name in one.baselines) for one in asked.background]
    assert slow == [False] * visible + [True] * len(shapes["validation"])


def test_what_an_evaluation_waits_for_is_begun_before_its_checks(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    begun: list[bool] = []

    def progress(stage: str, *_: Any) -> None:
        if stage == "correctness":
            begun.append(bool(asked.first))

    shapes = {"visible": [{"rows": 12}], "adversarial": [{"rows": 13}]}
    verdict = core.evaluate(
        Request(ROWS, replaced(ROWS, ("+ 1", "+ 1.0")), shapes=shapes, deadline_s=120.0), progress
    )
    assert begun and all(begun), verdict
    assert {dims for dims, _ in asked.first} == {freeze_dims({"rows": 12})}, "the untimed shape needs none"
    assert asked.awaited == asked.first


def test_a_shape_is_not_called_thorough_by_what_was_only_begun(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidate may be rejected before baselines are loaded; the next one meets all of them all the same."""
    session = core.session(ROWS)
    with core.fleet.device_lock.shared():
        shape = session.open({"rows": 24})
        asked = Asked(monkeypatch)
        session.compile_baselines([shape], lambda *_: None, thorough=False)
        quick = {baseline.name for baseline in shape.baselines}
        session.begin_baselines([shape], thorough=True, every=False)
        assert {name for _, name in asked.first} > {name for name in quick if name.startswith("compile")}
        session.compile_baselines([shape], lambda *_: None, thorough=True)
    assert {b.name for b in shape.baselines} == {b.name for b in session.every_baseline(shape)} > quick
