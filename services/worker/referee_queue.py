"""A worker's queue for its single warm referee, which runs the candidates: one call at a time, first come, first served.

Timing must not overlap with other work, so one thread makes the calls of all jobs. A lock file extends this to other
worker processes on the same machine (with the same data folder and device).

The thread is *long-lived* for another reason too: children that ask the kernel to die with their parent
(PR_SET_PDEATHSIG) die with the thread that created them, not with the process.
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
from evaluator.description import Description
from evaluator.errors import RefereeLost
from evaluator.folders import default_work_dir
from evaluator.profiling import ceilings
from evaluator.profiling.profile import ProfileFailed, profile_task
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict

_POLL_S = 0.05
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class RefereeQueue:
    """Owns the referee of this process.

    Args:
        device: "cpu" or "cuda".
        folder: working folder of the referee; also holds the lock file.
        minimum_tier: weakest acceptable sandbox tier.
    """

    def __init__(self, device: str, folder: Path, minimum_tier: str) -> None:
        self.device = device
        self._folder = folder
        self._minimum_tier = minimum_tier
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bench")
        self._guard = threading.Lock()  # protects all fields below and those of `JobReferee`
        self._referee: Referee | None = None
        self._running: JobReferee | None = None
        self._began: float | None = None  # start of the running call
        self._busy_s = 0.0
        self._closed = False

    def for_job(self, used: Callable[[float], None] = lambda elapsed_s: None) -> JobReferee:
        """Create one job's referee, which can be stopped independently; `used` gets the seconds of each turn."""
        return JobReferee(self, used)

    def close(self) -> None:
        """Stop the referee; running and later calls raise RefereeLost."""
        with self._guard:
            self._closed = True
            referee, self._referee = self._referee, None
        if referee is not None:
            referee.kill()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def call(self, judge: JobReferee, work: Callable[[Referee], Result]) -> Result:
        """Run `work` when it is this job's turn.

        Raises:
            RefereeLost: the job was stopped, or the referee died; the next call starts a new one.
        """
        with self._guard:
            self._refuse_if_stopped(judge)
            judge.waiting = future = self._thread.submit(copy_context().run, self._take_turn, judge, work)
        try:
            return future.result()
        except CancelledError:
            raise RefereeLost("the job was stopped") from None

    def busy_seconds(self) -> float:
        """Total seconds of all calls so far, including the running one."""
        with self._guard:
            return self._busy_s + (time.monotonic() - self._began if self._began is not None else 0.0)

    def is_idle(self) -> bool:
        """Whether no call is running."""
        with self._guard:
            return self._running is None

    def is_warm(self) -> bool:
        """Whether a referee is loaded, which occupies device memory."""
        with self._guard:
            return self._referee is not None

    def stop(self, judge: JobReferee) -> None:
        """Reject further calls of `judge`, and kill the running call if it belongs to `judge`."""
        with self._guard:
            judge.stopped = True
            waiting = judge.waiting
            referee = self._referee if self._running is judge else None
        if waiting is not None:
            waiting.cancel()
        if referee is not None:
            referee.kill()

    def _take_turn(self, judge: JobReferee, work: Callable[[Referee], Result]) -> Result:
        with self._machine_lock(judge):
            referee = self._warm_referee()
            with self._guard:
                self._refuse_if_stopped(judge)
                self._running, self._began = judge, time.monotonic()
            try:
                return work(referee)
            except BaseException:
                # lost, or interrupted mid-protocol by a callback that raised: it cannot be used again
                self._drop(referee)
                raise
            finally:
                with self._guard:
                    elapsed_s = time.monotonic() - (self._began or time.monotonic())
                    self._busy_s += elapsed_s
                    self._running = self._began = None
                judge.used(elapsed_s)

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
        except Exception:  # noqa: BLE001 - the referee is already dead; the next call starts a new one
            _log.warning("closing a lost referee failed", exc_info=True)

    def _refuse_if_stopped(self, judge: JobReferee) -> None:
        if judge.stopped or self._closed:
            raise RefereeLost("the job was stopped")

    @contextmanager
    def _machine_lock(self, judge: JobReferee) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / f"bench-{self.device}.lock", "w") as file:
            while True:
                with self._guard:
                    self._refuse_if_stopped(judge)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_POLL_S)
            yield


class JobReferee:
    """One job's view of the referee: has methods of `evaluator.client.Referee` and takes turns with other jobs."""

    def __init__(self, queue: RefereeQueue, used: Callable[[float], None]) -> None:
        self._queue = queue
        self.used = used
        self.stopped = False
        self.waiting: Future[Any] | None = None

    def self_check(self) -> dict[str, Any]:
        """See `Referee.self_check`."""
        return self._queue.call(self, lambda referee: referee.self_check())

    def describe(self, task: TaskSource, **options: Any) -> Description:
        """See `Referee.describe`."""
        return self._queue.call(self, lambda referee: referee.describe(task, **options))

    def evaluate(self, task: TaskSource, candidate: CandidateSource, **options: Any) -> Verdict:
        """See `Referee.evaluate`. Callbacks in `options` run in the queue's thread."""
        return self._queue.call(self, lambda referee: referee.evaluate(task, candidate, **options))

    def run_tool(self, program: str, files: Mapping[str, Any], **options: Any) -> Any:
        """See `Referee.run_tool`."""
        return self._queue.call(self, lambda referee: referee.run_tool(program, files, **options))

    def profile(self, text: str) -> dict[str, Any] | None:
        """Profile a task's bottlenecks; None if `kernelwright device` has not measured this machine's ceilings.

        Takes a single turn in the queue: a profile holds the device's lock and must not wait for a job that needs it.

        Raises:
            ProfileFailed: the task cannot be profiled.
            RefereeLost: see `RefereeQueue.call`.
        """
        device = self._queue.device
        known = ceilings.kept(default_work_dir(), device)
        if known is None:
            return None

        def work(referee: Referee) -> dict[str, Any] | ProfileFailed:
            try:
                return profile_task(referee, text, known["rates"], device=device).as_json()
            except ProfileFailed as failure:
                return failure  # returned, not raised: an exception here would end the referee, which is not at fault

        found = self._queue.call(self, work)
        if isinstance(found, ProfileFailed):
            raise found
        return found

    def kill(self) -> None:
        """See `Referee.kill`: the running call and all later calls of this job raise RefereeLost."""
        self._queue.stop(self)

    def close(self) -> None:
        """Do nothing: the queue keeps the referee warm for the next job."""
