"""What compilers leave in a candidate's process reaches its next process, nobody else's, and within limits."""

from __future__ import annotations

import json
import os
import runpy
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.processes.compiled_for_candidates import KeptFiles
from evaluator.request import Request
from evaluator.roles import compiled_files
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from tests.evaluator import judging
from tests.variants import some

MODEL = """
    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    def get_inputs():
        return [torch.randn(8, 8)]

    def get_init_inputs():
        return []
"""
#: The word by which the referee knows that files are worth keeping: triton. On a CPU it compiles nothing, so a
#: file of the candidate's own stands for what it compiles on a GPU.
CANDIDATE = """
    import os
    from pathlib import Path

    folder = Path(os.environ["TRITON_CACHE_DIR"])
    {}

    class ModelNew(nn.Module):  # would use triton on a GPU
        def forward(self, x):
            return x * 2
"""
LEAVES_ONE = """
    if (folder / "AB" / "kernel.cubin").exists():
        raise RuntimeError("compiled before: " + (folder / "AB" / "kernel.cubin").read_text())
    (folder / "AB").mkdir(parents=True)
    (folder / "AB" / "kernel.cubin").write_text("machine code")
"""


@pytest.fixture(scope="module")
def core(core: RefereeCore, tmp_path_factory: pytest.TempPathFactory) -> RefereeCore:
    """One that has kept nothing."""
    core.fleet.kept_files = KeptFiles(tmp_path_factory.mktemp("kept"))
    return core


def source(lines: str, after: str = "") -> CandidateSource:
    body = CANDIDATE.replace("{}", lines.strip()) + after
    return judging.candidate(body)


def judge(core: RefereeCore, task: TaskSource, candidate: CandidateSource) -> Verdict:
    request = Request(task, candidate, "screen", ("adversarial",), {"adversarial": [{}]}, 60.0)
    return core.evaluate(request, lambda *_: None)


def kept_bytes(core: RefereeCore) -> list[bytes]:
    store = core.fleet.kept_files
    return [store.get(path.name) for path in store.folder.iterdir()]


def test_the_next_process_of_the_same_candidate_gets_the_files_and_no_other(core: RefereeCore) -> None:
    task, other_task = judging.task(MODEL), judging.task(MODEL + "\n    # another text\n")
    candidate = source(LEAVES_ONE)
    first = judge(core, task, candidate)
    assert first.verdict == "accepted", first.reason
    assert "compiled_before" not in judging.rules(first)

    again = judge(core, task, candidate)
    assert again.verdict == "runtime_error"
    assert "compiled before: machine code" in again.reason

    assert judge(core, other_task, candidate).verdict == "accepted"
    assert judge(core, task, source(LEAVES_ONE, "\n    # another text\n")).verdict == "accepted"


def test_a_verdict_says_that_its_first_call_found_compiled_files(core: RefereeCore) -> None:
    task = judging.task(MODEL)
    candidate = source('folder.mkdir(exist_ok=True); (folder / "kernel.cubin").write_text("same")')
    assert "compiled_before" not in judging.rules(judge(core, task, candidate))
    assert "compiled_before" in judging.rules(judge(core, task, candidate))


def test_a_process_that_is_watched_gets_the_files_and_leaves_nothing(core: RefereeCore) -> None:
    from evaluator.referee.session.candidate import CandidateRun

    task, candidate = judging.task(MODEL), source(LEAVES_ONE, "\n    # watched\n")
    assert judge(core, task, candidate).verdict == "accepted"
    run = CandidateRun(core.fleet, core.session(task), candidate)
    twin = run.watched_twin(float("inf"))
    try:
        with pytest.raises(Exception, match="compiled before"):
            twin.start()
        assert not twin.given_files, "nothing that is timed rests on them"
        before = kept_bytes(core)
        twin.keep_files()
        assert kept_bytes(core) == before
    finally:
        twin.close()


HOSTILE = """
    from evaluator.roles import compiled_files
    folder.mkdir()
    (folder / "kernel.cubin").write_text("x")
    compiled_files.pack = {}
"""


@pytest.mark.parametrize("claim", ["1 << 40", "-1", "True", "'many'"])
def test_impossible_sizes_are_the_candidates_fault(core: RefereeCore, claim: str) -> None:
    verdict = judge(core, judging.task(MODEL), source(HOSTILE.replace("{}", f"lambda *_: {claim}")))
    assert verdict.verdict == "contract_violation"
    assert "files of an impossible size" in verdict.reason


TOO_MUCH = """
    from evaluator.roles import compiled_files

    def too_much(work, descriptor, most, known):
        for attempt in (
            lambda: os.ftruncate(descriptor, most + 1),
            lambda: os.ftruncate(descriptor, 1),
            lambda: os.pwrite(descriptor, b"x", most),
        ):
            try:
                attempt()
            except OSError:
                continue
            return -1  # it worked, which the referee calls a violation
        raise OSError("nothing of it worked")

    compiled_files.pack = too_much
"""


def test_nobody_writes_beyond_the_limit_or_changes_the_size(core: RefereeCore) -> None:
    before = kept_bytes(core)
    verdict = judge(core, judging.task(MODEL), source(TOO_MUCH))
    assert verdict.verdict == "accepted", verdict.reason
    assert kept_bytes(core) == before


def test_what_is_kept_is_never_looked_into(core: RefereeCore) -> None:
    """Bytes that no packer wrote break only the process that gets them, which is the one that wrote them."""
    task, lines = judging.task(MODEL), HOSTILE.replace("{}", "lambda work, to, *_: os.pwrite(to, b'ruin', 0)")
    assert judge(core, task, source(lines)).verdict == "accepted"
    assert b"ruin" in kept_bytes(core)
    assert judge(core, task, source(lines)).verdict == "runtime_error"


