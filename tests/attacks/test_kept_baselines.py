"""What is kept of baselines from job to job: no candidate and no other task reaches it, and what is damaged is made again."""

from __future__ import annotations

import hashlib
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import Side
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource, task_folder
from evaluator.timing.exclusive import DeviceLock
from evaluator.verdict import Verdict
from tests.attacks.test_candidates import SHAPES, TASK
from tests.evaluator.few_baselines import one_compiled
from tests.evaluator.judging import until_timed

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(600)]

DIMS = SHAPES["visible"][0]
HONEST = (Path(__file__).parent / "candidates" / "honest.py").read_text(encoding="utf-8")
#: Writes over every file that looks like something kept, and plants some where a referee would look for them.
POISON = textwrap.dedent("""
    import os

    for _root in ("/", os.environ["KERNELWRIGHT_WORK"], os.path.dirname(os.environ["KERNELWRIGHT_WORK"]), FOLDER):
        for _place, _folders, _names in os.walk(_root):
            _folders[:] = [name for name in _folders if name not in ("proc", "sys", "usr", "lib", "lib64", "bin", "etc")]
            for _name in _names:
                if _name.endswith((".so", ".json", ".cpp")) or "inductor" in _place or "compiled" in _place:
                    try:
                        with open(os.path.join(_place, _name), "r+b") as _file:
                            _file.write(b"poison")
                    except OSError:
                        continue
    for _place in ("baselines", "compiled", "store/TASK/inductor"):
        for _parent in (FOLDER, os.path.dirname(os.environ["KERNELWRIGHT_WORK"]), "/.kernelwright"):
            try:
                os.makedirs(os.path.join(_parent, _place), exist_ok=True)
                with open(os.path.join(_parent, _place, "planted"), "wb") as _file:
                    _file.write(b"poison")
            except OSError:
                continue
""")


@pytest.fixture(scope="module")
def core(core: RefereeCore, tmp_path_factory: pytest.TempPathFactory) -> RefereeCore:
    with pytest.MonkeyPatch.context() as patch:
        # A device lock of its own: these tests hold it while compilers run, which wait while others time something.
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("kept-baselines")))
        core.fleet.device_lock = DeviceLock("cpu")
    one_compiled(core)
    return core


def judge(core: RefereeCore, task: TaskSource, source: str, splits: tuple[str, ...]) -> Verdict:
    request = Request(task, CandidateSource(source, "external", "kept"), "screen", splits, SHAPES, 240.0)
    return until_timed(lambda: core.evaluate(request, lambda *_: None))


def work_folder(core: RefereeCore) -> Path:
    return core.fleet.store.parent


