"""The referee's end of one untrusted process: requests with deadlines, freezing, reading its memory, killing its
tree.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.errors import ProtocolViolation, RoleExited, RoleFailure, RoleReported, RoleTimeout
from evaluator.roles import frames, protocol
from evaluator.roles.kernel_view import Threads, members_of
from evaluator.sandbox import syscalls

_WORDS = {
    protocol.RUNTIME: "runtime_error",
    protocol.MEMORY: "out_of_memory",
    protocol.CONTRACT: "contract_violation",
    protocol.COMPILE: "compile_error",
}
_FREEZE_SECONDS = 2.0
_MEANWHILE_SECONDS = 0.05
_LOWEST_PRIORITY = 19
_KEPT_OUTPUT_BYTES, _MAX_OUTPUT_BYTES = 64 << 10, 16 << 20


class OutputDrain:
    """Reads what a process prints, keeps the last 64 KiB, and kills the process if it prints too much."""

    def __init__(self, descriptor: int, on_flood: Any) -> None:
        self._descriptor = descriptor
        self._on_flood = on_flood
        self.kept = b""
        self.total_bytes = 0
        self.flooded = False
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as source:
            while chunk := source.read(1 << 16):
                self.total_bytes += len(chunk)
                self.kept = (self.kept + chunk)[-_KEPT_OUTPUT_BYTES:]
                if self.total_bytes > _MAX_OUTPUT_BYTES and not self.flooded:
                    self.flooded = True
                    self._on_flood()

    def text(self) -> str:
        """The last part of its output (untrusted)."""
        self._thread.join(timeout=0.5)
        return self.kept.decode("utf-8", "replace")


class RoleProcess:
    """One sandboxed child of a fork server.

    Args:
        name: role name for messages: ``reference``, ``candidate``, ``compile`` or ``tool``.
        channel: requests and frames.
        control: line to PID 1 of its namespace (or a closed peer in the landlock tier).
        output: read end of the pipe that is its standard output and error.
        namespaced: whether the sandbox's own PID 1 runs beside it.
        watched_folder: a host folder the process may fill; above ``max_folder_bytes`` it is killed.
    """

    max_folder_bytes = 4 << 30

    def __init__(
        self,
        name: str,
        channel: socket.socket,
        control: socket.socket,
        output: int,
        *,
        namespaced: bool,
        watched_folder: Path | None = None,
    ) -> None:
        self.name = name
        self._channel = channel
        self._control = control
        self._namespaced = namespaced
        self._sequence = 0
        self._watched_folder = watched_folder
        self.pid = 0
        self._init_pid = 0
        self.frozen = False
        self.dead = False
        #: CPU time, in ns, that the process used while it was stopped: something other than the referee resumed
        #: it.
        self.ran_while_stopped_ns = 0
        #: How often it has been stopped.
        self.stops = 0
        #: What must not change in it, see :class:`evaluator.referee.session.landmarks.Landmarks`; None if not
        #: checked.
        self.landmarks: Any = None
        #: Monotonic time after which answers are not awaited: the end of the evaluation that this process serves.
        self.expires_at = math.inf
        #: On a GPU: what it shares with the referee, an :class:`evaluator.referee.memory.lending.ProcessMemory`.
        self.memory: Any = None
        #: Called repeatedly while an answer is awaited; returns for how many seconds it stopped the process. And
        #: their sum.
        self.meanwhile: Callable[[RoleProcess], float] | None = None
        self.paused_s = 0.0
        #: Whether its threads share one core with the referee, see :mod:`evaluator.timing.cores`.
        self.pinned = False
        #: By number of the shapes that are open in it: their
        #: :class:`evaluator.referee.sides.shape_inputs.ShapeInputs`.
        self.modules: dict[int, Any] = {}
        self._threads = Threads(0)
        self.drain = OutputDrain(output, self.kill)
        for line in (channel, control):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def greet(self, deadline_s: float) -> None:
        """Waits until the process is sandboxed. The kernel reports its process ids as seen by the referee."""
        self._init_pid = self._receive_credentials(self._control, 5, deadline_s)[0]
        self.pid = self._receive_credentials(self._channel, 1, deadline_s)[0]
        self._threads = Threads(self.pid)

    def _receive_credentials(self, line: socket.socket, length: int, deadline_s: float) -> tuple[int, bytes]:
        line.settimeout(deadline_s)
        try:
            data, ancillary, _, _ = line.recvmsg(length, socket.CMSG_SPACE(12))
        except TimeoutError:
            self.kill()
            raise RoleTimeout(
                "not_judged",
                f"the {self.name} process did not start in {deadline_s:.0f} s; try again, or run fewer side by side",
                role=self.name,
            ) from None
        finally:
            line.settimeout(None)
        for level, kind, content in ancillary if data else ():
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                return struct.unpack("3i", content)[0], data
        self.kill()
        raise RoleExited(
            "not_judged",
            f"the {self.name} process ended during its setup; try again, or see `kernelwright doctor`",
            self.drain.text(),
            role=self.name,
        )

    # -- requests ----------------------------------------------------------------------------------------------

    def send(self, operation: int, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> int:
        """Queues a request (the process may be frozen) and returns its sequence number."""
        self._sequence += 1
        message = {**request, "op": operation, "seq": self._sequence}
        try:
            protocol.send_request(self._channel, message, descriptors)
        except (BrokenPipeError, ConnectionError):
            raise self._ended() from None
        return self._sequence

    def receive(self, operation: int, sequence: int, deadline_s: float) -> bytes:
        """Waits for the answer to a request.

        Raises:
            RoleTimeout, RoleExited, RoleReported, ProtocolViolation: see :mod:`evaluator.errors`.
        """
        limit = min(time.monotonic() + deadline_s, self.expires_at)
        deadline_s = max(limit - time.monotonic(), 0.0)
        try:
            header = self._read(frames.HEADER_BYTES, limit, deadline_s)
            status, length = frames.decode_header(header, operation, sequence)
            payload = self._read(length, limit, deadline_s)
        except frames.FrameError as error:
            self.kill()
            raise ProtocolViolation(
                "contract_violation",
                f"the {self.name} process answered with an invalid frame ({error}): the module must not use files that it did not open",
                role=self.name,
            ) from None
        if status == frames.STATUS_ERROR:
            self._raise_reported(payload)
        return payload

    def answers_within(self, seconds: float) -> bool:
        """Whether an answer, or the end of the process, can be read by then. Does not read it."""
        return bool(select.select([self._channel], [], [], seconds)[0])

    def request(
        self, operation: int, request: dict[str, Any], deadline_s: float, descriptors: tuple[int, ...] = ()
    ) -> bytes:
        """Sends and waits, thawing the process first if it is frozen."""
        if self.frozen:
            self.thaw()
        return self.receive(operation, self.send(operation, request, descriptors), deadline_s)

    def request_json(
        self, operation: int, request: dict[str, Any], deadline_s: float, descriptors: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """A request whose answer is a JSON object (never used for what decides a verdict)."""
        payload = self.request(operation, request, deadline_s, descriptors)
        try:
            answer = json.loads(payload)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self.kill()
            raise ProtocolViolation(
                "contract_violation", f"the {self.name} process sent no valid description", role=self.name
            )
        return answer

    def _read(self, length: int, limit: float, deadline_s: float) -> bytes:
        parts: list[bytes] = []
        longest = 1.0 if self.meanwhile is None else _MEANWHILE_SECONDS
        look_at = time.monotonic() + 1.0
        while length:
            remaining = limit - time.monotonic()
            wait = min(max(remaining, 0), longest)
            ready, _, _ = select.select([self._channel], [], [], wait)
            if not ready:
                if self.meanwhile is not None:
                    paused_s = self.meanwhile(self)
                    self.paused_s, limit, remaining = (
                        self.paused_s + paused_s,
                        limit + paused_s,
                        remaining + paused_s,
                    )
                if time.monotonic() > look_at:
                    look_at = time.monotonic() + 1.0
                    self._check_folder()
                if remaining <= 0:
                    self.kill()
                    raise RoleTimeout(
                        "timeout",
                        f"it did not finish within its deadline ({deadline_s:.0f} s)",
                        role=self.name,
                    )
                continue
            try:
                part = self._channel.recv(min(length, 1 << 18))
            except ConnectionError:
                part = b""
            if not part:
                raise self._ended()
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _check_folder(self) -> None:
        if self._watched_folder is None:
            return
        total = sum(entry.stat().st_size for entry in self._watched_folder.rglob("*") if entry.is_file())
        if total > self.max_folder_bytes:
            self.kill()
            raise RoleFailure(
                "runtime_error",
                f"it wrote more than {self.max_folder_bytes >> 30} GiB of files",
                role=self.name,
            )

    def _raise_reported(self, payload: bytes) -> None:
        word = _WORDS.get(payload[0] if payload else 0, "runtime_error")
        text = payload[1:].decode("utf-8", "replace")
        first, _, detail = text.partition("\n")
        if word == "out_of_memory":
            first = f"it asked for more memory than the limit allows: {first}"
        elif "Operation not permitted" in first and "socket" in text:
            first = "it reached for the network, which does not exist in the sandbox"
        elif "Resource temporarily unavailable" in first and "fork" in text:
            first = "it started more processes than the limit allows"
        raise RoleReported(word, first[:600], detail, role=self.name)

    def _ended(self) -> RoleFailure:
        """Why a process has ended, as far as it can be determined."""
        flooded = self.drain.flooded
        self.kill()
        printed = self.drain.text()
        if flooded:
            return RoleExited(
                "runtime_error",
                f"it printed more than {_MAX_OUTPUT_BYTES >> 20} MiB",
                printed[-2000:],
                role=self.name,
            )
        if "alloc" in printed[-4000:] and "memory" in printed[-4000:].lower():
            return RoleExited(
                "out_of_memory",
                "it ended when memory could not be allocated",
                printed[-2000:],
                role=self.name,
            )
        return RoleExited(
            "runtime_error",
            "its process ended before it answered (crash or exit)",
            printed[-2000:],
            role=self.name,
        )

    # -- freezing and reading ----------------------------------------------------------------------------------

    def freeze(self) -> int:
        """Stops every thread of the process, waits for the kernel's confirmation, and returns when that was.

        The signal stops all threads at once, within microseconds. Polling each of them takes the referee longer
        the more there are, and that is not the process's time. So the answer is the moment before the poll that
        found all stopped.

        Returns:
            ``time.perf_counter_ns()`` of that moment.
        """
        stopped_ns = time.perf_counter_ns()
        if self.frozen or self.dead:
            return stopped_ns
        self._signal(signal.SIGSTOP)
        limit = time.monotonic() + _FREEZE_SECONDS
        tries = 0
        while True:
            stopped_ns = time.perf_counter_ns()
            if self._all_stopped():
                break
            # Stopping takes microseconds on an idle machine. On a busy one, let the process be scheduled so that
            # it can stop.
            tries += 1
            if self.pinned:
                os.sched_yield()  # they stop on the core of this process
            elif tries > 20:
                time.sleep(50e-6)
            if time.monotonic() > limit:
                self.kill()
                raise RoleFailure("runtime_error", "its process could not be stopped", role=self.name)
        self.frozen = True
        self.stops += 1
        self._threads.begin_rest()
        return stopped_ns

    def thaw(self) -> None:
        """Resumes the process."""
        self.check_rest()
        self.frozen = False
        self._signal(signal.SIGCONT)

    def check_rest(self) -> int:
        """The ns that the stopped process has run nevertheless, over all its stops so far.

        A continue signal may come from elsewhere than the referee: from a kernel timer, for example.
        """
        if self.frozen and not self.dead:
            self.ran_while_stopped_ns += self._threads.ran_ns()
        return self.ran_while_stopped_ns

    def _signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            raise self._ended() from None

    def _all_stopped(self) -> bool:
        try:
            return self._threads.all_stopped()
        except ProcessLookupError:
            raise self._ended() from None

    def stop_others(self) -> int:
        """Stops every other process of the sandbox and returns how many there are (0 for an honest candidate)."""
        if not self._namespaced:
            return self._signal_others(signal.SIGSTOP)
        return self._ask_init(b"?") and self._ask_init(b"S")

    def take_lowest_priority(self) -> None:
        """Lets everything else on the machine compute first.

        Call it before the first request: child processes inherit it.
        """
        os.setpriority(os.PRIO_PROCESS, self.pid, _LOWEST_PRIORITY)

    def continue_others(self) -> None:
        """Resumes the processes that :meth:`stop_others` stopped."""
        _ = self._ask_init(b"C") if self._namespaced else self._signal_others(signal.SIGCONT)

    def _signal_others(self, number: int) -> int:
        others = [pid for pid in members_of(self.pid) if pid != self.pid]
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(others)

    def _ask_init(self, command: bytes) -> int:
        self._control.settimeout(_FREEZE_SECONDS)
        try:
            self._control.send(command)
            answer = self._control.recv(5)
        except OSError:
            answer = b""
        if len(answer) != 5 or answer[:1] != b"A":
            raise self._ended()
        return int.from_bytes(answer[1:], "little")

    def read_memory(self, address: int, length_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A private copy of the process's memory; freeze it first.

        Raises:
            RoleFailure: the claimed range is not readable memory of the process.
        """
        target = np.empty(length_bytes, dtype=np.uint8)
        if length_bytes:
            try:
                syscalls.process_vm_read(self.pid, address, target.data)
            except OSError as error:
                raise ProtocolViolation(
                    "contract_violation",
                    f"the claimed output is not readable memory of the process: {error}",
                    role=self.name,
                ) from None
        return target

    def watch_end(self) -> int:
        """A descriptor that becomes readable once the process and all its descendants have ended; -1 if that is
        unknown.

        The PID 1 of a namespace ends last, after every process in it.
        """
        if not self._namespaced or self._init_pid <= 1:
            return -1
        try:
            return os.pidfd_open(self._init_pid)
        except ProcessLookupError:
            # It has already ended; the next request will say so.
            return -1

    def kill(self) -> None:
        """Kills the process and all its descendants; safe from any thread and more than once."""
        if self.dead:
            return
        self.dead = True
        victims = [self._init_pid, self.pid]
        if not self._namespaced:
            victims += members_of(self.pid)
        for pid in victims:
            if pid > 1:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills the process and closes the lines to it."""
        self.kill()
        if self.memory is not None:
            self.memory.close()
            self.memory = None
        self._threads.close()
        self._channel.close()
        self._control.close()
