"""A gate in front of a captured block, so that a GPU block is timed without any host process in the path.

The role queues a wait for a word in host memory, the CUDA graph, and the writing of another word, and is then
stopped. The referee writes contents, opens the gate, reads its clock, and reads it again when the other word
appears. With requests to and answers from the role, a block took 0.3 to 1.3 ms more than its work, with variation
(H200). With the gate it is 10 to 20 us, for blocks as short as 0.8 ms with outputs of 100 MB. Both ends use this
file.

A role can write the second word too early or start too early, just as it could answer too early. The referee
detects work outside a turn (:mod:`evaluator.referee.checking.watch`), and checks that outputs follow from the
state that is sent with the opening.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import time

from evaluator.devices.accelerator import device_gate
from evaluator.roles.arena import Arena

#: Offsets in the page: the word that opens the gate and the state that the block begins with; far from both, the
#: word that says that it is done; and behind them the states after each call.
_OPEN, _STATE, _DONE, _STATES = 0, 8, 256, 512
_LENGTH_BYTES = 16 << 10
#: Most calls in a gated block.
MOST_CALLS = (_LENGTH_BYTES - _STATES) // 8
#: How long the referee polls without a pause: a pause would be on the clock.
_SPIN_SECONDS = 0.5


class NeverDone(Exception):
    """A block did not end while its process was stopped."""


class Gate:
    """The referee's end."""

    def __init__(self) -> None:
        self._arena = Arena(_LENGTH_BYTES)
        self._words = memoryview(self._arena.memory).cast("I")
        self._longs = memoryview(self._arena.memory).cast("Q")
        self.token = 0
        self._armed = False

    @property
    def descriptor(self) -> int:
        """For the role."""
        return self._arena.descriptor

    def shut(self) -> int:
        """Returns the word that will open the gate. Work that still waits for the last word is released."""
        self.release()
        self.token = 1 + secrets.randbelow((1 << 32) - 2)
        self._armed = True
        return self.token

    def release(self) -> None:
        """Opens it for work that is no longer wanted."""
        if self._armed:
            self._words[_OPEN // 4] = self.token
            self._armed = False

    def run(self, state: int, deadline_s: float) -> int:
        """Opens it and waits for the end of the block.

        Args:
            state: that the chain begins with.
            deadline_s: how long to wait.

        Returns:
            Nanoseconds from opening to end.

        Raises:
            NeverDone: the deadline has passed.
        """
        words, token, done = self._words, self.token, _DONE // 4
        words[done] = 0
        self._longs[_STATE // 8] = state
        self._armed = False
        started = time.perf_counter_ns()
        words[_OPEN // 4] = token
        spin_until = started + int(min(_SPIN_SECONDS, deadline_s) * 1e9)
        while words[done] != token:
            if time.perf_counter_ns() > spin_until:
                self._wait(started + int(deadline_s * 1e9))
        return time.perf_counter_ns() - started

    def _wait(self, until_ns: int) -> None:
        while self._words[_DONE // 4] != self.token:
            if time.perf_counter_ns() > until_ns:
                raise NeverDone
            time.sleep(1e-4)

    def states(self, calls: int) -> tuple[int, ...]:
        """The chain's states after each call of the finished block."""
        first = _STATES // 8
        return tuple(self._longs[first : first + calls])

    def close(self) -> None:
        """Releases waiting work, and the memory."""
        self.release()
        self._words.release()
        self._longs.release()
        self._arena.close()


class Gated:
    """The role's end.

    Args:
        descriptor: from the referee; closed here.

    Raises:
        RuntimeError: the driver does not give a GPU access to the memory.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _LENGTH_BYTES)
        os.close(descriptor)
        host = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._address = device_gate.register(host, _LENGTH_BYTES)
        self._host = host
        self._longs = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Unmaps the memory from the GPU. No queued work uses it any more. Another gate may get its address."""
        self._longs.release()
        device_gate.unregister(self._host)

    @property
    def state_address(self) -> int:
        """Where kernels find the state that a block begins with."""
        return self._address + _STATE

    def begin(self, state: int) -> None:
        """Sets that state if the referee does not; through torch that would take 0.2 ms (H200)."""
        self._longs[_STATE // 8] = state

    def wait(self, token: int, stream: int) -> None:
        """Queues a wait for the word that opens the gate."""
        device_gate.wait_word(self._address + _OPEN, token, stream)

    def done(self, token: int, stream: int) -> None:
        """Queues the word that says that everything before it is done."""
        device_gate.write_word(self._address + _DONE, token, stream)

    def copy_states(self, address: int, count: int, stream: int) -> None:
        """Queues a copy of ``count`` states on the device to where the referee reads them."""
        device_gate.copy_to_host(self._host + _STATES, address, 8 * count, stream)

    def states(self, calls: int) -> list[int]:
        """What :meth:`copy_states` copied, once the device is done."""
        return self._longs[_STATES // 8 : _STATES // 8 + calls].tolist()