def kept(core: RefereeCore, task: TaskSource = TASK) -> dict[str, str]:
    """Every file that later jobs of a task would go by, with its digest."""
    work = work_folder(core)
    folders = ("baselines", "compiled", "built", f"store/{task_folder(task.sha256)}")
    files = [path for folder in folders for path in (work / folder).rglob("*") if path.is_file()]
    return {
        path.relative_to(work).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def poison(core: RefereeCore) -> str:
    return POISON.replace("FOLDER", repr(str(work_folder(core)))).replace("TASK", task_folder(TASK.sha256))


@pytest.mark.alone
def test_a_candidate_cannot_write_what_is_kept(core: RefereeCore) -> None:
    assert judge(core, TASK, HONEST, ("visible",)).verdict == "accepted"
    before = kept(core)
    assert {name.split("/")[0] for name in before} >= {"baselines", "store"}
    verdict = judge(core, TASK, poison(core) + HONEST.partition("\n")[2], ("adversarial",))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert kept(core) == before


@pytest.mark.alone
def test_another_task_cannot_write_it_either(core: RefereeCore) -> None:
    judge(core, TASK, HONEST, ("visible",))
    before = kept(core)
    other = TaskSource(
        "poisons",
        poison(core) + TASK.source.partition("\n\n")[2].replace("from __future__ import annotations", ""),
    )
    verdict = judge(core, other, HONEST, ("adversarial",))
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert {name: digest for name, digest in kept(core).items() if name in before} == before
    assert not [name for name in kept(core) if name.endswith("planted")]


# -- the same graph of another task ------------------------------------------------------------------------------------


def compiled(session: TaskSession) -> OpenShape:
    """The shape with all of its baselines loaded."""
    shape = session.open(DIMS)
    session.compile_baselines([shape], lambda *_: None, every=True)
    return shape


def results(shape: OpenShape) -> dict[str, torch.Tensor]:
    """What every baseline returns for one content."""
    shape.side.fill(1)
    found = {}
    for baseline in shape.baselines:
        shape.side.ready(60.0, threads=baseline.threads)
        block = shape.side.block(1, 60.0, variant=baseline.name)
        found[baseline.name] = torch.from_numpy(shape.side.outputs(block, 0)[0].copy())
    return found


def test_a_task_of_the_same_graph_gets_no_baseline_of_another_one_s(core: RefereeCore) -> None:
    """A scale in a buffer is no part of a graph: both have the same key in the compiler's cache.

    One call of a library, around which the compiler writes code, spares two runs of the C++ compiler.
    """
    source = textwrap.dedent("""
        import torch
        from torch import nn
        from kernelbench_tasks import Dim

        DIMS = {"rows": Dim(1, 512, default=64), "cols": Dim(8, 512, default=96)}

        class Model(nn.Module):
            def __init__(self, cols):
                super().__init__()
                self.register_buffer("scale", torch.full((cols, 32), SCALE))

            def forward(self, x):
                return x @ self.scale

        def get_inputs(rows=64, cols=96):
            return [torch.rand(rows, cols)]

        def get_init_inputs(cols=96):
            return [cols]
        """)
    folders, codes = set(), set()
    with core.fleet.device_lock.shared():
        for scale in ("2.0", "3.0"):
            session = core.session(TaskSource("scales", source.replace("SCALE", scale)))
            shape = compiled(session)
            assert not [b.failure for b in shape.baselines if b.failure]
            folders.add(session.folder)
            codes.add(tuple(baseline.code for baseline in shape.baselines))
            found = results(shape)
            assert "compile_default/1t" in found
            for name, values in found.items():
                torch.testing.assert_close(values, found["eager/1t"], msg=name)
    assert len(folders) == 2
    assert len(codes) == 1, "the compiler wrote different code: this shows nothing any more"


# -- damage --------------------------------------------------------------------------------------------------------


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeros(content: bytes) -> bytes:
    return bytes(len(content))


@dataclass(frozen=True)
class Loaded:
    """What a task that was just opened had of its baselines: names, failures, and which it compiled past what was kept."""

    names: list[str]
    failures: dict[str, str]
    anew: list[str]


def loaded(core: RefereeCore) -> Loaded:
    core._drop(TASK)
    anew: list[str] = []
    with core.fleet.device_lock.shared():
        session = core.session(TASK)
        prepare = session.prepare

        def noted(side: Side, baseline: Baseline, **how: bool) -> str:
            anew.extend([baseline.name] if how.get("anew") else [])
            return prepare(side, baseline, **how)

        session.prepare = noted  # type: ignore[method-assign]
        shape = compiled(session)
        found = results(shape)
        assert all(torch.allclose(found["eager/1t"], values, atol=1e-4) for values in found.values())
        failures = {baseline.name: baseline.failure for baseline in shape.baselines if baseline.failure}
        return Loaded([baseline.name for baseline in shape.baselines], failures, anew)


@pytest.mark.parametrize(
    ("damage", "ending"),
    [
        (cut_off, ".main.so"),
        (zeros, ""),
        (zeros, ".main.so"),
        (cut_off, ""),
        (cut_off, ".py"),
        (zeros, ".py"),
    ],
)
@pytest.mark.slow
def test_a_damaged_file_costs_no_baseline_and_is_made_again(
    core: RefereeCore, damage: Callable[[bytes], bytes], ending: str
) -> None:
    whole = loaded(core)
    assert not whole.failures
    folder = core.fleet.store / task_folder(TASK.sha256)
    files = [path for path in folder.rglob(f"*{ending}") if path.is_file()]
    assert files
    core._drop(TASK)
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    once, again = loaded(core), loaded(core)
    assert (once.names, once.failures) == (again.names, again.failures) == (whole.names, {})
    assert not again.anew
