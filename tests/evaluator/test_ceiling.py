"""Times below what writing the outputs takes: who is accused, who is not, and one who maps the same memory many times over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from evaluator.referee.checking.correctness import cases, check
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.measuring.ceiling import check_written, faster_than_memory, write_rate, written_bytes
from evaluator.referee.measuring.verify import Checker
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Outcome, Rejected
from evaluator.referee.sides.side import Side
from evaluator.shapes.space import defaults
from evaluator.sources import TaskSource
from tests.evaluator.judging import candidate, task

pytestmark = pytest.mark.timeout(240)

#: 64 KiB come in, 32 MiB go out.
REPEAT = task("""
    class Model(nn.Module):
        def forward(self, x):
            return (x * 2).repeat(512, 1)

    def get_inputs():
        return [torch.randn(16, 1024)]

    def get_init_inputs():
        return []
""")

#: Every result is 512 times the same 16 pages: right to the bit, and one write changes 512 rows.
ALIASED_PAGES = """
    import ctypes, os, tempfile

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    PART, TIMES, VIEWS = 16 * 1024 * 4, 512, 30
    READ_WRITE, SHARED, FIXED, ANONYMOUS, POPULATE = 3, 0x01, 0x10, 0x20, 0x8000

    def view():
        file = tempfile.TemporaryFile()
        file.truncate(PART)
        start = libc.mmap(None, PART * TIMES, READ_WRITE, SHARED | ANONYMOUS, -1, 0)
        for at in range(start, start + PART * TIMES, PART):
            libc.mmap(at, PART, READ_WRITE, SHARED | FIXED | POPULATE, file.fileno(), 0)
        memory = (ctypes.c_char * (PART * TIMES)).from_address(start)
        whole = torch.frombuffer(memory, dtype=torch.float32).view(16 * TIMES, 1024)
        return whole[:16], whole

    class ModelNew(nn.Module):
        def __init__(self):
            super().__init__()
            self.views, self.next = [view() for _ in range(VIEWS)], 0

        def forward(self, x):
            part, whole = self.views[self.next]
            self.next = (self.next + 1) % VIEWS
            torch.mul(x, 2, out=part)
            return whole
"""

#: Honest: almost all of the result is memory that the operating system hands out as zeros and nobody has touched.
SPARSE = task("""
    class Model(nn.Module):
        def forward(self, x):
            y = torch.zeros(1024, 1024)
            y[:16] = x
            return y

    def get_inputs():
        return [torch.randn(16, 1024)]

    def get_init_inputs():
        return []
""")
UNTOUCHED = """
    import ctypes, mmap

    class ModelNew(nn.Module):
        def forward(self, x):
            y = torch.frombuffer(mmap.mmap(-1, 1024 * 1024 * 4), dtype=torch.float32).view(1024, 1024)
            y[:16] = x
            return y
"""


def test_who_beats_memory_every_time_is_accused_and_nobody_else() -> None:
    gigabyte = 10**9
    # At 100 GB/s a gigabyte takes 10 ms, and with what is allowed for 6.7 ms.
    assert faster_than_memory([(6_000_000, gigabyte)] * 5, 100e9)
    assert not faster_than_memory([(7_000_000, gigabyte)] * 5, 100e9)
    # A neighbor on the core slows single blocks; a clock that was wrong now and then accuses nobody.
    assert faster_than_memory([(6_000_000, gigabyte)] * 4 + [(9_000_000, gigabyte)], 100e9)
    assert not faster_than_memory([(6_000_000, gigabyte)] * 3 + [(9_000_000, gigabyte)] * 2, 100e9)
    assert not faster_than_memory([(1, 0)] * 5, 100e9)


@pytest.fixture
def opened(core: RefereeCore) -> Iterator[Any]:
    """Opens a task's default shape for a candidate; gives its side and the checker of its timed blocks."""
    runs = []

    def open_for(source: TaskSource, body: str | None = None) -> tuple[Side, Checker]:
        session = core.session(source)
        shape = session.open(defaults(session.space))
        run = CandidateRun(core.fleet, session, candidate(body) if body else twin(source))
        runs.append(run)
        run.start()
        side, outcome = run.open(shape), Outcome()
        check(side, shape, cases(session, shape)[:1], outcome)
        return side, Checker(session, shape, side, outcome)

    with core.fleet.device_lock.exclusive():
        yield open_for
        for run in runs:
            run.close()


def test_the_rate_is_kept_and_never_falls(core: RefereeCore) -> None:
    first = write_rate(core.fleet)
    assert 1e9 < first < 1e13
    assert write_rate(core.fleet) == first
    assert write_rate(core.fleet, again=True) >= first


@pytest.mark.slow
def test_what_a_block_must_have_written(opened: Any) -> None:
    part = 16 * 1024 * 4
    side, checker = opened(REPEAT)
    assert written_bytes(side, checker.run(3)) == 3 * 512 * part
    side, checker = opened(SPARSE, UNTOUCHED)
    # The untouched pages do not count.
    assert written_bytes(side, checker.run(3)) == pytest.approx(3 * part, rel=0.1)


@pytest.mark.alone
@pytest.mark.slow
def test_an_honest_candidate_is_above_the_ceiling_and_one_far_below_it_is_rejected(opened: Any) -> None:
    """The second time is a planted one; what follows it is measured."""
    _, checker = opened(REPEAT)
    elapsed_ns = checker.run(4).elapsed_ns
    check_written(checker, 4, [(elapsed_ns, 4)])
    before = checker.outcome.checks
    check_written(checker, 4, [(1000, 4)])
    assert checker.outcome.checks > before
    _, checker = opened(REPEAT, ALIASED_PAGES)

    def look_several_times() -> None:
        # It is only quicker than memory while nobody else has its core.
        for _ in range(8):
            check_written(checker, 24, [(checker.run(24).elapsed_ns, 24)])

    with pytest.raises(Rejected) as rejected:
        look_several_times()
    assert rejected.value.word == "cheating"
    finding = rejected.value.finding
    assert finding.rule == "faster_than_memory"
    assert "GB/s" in finding.evidence
