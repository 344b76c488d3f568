"""The referee's end of the gate against a process that plays the GPU's part: waits for a word, writes states and a word."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from evaluator.roles import gate as gates
from evaluator.roles.gate import Gate, NeverDone

pytestmark = pytest.mark.alone


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def _beside(gate: Gate, play: Callable[[mmap.mmap], None]) -> int:
    """Plays in a process of its own, which shares nothing but the descriptor."""
    child = os.fork()
    if child == 0:
        play(mmap.mmap(gate.descriptor, gates._LENGTH_BYTES))
        os._exit(0)
    return child


def _word(memory: mmap.mmap, offset: int) -> int:
    return int(struct.unpack_from("<I", memory, offset)[0])


def _wait(memory: mmap.mmap, token: int) -> None:
    while _word(memory, gates._OPEN) != token:
        time.sleep(1e-4)


def test_clock_runs_from_the_opening_to_the_word_that_says_done(gate: Gate) -> None:
    token = gate.shut()

    def play(memory: mmap.mmap) -> None:
        _wait(memory, token)
        (state,) = struct.unpack_from("<Q", memory, gates._STATE)
        struct.pack_into("<3Q", memory, gates._STATES, state + 1, state + 2, (1 << 64) - 1)
        time.sleep(0.05)
        struct.pack_into("<I", memory, gates._DONE, token)

    child = _beside(gate, play)
    time.sleep(0.5)
    elapsed_ns = gate.run(77, 10.0)
    os.waitpid(child, 0)
    # The 0.5 s before it was opened are not on the clock.
    assert 0.05e9 <= elapsed_ns < 0.5e9
    assert gate.states(3) == (78, 79, (1 << 64) - 1)


def test_the_word_of_an_earlier_block_ends_nothing(gate: Gate) -> None:
    first = gate.shut()
    child = _beside(gate, lambda memory: struct.pack_into("<I", memory, gates._DONE, first))
    os.waitpid(child, 0)
    gate.shut()
    with pytest.raises(NeverDone):
        gate.run(0, 0.05)


def test_done_before_the_opening_is_forgotten(gate: Gate) -> None:
    token = gate.shut()
    child = _beside(gate, lambda memory: struct.pack_into("<I", memory, gates._DONE, token))
    os.waitpid(child, 0)
    with pytest.raises(NeverDone):
        gate.run(0, 0.05)


def test_what_waits_is_let_go_when_something_else_is_wanted(gate: Gate) -> None:
    token = gate.shut()
    child = _beside(gate, lambda memory: _wait(memory, token))
    assert gate.shut() != token
    assert os.waitpid(child, 0)[1] == 0


def test_waits_beyond_the_time_in_which_it_asks_without_a_pause(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_SPIN_SECONDS", 0.01)
    token = gate.shut()

    def play(memory: mmap.mmap) -> None:
        _wait(memory, token)
        time.sleep(0.1)
        struct.pack_into("<I", memory, gates._DONE, token)

    child = _beside(gate, play)
    assert gate.run(0, 10.0) >= 0.1e9
    os.waitpid(child, 0)
