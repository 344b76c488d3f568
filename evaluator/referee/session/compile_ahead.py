"""Compiles a task's baselines ahead, several at once in separate processes.

Compiled files stay in the task's folder.

A compiler takes 2 to 15 s for a module's default mode and 30 to 40 s to tune (H200), but 1 s to load what another
process has compiled. So dedicated processes compile the shapes, spread over the host's cores, and the session's
process loads the results. Some work is needed at once. Some runs in the background: the expensive modes at shapes
that a job will choose by.

A timing evaluation has the device to itself. During compilation, the device's lock is held shared. As soon as
another program waits for the lock, all compiling processes are stopped until it is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from evaluator.baselines import MODES
from evaluator.errors import RoleFailure
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.sides.open_shape import Baseline, OpenShape, freeze_dims
from evaluator.referee.sides.side import Side
from evaluator.roles.process import RoleProcess
from evaluator.shapes.space import Dims
from evaluator.timing.exclusive import Hold

_log = logging.getLogger(__name__)
_LOOK_SECONDS, _STOP_SECONDS, _CLOSE_SECONDS = 0.05, 5.0, 1.0
#: Device memory of a compiling process's context.
_CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True)
class Work:
    """The baselines of one shape that one process compiles.

    Attributes:
        dims: the shape.
        baselines: the ones that need a compiler.
        needs_bytes: of the device's memory.
        can_wait: no evaluation waits for it now, so a candidate's own compiler gets the cores first.
    """

    dims: Dims
    baselines: tuple[str, ...]
    needs_bytes: int = 0
    can_wait: bool = False

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        """Keys of what this work completes."""
        return [(freeze_dims(self.dims), name) for name in self.baselines]


class Compiles(Protocol):
    """Opens shapes of a task in processes, and compiles baselines there."""

    @property
    def fleet(self) -> Fleet:
        """The processes and their device."""

    def start_process(self, server: str, begun: Callable[[RoleProcess], None]) -> RoleProcess:
        """A process with the task loaded. ``begun`` gets the process before the task is loaded."""

    def open_lean(self, process: RoleProcess, dims: Dims) -> OpenShape:
        """Opens a shape in a process that only compiles for it."""

    def close_lean(self, opened: OpenShape) -> None:
        """Releases its memory."""

    def every_baseline(self, shape: OpenShape) -> list[Baseline]:
        """Every way to run the reference at a shape."""

    def prepare(self, side: Side, baseline: Baseline) -> str:
        """Compiles a baseline."""


class CompileAhead:
    """The compiling processes of one session.

    Args:
        session: of the task; opens shapes in processes.
        budget_bytes: device memory available to all of them now; 0 on a CPU, where memory is not limited here.
    """

    def __init__(self, session: Compiles, budget_bytes: Callable[[], int]) -> None:
        self._session = session
        self._budget = budget_bytes
        self._guard = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: dict[int, Work] = {}
        self._done: set[tuple[Any, ...]] = set()
        self._processes: dict[int, RoleProcess] = {}
        self._threads: set[threading.Thread] = set()
        self._stopped: set[int] = set()
        #: A caller is waiting for work.
        self._awaited = False
        #: A waiting caller keeps the device even if others want it.
        self._has_device = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()
        self._closing = False
        self._supervisor: threading.Thread | None = None

    # -- asking --------------------------------------------------------------------------------------------------

    def begin(self, work: Iterable[Work], *, first: bool = False) -> None:
        """Compiles in the background: after earlier requests, or ``first`` if an evaluation will soon wait for it."""
        with self._guard:
            budget_bytes = self._budget()
            known = self._done | {key for one in self._running.values() for key in one.keys}
            for one in work:
                names = tuple(
                    name
                    for name, key in zip(one.baselines, one.keys, strict=True)
                    if key not in known and (first or key not in {k for w in self._waiting for k in w.keys})
                )
                if not names or (budget_bytes and one.needs_bytes > budget_bytes):
                    continue  # too large for a process beside the others: the session's process compiles it when it is loaded
                if first:
                    later = [
                        w
                        if w.dims != one.dims
                        else replace(w, baselines=tuple(n for n in w.baselines if n not in names))
                        for w in self._waiting
                    ]
                    self._waiting = deque(w for w in later if w.baselines)
                    self._waiting.appendleft(Work(one.dims, names, one.needs_bytes))
                else:
                    self._waiting.append(Work(one.dims, names, one.needs_bytes, can_wait=True))
            idle = self._supervisor is None or not self._supervisor.is_alive()
            if not self._waiting or not idle or self._closing:
                return
            # A fork server dies with the thread that started it, so start it here, in this thread.
            self._session.fleet.server(self._role)
            self._supervisor = threading.Thread(target=self._supervise, daemon=True)
            self._supervisor.start()

    def finish(
        self,
        work: Sequence[Work],
        progress: Callable[[int, int], None],
        between: Callable[[], None] = lambda: None,
        *,
        has_device: bool = False,
    ) -> None:
        """Compiles now, and returns when all of it is done.

        A failure shows again, and is recorded, when the baseline is loaded.

        Args:
            work: what is wanted.
            progress: told from time to time how many are done.
            between: called repeatedly; others may use the device inside it.
            has_device: the caller holds the device's lock and keeps it. The supervisor must not wait for the lock,
                because an evaluation that waits to time waits for this caller.
        """
        self._awaited = True
        self.begin(work, first=True)
        if has_device:
            self._has_device.set()
        keys = [key for one in work for key in one.keys]
        told = -1
        try:
            while True:
                if has_device:
                    self._start_processes()
                with self._guard:
                    left = self._left(keys)
                    if left:
                        self._guard.wait(_LOOK_SECONDS)
                if len(keys) - left != told:
                    told = len(keys) - left
                    progress(told, len(keys))
                if not left:
                    return
                between()
        finally:
            self._awaited = False
            self._has_device.clear()

    def _left(self, keys: list[tuple[Any, ...]]) -> int:
        """How many of these are queued or being compiled."""
        open_keys = {key for one in (*self._waiting, *self._running.values()) for key in one.keys}
        return sum(key in open_keys for key in keys)

    @property
    def _role(self) -> str:
        """On a GPU, compilers query the device and tune on it."""
        return "reference" if self._session.fleet.gpu else "compile"

    # -- the threads ---------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Starts processes while there is work, and stops them while the device is wanted."""
        try:
            with self._session.fleet.device_lock.shared() as hold:
                if not self._closing:
                    self._session.fleet.build_headers()
                while self._start_processes():
                    if hold.wanted():
                        self._give_way(hold)
        except Exception:  # noqa: BLE001 - the session's process compiles what was not done, and says what is wrong
            _log.exception("compiling ahead stopped")
            with self._guard:
                self._waiting.clear()
                self._supervisor = None

    def _start_processes(self) -> bool:
        """Starts as many processes as fit, and waits a moment. False if nothing is left to do."""
        with self._guard:
            while (one := self._next()) is not None:
                number = max(self._running, default=0) + 1
                self._running[number] = one
                threading.Thread(target=self._work, args=(number, one), daemon=True).start()
            if not (self._running or (self._waiting and not self._closing)):
                # Under the guard: work added from now on starts another thread.
                if threading.current_thread() is self._supervisor:
                    self._supervisor = None
                return False
            self._guard.wait(_LOOK_SECONDS)
            return True

    def _next(self) -> Work | None:
        fleet = self._session.fleet
        # On a CPU, leave one core for the evaluation.
        workers = fleet.compile_workers if fleet.gpu or self._awaited else max(1, fleet.compile_workers - 1)
        if self._closing or not self._waiting or len(self._running) >= workers:
            return None
        budget_bytes = self._budget()
        if budget_bytes:
            used_bytes = sum(one.needs_bytes for one in self._running.values())
            wanted_bytes = self._waiting[0].needs_bytes
            # Running processes have not taken all of their memory yet, and the rest of the evaluation needs some.
            free_bytes = fleet.keeper.free_bytes()[0] if fleet.keeper is not None else budget_bytes
            if used_bytes + wanted_bytes > min(budget_bytes, free_bytes):
                if not self._running:
                    # No memory will become free: the session's process compiles it when it is loaded.
                    self._done.update(self._waiting.popleft().keys)
                    self._guard.notify_all()
                return None
        return self._waiting.popleft()

    def _give_way(self, hold: Hold) -> None:
        self._may_go.clear()
        try:
            self._wait_until_still()
            hold.give_way()
        finally:
            self._may_go.set()

    def _wait_until_still(self) -> None:
        """Returns when every process is stopped, including one that is just starting.

        A process that does not stop in time is ended, and the session's process compiles its work.
        """
        until = time.monotonic() + _STOP_SECONDS
        with self._guard:
            while len(self._stopped) < len(self._running) and not self._has_device.is_set():
                if time.monotonic() > until:
                    for number in self._processes.keys() - self._stopped:
                        self._processes[number].kill()
                self._guard.wait(_LOOK_SECONDS)

    def _work(self, number: int, work: Work) -> None:
        process: RoleProcess | None = None
        self._threads.add(threading.current_thread())

        def begun(process: RoleProcess) -> None:
            process.meanwhile = lambda waited_for: self._pause(number, waited_for)
            if work.can_wait:
                process.take_lowest_priority()
            with self._guard:
                self._processes[number] = process

        try:
            process = self._session.start_process(self._role, begun)
            following: Work | None = work
            while following is not None:
                self._compile(number, process, following)
                following = self._following(number, process)
        except Exception as failure:  # noqa: BLE001 - a fault of the reference's shows again when the session's process compiles
            _log.info("compiling ahead failed: %s", failure)
        finally:
            if process is not None:
                process.close()
            with self._guard:
                self._done.update(self._running.pop(number).keys)
                self._processes.pop(number, None)
                self._stopped.discard(number)
                self._threads.discard(threading.current_thread())
                self._guard.notify_all()

    def _following(self, number: int, process: RoleProcess) -> Work | None:
        """The process's next work, if any.

        On a CPU, a new process would spend half a second on tracing and loading.
        """
        with self._guard:
            if process.dead or self._session.fleet.gpu or not self._may_go.is_set():
                return None
            done = self._running.pop(number)
            self._done.update(done.keys)
            # A process keeps its priority.
            is_like = bool(self._waiting) and self._waiting[0].can_wait == done.can_wait
            work = self._next() if is_like else None
            self._running[number] = work or done
            self._guard.notify_all()
            return work

    def _compile(self, number: int, process: RoleProcess, work: Work) -> None:
        session = self._session
        opened = session.open_lean(process, work.dims)
        try:
            for baseline in session.every_baseline(opened):
                if baseline.name in work.baselines and not self._closing:
                    self._pause(number, process)
                    try:
                        session.prepare(opened.side, baseline)
                    except RoleFailure:
                        if process.dead:
                            return
        finally:
            session.close_lean(opened)

    def _goes_on(self) -> bool:
        return self._may_go.is_set() or self._has_device.is_set()

    def _pause(self, number: int, process: RoleProcess) -> float:
        """Stops the process while the device is wanted. Returns for how many seconds."""
        if self._goes_on() or process.dead:
            return 0.0
        began = time.monotonic()
        process.freeze()
        others = process.stop_others()
        with self._guard:
            self._stopped.add(number)
            self._guard.notify_all()
        while not self._goes_on():
            self._may_go.wait(_LOOK_SECONDS)
        with self._guard:
            self._stopped.discard(number)
        process.thaw()
        if others:
            process.continue_others()
        return time.monotonic() - began

    def give_memory_back(self) -> bool:
        """Ends all processes because others need their memory. The session's process compiles what is missing.

        Not for this session's own needs.

        Returns:
            Whether there were any.
        """
        if threading.current_thread() in self._threads:
            return False
        with self._guard:
            self._waiting.clear()
            processes = list(self._processes.values())
        for process in processes:
            process.kill()
        return bool(processes)

    def close(self) -> None:
        """Ends all processes for good."""
        with self._guard:
            self._closing = True
            supervisor = self._supervisor
        self.give_memory_back()
        self._may_go.set()
        if supervisor is not None:
            # Wait no longer: it may be waiting for the device's lock, which the caller may hold. It finds nothing
            # to do then.
            supervisor.join(_CLOSE_SECONDS)


def work_for(shape: OpenShape, baselines: Iterable[Baseline]) -> Work:
    """The work at an open shape: its baselines that need a compiler."""
    needs = shape.inputs.needs
    names = tuple(baseline.name for baseline in baselines if MODES[baseline.mode].compiler)
    # Weights exist three times: in the referee, in transit, and in the module.
    needs_bytes = needs.slot_bytes + 2 * needs.peak_bytes + 3 * needs.weights_bytes + _CONTEXT_BYTES
    return Work(shape.dims, names, needs_bytes)
