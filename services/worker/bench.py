"""The bench: the one place of a worker where candidates run. One warm referee, one call at a time, first come first served.

Timing must not overlap with anything else that we run, so every call of every job is made by one thread. A lock file
keeps other worker processes of the same machine (with the same data folder and device) in the same order of things.

One *long-lived* thread for another reason too: children that ask the kernel to die with their parent
(PR_SET_PDEATHSIG) die with the thread that made them, not with the process.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

from evaluator.client import Referee
from evaluator.errors import RefereeLost
from evaluator.folders import default_work_dir
from evaluator.profiling import ceilings
from evaluator.profiling.profile import ProfileFailed, profile_task
from evaluator.sources import CandidateSource, TaskSource

_POLL_S = 0.05
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Bench:
    """Owns the referee of this process.

    Args:
        device: "cpu" or "cuda".
        folder: working folder of the referee and place of the lock file.
        minimum_tier: weakest sandbox tier that will do.
    """

    def __init__(self, device: str, folder: Path, minimum_tier: str) -> None:
        self.device = device
        self._folder = folder
        self._minimum_tier = minimum_tier
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bench")
        self._guard = threading.Lock()  # of everything below and of the seats' own fields
        self._referee: Referee | None = None
        self._running: Seat | None = None
        self._began: float | None = None  # when the running call began
        self._busy_s = 0.0
        self._closed = False

    def seat(self, used: Callable[[float], None] = lambda elapsed_s: None) -> Seat:
        """A referee for one job, which can be stopped without touching the others; `used` is told seconds after each turn."""
        return Seat(self, used)

    def close(self) -> None:
        """End the referee; running and later calls raise RefereeLost."""
        with self._guard:
            self._closed = True
            referee, self._referee = self._referee, None
        if referee is not None:
            referee.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def call(self, seat: Seat, work: Callable[[Referee], Result]) -> Result:
        """Run `work` when it is this seat's turn.

        Raises:
            RefereeLost: the seat was stopped, or the referee died; the next call gets a new one.
        """
        with self._guard:
            self._refuse_if_stopped(seat)
            seat.waiting = future = self._thread.submit(copy_context().run, self._take_turn, seat, work)
        try:
            return future.result()
        except CancelledError:
            raise RefereeLost("the job was stopped") from None

    def busy_seconds(self) -> float:
        """For how long calls have run here so far, the running one included."""
        with self._guard:
            return self._busy_s + (time.monotonic() - self._began if self._began is not None else 0.0)

    def is_idle(self) -> bool:
        """Whether no call runs now."""
        with self._guard:
            return self._running is None

    def is_warm(self) -> bool:
        """Whether there is a referee, which holds memory of the device."""
        with self._guard:
            return self._referee is not None

    def stop(self, seat: Seat) -> None:
        """Refuse further calls of `seat` and kill the one that runs, if it is this seat's."""
        with self._guard:
            seat.stopped = True
            waiting = seat.waiting
            referee = self._referee if self._running is seat else None
        if waiting is not None:
            waiting.cancel()
        if referee is not None:
            referee.kill()

    def _take_turn(self, seat: Seat, work: Callable[[Referee], Result]) -> Result:
        with self._machine_lock(seat):
            referee = self._warm_referee()
            with self._guard:
                self._refuse_if_stopped(seat)
                self._running, self._began = seat, time.monotonic()
            try:
                return work(referee)
            except BaseException:
                # lost, or interrupted in mid-conversation by a callback that raised: neither can be spoken to again
                self._drop(referee)
                raise
            finally:
                with self._guard:
                    elapsed_s = time.monotonic() - (self._began or time.monotonic())
                    self._busy_s += elapsed_s
                    self._running = self._began = None
                seat.used(elapsed_s)

    def _warm_referee(self) -> Referee:
        if self._referee is None:
            referee = Referee(self.device, work_dir=self._folder, minimum_tier=self._minimum_tier)
            referee.__enter__()
            with self._guard:
                self._referee = referee
        return self._referee

    def _drop(self, referee: Referee) -> None:
        with self._guard:
            if self._referee is referee:
                self._referee = None
        try:
            referee.kill()
            referee.close()
        except Exception:  # noqa: BLE001 - it is dead already; the next one starts afresh
            _log.warning("closing a lost referee failed", exc_info=True)

    def _refuse_if_stopped(self, seat: Seat) -> None:
        if seat.stopped or self._closed:
            raise RefereeLost("the job was stopped")

    @contextmanager
    def _machine_lock(self, seat: Seat) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / f"bench-{self.device}.lock", "w") as file:
            while True:
                with self._guard:
                    self._refuse_if_stopped(seat)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_POLL_S)
            yield


class Seat:
    """One job's view of the referee: the same methods as `evaluator.client.Referee`, taking turns with other jobs."""

    def __init__(self, bench: Bench, used: Callable[[float], None]) -> None:
        self._bench = bench
        self.used = used
        self.stopped = False
        self.waiting: Future[Any] | None = None

    def self_check(self) -> dict[str, Any]:
        """See `Referee.self_check`."""
        return self._bench.call(self, lambda referee: referee.self_check())

    def describe(self, task: TaskSource, **options: Any) -> dict[str, Any]:
        """See `Referee.describe`."""
        return self._bench.call(self, lambda referee: referee.describe(task, **options))

    def evaluate(self, task: TaskSource, candidate: CandidateSource, **options: Any) -> dict[str, Any]:
        """See `Referee.evaluate`. A callback among `options` is called by the bench's thread."""
        return self._bench.call(self, lambda referee: referee.evaluate(task, candidate, **options))

    def run_tool(self, program: str, files: Mapping[str, Any], **options: Any) -> Any:
        """See `Referee.run_tool`."""
        return self._bench.call(self, lambda referee: referee.run_tool(program, files, **options))

    def profile(self, text: str) -> dict[str, Any] | None:
        """What holds a task back, or None where `kernelwright device` has not measured this machine's ceilings.

        One turn at the bench: whoever profiles holds the device's lock, and must not wait for others who need it.

        Raises:
            ProfileFailed: the task cannot be profiled.
            RefereeLost: see `Bench.call`.
        """
        device = self._bench.device
        known = ceilings.kept(default_work_dir(), device)
        if known is None:
            return None

        def work(referee: Referee) -> dict[str, Any] | ProfileFailed:
            try:
                return profile_task(referee, text, known["rates"], device=device).as_json()
            except ProfileFailed as failure:
                return failure  # no fault of the referee, which whatever is raised here would end

        found = self._bench.call(self, work)
        if isinstance(found, ProfileFailed):
            raise found
        return found

    def kill(self) -> None:
        """See `Referee.kill`: the running call raises RefereeLost, and so does every later one of this seat."""
        self._bench.stop(self)

    def close(self) -> None:
        """The bench keeps the referee warm for the next job."""
