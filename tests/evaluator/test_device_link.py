"""The link of chain.cu on the host, thread by thread: what it computes, and that its blocks agree upon when it began."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluator.devices.cuda import chain as device_chain
from evaluator.roles import chain
from evaluator.roles.chain import marked, stirred, when_of

SOURCE = Path(device_chain.__file__).with_suffix(".cu")
# Two groups of 32 threads for each block, instead of eight: one thread of the host stands for each.
_BLOCKS, _THREADS, _PER_LINK, _SAMPLES = 16, 64, 8, 1024
_BY_CLOCK, _GOES_ON = -1, -2
_WORD, _HALF = (1 << 64) - 1, (1 << 32) - 1
#: One thread of the host for each of a block; blocks come one after the other, in a given order.
_DEVICE = """
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>
#define __device__ static
#define __global__
#define __shared__ static
struct place_t { unsigned int x, y; };
static thread_local place_t threadIdx, blockIdx, gridDim, blockDim;
static std::barrier<> *together;
static unsigned long long lanes[256];
static void __syncthreads() { together->arrive_and_wait(); }
static unsigned long long __shfl_down_sync(unsigned, unsigned long long value, int by) {
    lanes[threadIdx.x] = value;
    __syncthreads();
    const unsigned long long found = lanes[threadIdx.x % 32 + by < 32 ? threadIdx.x + by : threadIdx.x];
    __syncthreads();
    return found;
}
/* What another block writes just before, unless it is 0. */
extern "C" { unsigned long long meanwhile; }
static unsigned long long atomicCAS(unsigned long long *at, unsigned long long seen, unsigned long long mine) {
    if (meanwhile) *at = meanwhile;
    std::atomic_ref<unsigned long long>(*at).compare_exchange_strong(seen, mine);
    return seen;
}
static void atomicAdd(unsigned long long *at, unsigned long long more) { std::atomic_ref<unsigned long long>(*at) += more; }
static std::atomic<long long> ticks;
static long long clock64() { return ticks += 1237; }
"""
_RUN = """
template <class Kernel> static void each(const int *order, int blocks, Kernel kernel) {
    for (int at = 0; at < blocks; ++at) {
        std::barrier<> all(THREADS);
        together = &all;
        std::vector<std::thread> threads;
        for (unsigned int t = 0; t < THREADS; ++t)
            threads.emplace_back([=] {
                threadIdx = {t, 0}, blockIdx = {(unsigned int)order[at], 0}, gridDim = {(unsigned int)blocks, 1};
                kernel();
            });
        for (auto &thread : threads) thread.join();
    }
}
extern "C" void run(const int *order, int blocks, const outputs_t *outputs, int outputs_count, const refresh_t *inputs,
                    int inputs_count, const unsigned long long *before, unsigned long long *after,
                    unsigned long long *word, int given) {
    each(order, blocks, [=] { kw_link(*outputs, outputs_count, inputs, inputs_count, before, after, word, given); });
}
extern "C" void look(const int *order, int calls, const unsigned long long *data, const unsigned long long *bytes,
                     int outputs_count, const unsigned long long *states, unsigned long long *broken) {
    each(order, calls, [=] { kw_broken(data, bytes, outputs_count, states, broken); });
}
"""


class Outputs(ctypes.Structure):
    """`outputs_t` of chain.cu."""

    _fields_ = [("data", ctypes.c_uint64 * _PER_LINK), ("bytes", ctypes.c_uint64 * _PER_LINK)]


class Words(ctypes.Structure):
    """The states before and after a link, and the word by which its blocks agree."""

    _fields_ = [("before", ctypes.c_uint64), ("after", ctypes.c_uint64), ("agreed", ctypes.c_uint64)]


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    clock = 'asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));'
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(clock) == 1
    text, threads = text.replace(clock, "time = 0;"), "#define THREADS 256\n"
    assert text.count(threads) == 1
    text = text.replace(threads, f"#define THREADS {_THREADS}\n")
    folder = tmp_path_factory.mktemp("link")
    (folder / "link.cpp").write_text(_DEVICE + text + _RUN, encoding="utf-8")
    command = [
        compiler,
        "-std=c++20",
        "-O1",
        "-w",
        "-shared",
        "-fPIC",
        "-pthread",
        "link.cpp",
        "-o",
        "link.so",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "link.so"))
    run = library.run

    def call(
        words: Words,
        outputs: list[np.ndarray[Any, Any]],
        inputs: Any = None,
        given: int = _BY_CLOCK,
        order: list[int] | None = None,
        meanwhile: int = 0,
    ) -> int:
        ctypes.c_uint64.in_dll(library, "meanwhile").value = meanwhile
        spans = Outputs()
        for index, output in enumerate(outputs):
            spans.data[index], spans.bytes[index] = output.ctypes.data, output.nbytes
        order = order or list(range(_BLOCKS))
        at = ctypes.addressof(words)
        where = [ctypes.c_void_p(at + offset) for offset in (0, 8, 16)]
        numbers = (ctypes.c_int * len(order))(*order)
        run(numbers, len(order), ctypes.byref(spans), len(outputs), inputs, len(inputs or []), *where, given)
        return words.after

    call.library = library  # type: ignore[attr-defined]
    return call


def _mix(state: int, value: int) -> int:
    return stirred(state & _WORD, value & _WORD)


def expected(outputs: list[np.ndarray[Any, Any]], state: int, when: int, *, goes_on: bool = False) -> int:
    """The state after a link, in other words than those of chain.cu."""
    state = state if goes_on else stirred(state, when)
    for output in outputs:
        data, length = output.tobytes(), output.nbytes
        total = 0
        if length <= chain.WHOLE_BYTES:
            for i in range(length // 4):
                total += _mix(state + i, int.from_bytes(data[4 * i : 4 * i + 4], "little"))
            for i in range(length % 4):
                total += _mix((state ^ _WORD) + i, data[length // 4 * 4 + i])
        else:
            stride = length // _SAMPLES
            offset = (_mix(state, length) >> 32) % (stride - 3)
            for i in range(_SAMPLES):
                at = offset + i * stride
                total += _mix(state + i, int.from_bytes(data[at : at + 4], "little"))
        state = _mix(state, total)
    return marked(state, when)


def outputs_of(*lengths: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 256, length, dtype=np.uint8) for length in lengths]


@pytest.mark.parametrize("lengths", [(4,), (1027,), (16384,), (1 << 18,), (70_001, 12, 300)])
def test_a_link_that_began_at_a_given_time(link: Any, lengths: tuple[int, ...]) -> None:
    outputs = outputs_of(*lengths)
    for when in (0, 1, 65535):
        words = Words(before=987654321987654321)
        after = link(words, outputs, given=when, order=[0, 1])
        assert after == expected(outputs, words.before, when)
        assert when_of(after) == when
        assert words.agreed == 0


def test_all_blocks_of_a_link_agree_upon_when_it_began(link: Any) -> None:
    """Each would read another time. What every one of them refreshes must follow from the same state."""
    outputs = outputs_of(1 << 16)
    pool = np.arange(1000, 1777, dtype=np.float32)
    seen = set()
    words = Words(before=1 << 40 | 3)
    orders: list[list[int]] = [list(range(_BLOCKS)), list(reversed(range(_BLOCKS)))]
    for order in orders:
        # More than two passes of all threads.
        data = np.zeros(7 * _BLOCKS * _THREADS, dtype=np.float32)
        table = (chain.Refresh * 1)()
        (entry,) = table
        entry.data, entry.pool, entry.item_bytes = data.ctypes.data, pool.ctypes.data, 4
        entry.count, entry.pool_count, entry.stride = data.size, pool.size, 3
        after = link(words, outputs, table, order=order)
        assert after == expected(outputs, words.before, when_of(after))
        assert words.agreed == marked(words.before, when_of(after))
        seed = _mix(after, 1)
        at = np.arange((seed >> 32) % 3, data.size, 3)
        wanted = np.zeros_like(data)
        wanted[at] = pool[((seed & _HALF) % pool.size + np.arange(at.size)) % pool.size]
        assert np.array_equal(data, wanted)
        seen.add(when_of(after))
        # What an earlier link has left in the word is of another state.
        words.before = after
    assert len(seen) == 2


def test_a_block_that_is_a_moment_too_late_takes_the_others_time(link: Any) -> None:
    outputs = outputs_of(1 << 16)
    words = Words(before=1 << 50, agreed=12345)
    after = link(words, outputs, order=[0], meanwhile=marked(1 << 50, 4242))
    assert after == expected(outputs, 1 << 50, 4242)


def test_places_depend_on_the_clock(link: Any) -> None:
    """From one state with the same output, as whoever prepares the looked-at words alone would need it."""
    outputs = outputs_of(1 << 18)
    afters = [link(Words(before=77 << 20), outputs, order=[0]) for _ in range(8)]
    assert len({when_of(after) for after in afters}) > 4
    assert len({after >> chain.WHEN_BITS for after in afters}) > 4


def test_a_link_in_two_parts_began_once(link: Any) -> None:
    first, second = outputs_of(1 << 16, 40), outputs_of(123, 1 << 17)
    words = Words(before=99 << 30)
    between = link(words, first, order=[1, 0])
    words.before = between
    agreed = words.agreed
    after = link(words, second, given=_GOES_ON, order=[0, 1])
    assert words.agreed == agreed
    when = when_of(between)
    assert after == expected(second, expected(first, 99 << 30, when), when, goes_on=True)


def test_a_refresh_alone_leaves_the_state_as_it_is(link: Any) -> None:
    """As before the first call, and where the referee repeats it."""
    for given, state in itertools.product((_GOES_ON,), (0, 5, (1 << 64) - 3)):
        assert link(Words(before=state), [], given=given, order=[0, 1]) == state


def broken(link: Any, rows: list[list[np.ndarray[Any, Any]]], states: list[int]) -> int:
    """After how many calls, of which these are the outputs, the state does not follow."""
    lengths = (ctypes.c_uint64 * len(rows[0]))(*[output.nbytes for output in rows[0]])
    data = (ctypes.c_uint64 * (len(rows) * len(rows[0])))(*[one.ctypes.data for row in rows for one in row])
    found, order = ctypes.c_uint64(), (ctypes.c_int * len(rows))(*range(len(rows)))
    claimed = (ctypes.c_uint64 * len(states))(*states)
    link.library.look(order, len(rows), data, lengths, len(rows[0]), claimed, ctypes.byref(found))
    return found.value


def test_every_link_of_a_block_is_looked_at(link: Any) -> None:
    """By one that goes on from a state of its own both parts of a block could be computed at a time."""
    rows = [outputs_of(1 << 15, 40, 7) for _ in range(6)]
    for number, row in enumerate(rows):
        row[1][0] = number
    words = Words(before=1 << 45)
    states = [words.before]
    for row in rows:
        words.before = link(words, row, order=[0])
        states.append(words.before)
    assert broken(link, rows, states) == 0
    # When it began, too, and a word that is looked at.
    for at, other in ((0, 1 << 46), (3, states[3] ^ 1 << 20), (3, states[3] ^ 1), (6, 0)):
        forged = [other if number == at else state for number, state in enumerate(states)]
        assert broken(link, rows, forged) == (1 if at in (0, 6) else 2)
    rows[4][2][6] ^= 1
    assert broken(link, rows, states) == 1
    # A part of its own in the middle, whose links are right among themselves.
    words.before, own = 5 << 40, [5 << 40]
    for row in rows[3:]:
        words.before = link(words, row, order=[0])
        own.append(words.before)
    assert broken(link, rows, [*states[:3], *own]) == 1


def test_links_of_many_outputs_are_looked_at_part_by_part(link: Any) -> None:
    rows = [outputs_of(*[20 + number for number in range(18)], 1 << 15) for _ in range(2)]
    words = Words(before=3 << 33)
    states = [words.before]
    for row in rows:
        for first in range(0, len(row), _PER_LINK):
            part = row[first : first + _PER_LINK]
            words.before = link(words, part, given=_GOES_ON if first else _BY_CLOCK, order=[0])
        states.append(words.before)
    assert broken(link, rows, states) == 0
    rows[1][17][0] ^= 1
    assert broken(link, rows, states) == 1
