"""Pauses this evaluation so that a timing run can use the device.

Checks of a candidate take a second, but its first call may compile for ten, and so may a baseline. A timing run
should not wait for that. So whenever an evaluation waits for an answer, it checks whether another one wants the
device, and stops all its processes, even in the middle of a call. That time does not count against deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control
from evaluator.roles.process import RoleProcess
from evaluator.timing.exclusive import Hold

#: How long to wait for device work to end after all processes are stopped. Longer work keeps the device (an
#: endless kernel, which may belong to another program), and the next attempt comes only after some time: a process
#: that is stopped all the time makes no progress.
_IDLE_SECONDS, _RETRY_SECONDS = 0.5, 5.0


class ProcessSharing:
    """Pauses a process, as long as the device's lock is held for it.

    Args:
        fleet: of the referee.
        hold: the lock, held shared; None if it is held exclusively, or if processes run that cannot be stopped
            here.
    """

    def __init__(self, fleet: Fleet, hold: Hold | None) -> None:
        self._fleet = fleet
        self._hold = hold
        self._not_before = 0.0

    def while_waiting(self, waited_for: RoleProcess) -> float:
        """Called repeatedly while a process computes its answer.

        Returns for how many seconds others had the device.
        """
        if self._hold is None or time.monotonic() < self._not_before or not self._hold.wanted():
            return 0.0
        with self._paused():
            began = time.monotonic()
            waited_for.freeze()
            self._stop_computing()
            # Such as a compiler's child processes.
            others = waited_for.stop_others()
            keeper = self._fleet.keeper
            is_idle = keeper is None or keeper.idle_within(_IDLE_SECONDS)
            if is_idle:
                self._hold.give_way()
            # Stop this one first: its work before that counts as work while stopped.
            waited_for.thaw()
            if others:
                waited_for.continue_others()
            now = time.monotonic()
            if not is_idle:
                # Otherwise an endless kernel would never reach its deadline.
                self._not_before = now + _RETRY_SECONDS
            return now - began if is_idle else 0.0

    def _paused(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _stop_computing(self) -> None:
        """Stops other processes that may use the device."""


class DeviceSharing(ProcessSharing):
    """Pauses one evaluation, as long as it holds the device's lock.

    Args:
        fleet, hold: see `ProcessSharing`.
        reference: the reference's process.
        candidate: of the evaluation.
        control: of the evaluation; it is prepared during the checks.
    """

    def __init__(
        self,
        fleet: Fleet,
        hold: Hold | None,
        reference: RoleProcess,
        candidate: CandidateRun,
        control: Control,
    ) -> None:
        super().__init__(fleet, hold)
        self._reference = reference
        self._candidate = candidate
        self._control = control

    @property
    def shares(self) -> bool:
        """Whether others may use the device between steps."""
        return self._hold is not None

    def between_steps(self) -> None:
        """Called between two steps, when no answer is awaited."""
        if self._hold is None or not self._hold.wanted():
            return
        with self._control.paused():
            self._stop_computing()
            if self._candidate.process is not None:
                self._candidate.process.stop_others()
            self._hold.give_way()

    def _paused(self) -> AbstractContextManager[object]:
        return self._control.paused()

    def _stop_computing(self) -> None:
        for process in (self._candidate.process, self._reference):
            if process is not None:
                process.freeze()


@contextmanager
def sharing_device(fleet: Fleet, process: RoleProcess) -> Iterator[None]:
    """Brackets the use of the device by a single process, which is stopped while others time."""
    with fleet.device_lock.shared() as hold:
        process.meanwhile = ProcessSharing(fleet, hold).while_waiting
        try:
            yield
        finally:
            process.meanwhile = None