def packed(work: Path, most_bytes: int = 1 << 20, known: frozenset[str] = frozenset()) -> bytes:
    descriptor = os.memfd_create("packed")
    try:
        length = compiled_files.pack(str(work), descriptor, most_bytes, known)
        return os.pread(descriptor, length, 0)
    finally:
        os.close(descriptor)


def unpacked(data: bytes, work: Path) -> frozenset[str]:
    descriptor = os.memfd_create("unpacked")
    try:
        os.write(descriptor, data)
        return compiled_files.unpack(descriptor, str(work))
    finally:
        os.close(descriptor)


def test_only_regular_files_of_the_compilers_are_packed(tmp_path: Path) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (work / "triton" / "AB").mkdir(parents=True)
    (work / "triton" / "AB" / "kernel.ptx").write_bytes(b"\0code")
    (work / "triton" / "link").symlink_to(secret / "key")
    (work / "triton" / "linked").symlink_to(secret)
    (work / "inductor").symlink_to(secret)
    os.mkfifo(work / "triton" / "pipe")
    (work / "notes").write_text("not a compiler's")
    target = tmp_path / "next"
    assert unpacked(packed(work), target) == {"triton/AB/kernel.ptx"}
    assert [path for path in target.rglob("*") if path.is_file()] == [target / "triton" / "AB" / "kernel.ptx"]
    assert (target / "triton" / "AB" / "kernel.ptx").read_bytes() == b"\0code"


def test_limits_hold_and_nothing_new_is_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "triton").mkdir(parents=True)
    for number in range(4):
        (work / "triton" / str(number)).write_bytes(b"x" * 1000)
        os.utime(work / "triton" / str(number), (number, number))
    some = packed(work, 2500)
    assert len(some) <= 2500
    known = unpacked(some, tmp_path / "next")
    assert known == {"triton/0", "triton/1"}, "the oldest come first"
    assert packed(work, 2500, known) == b""
    assert len(packed(work, 1 << 20, known)) > 4000
    assert packed(tmp_path / "absent") == b""
    assert unpacked(b"", tmp_path / "next") == frozenset()


def test_whole_paths_in_lists_of_files_follow_the_work_folder(tmp_path: Path) -> None:
    work, later = tmp_path / "work", tmp_path / "later"
    group = work / "triton" / "AB" / "__grp__kernel.json"
    group.parent.mkdir(parents=True)
    group.write_text(json.dumps({"child_paths": {"kernel.ptx": f"{work}/triton/AB/kernel.ptx"}}))
    unpacked(packed(work), later)
    paths = json.loads((later / "triton" / "AB" / "__grp__kernel.json").read_text())["child_paths"]
    assert paths == {"kernel.ptx": f"{later}/triton/AB/kernel.ptx"}


COMPILES = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def kernel(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)

signature = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}
source = ASTSource(fn=kernel, signature=signature, constexprs={(2,): 64})
triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="pip install triton")
def test_triton_finds_its_own_files_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled for a GPU that need not be here; the first folder is gone when the second compilation looks."""
    program, found = tmp_path / "compiles.py", list[bool]()
    program.write_text(COMPILES)
    monkeypatch.setattr(
        "triton.knobs.compilation.listener", lambda cache_hit, **_: found.append(bool(cache_hit))
    )

    def compile_in(work: Path) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(work / "triton"))
        runpy.run_path(str(program))

    compile_in(tmp_path / "first")
    data = packed(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    compile_in(tmp_path / "unrelated")
    unpacked(data, tmp_path / "second")
    compile_in(tmp_path / "second")
    assert found == [False, False, True]


def test_the_store_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = KeptFiles(tmp_path / "compiled", most_bytes=3100)
    versions = {"torch": "2.11", "triton": "3.6"}
    keys = [store.key(name, "task", versions) for name in ("a", "b", "c", "d")]
    for age, key in enumerate(keys[:3]):
        store.put(key, b"x" * 1000)
        os.utime(store.folder / key, (1000 + age, 1000 + age))
    assert store.get(keys[0])  # used now, so that the second is the oldest
    store.put(keys[3], b"y" * 1000)
    assert [bool(store.get(key)) for key in keys] == [True, False, True, True]
    assert store.key("a", "task", {**versions, "triton": "3.7"}) != keys[0]
    assert store.key("a", "another task", versions) != keys[0]


@pytest.mark.parametrize(
    "damage", some(["cut off", "a bit", "swapped", pytest.param("empty", marks=pytest.mark.slow)], 4)
)
def test_a_damaged_file_is_nobody_s_fault_and_made_again(core: RefereeCore, damage: str) -> None:
    """Unpacked in the candidate's process it was called the candidate's own failure, for as long as the file was there."""
    task = judging.task(MODEL)
    lines = 'folder.mkdir(exist_ok=True); (folder / "kernel.cubin").write_text("same")'
    candidate, other = source(lines, f"\n    # {damage}\n"), source(lines, f"\n    # beside {damage}\n")
    store, environment = core.fleet.kept_files, core.fleet.environment()
    for one in (candidate, other):
        assert judge(core, task, one).verdict == "accepted"
    file, others = (store.folder / store.key(c.sha256, task.sha256, environment) for c in (candidate, other))
    content = file.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    file.write_bytes(
        {"cut off": content[:-3], "a bit": changed, "swapped": others.read_bytes(), "empty": b""}[damage]
    )
    verdict = judge(core, task, candidate)
    assert verdict.verdict == "accepted", verdict.reason
    assert "compiled_before" not in judging.rules(verdict)
    assert "compiled_before" in judging.rules(judge(core, task, candidate))
