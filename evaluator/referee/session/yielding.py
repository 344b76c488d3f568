"""Lets whoever waits to time have the device, at once, while this evaluation computes: everything of it is stopped meanwhile.

Checks of a candidate take a second, but its first call may compile for ten, and a baseline as long. Nobody who waits to time
should wait for that; so an evaluation looks, whenever it waits for an answer, whether somebody is at the gate, and stops
in the middle of a call if need be. Time in which a process was stopped for others is no part of its deadlines.
"""

from __future__ import annotations

import time

from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.control import Control
from evaluator.roles.process import RoleProcess
from evaluator.timing.exclusive import Hold

#: For so long work on the device is waited for when all of ours is stopped. What takes longer keeps it (a kernel without end, which
#: may be somebody else's), and nothing is tried again for some time: a process that is stopped all the time gets nowhere.
_IDLE_SECONDS, _RETRY_SECONDS = 0.5, 5.0


class GivingWay:
    """Of one evaluation, as long as it holds the device's lock.

    Args:
        fleet: of the referee.
        hold: the lock, held shared; None where nobody is let in (held exclusively, or processes run that cannot be stopped here).
        reference: the reference's process.
        candidate: of the evaluation.
        control: of the evaluation; it is being made ready beside the checks.
    """

    def __init__(
        self,
        fleet: Fleet,
        hold: Hold | None,
        reference: RoleProcess,
        candidate: CandidateRun,
        control: Control,
    ) -> None:
        self._fleet = fleet
        self._hold = hold
        self._reference = reference
        self._candidate = candidate
        self._control = control
        self._not_before = 0.0

    @property
    def lets_in(self) -> bool:
        """Whether others may have the device between steps."""
        return self._hold is not None

    def between(self) -> None:
        """Called between two steps, when no answer is waited for."""
        if self._hold is None or not self._hold.wanted():
            return
        with self._control.paused():
            self._stop_computing()
            if self._candidate.process is not None:
                self._candidate.process.stop_others()
            self._hold.give_way()

    def during(self, waited_for: RoleProcess) -> float:
        """Called now and then while a process computes its answer; returns for how many seconds others had the device."""
        if self._hold is None or time.monotonic() < self._not_before or not self._hold.wanted():
            return 0.0
        with self._control.paused():
            began = time.monotonic()
            waited_for.freeze()
            self._stop_computing()
            # Such as a compiler's programs.
            others = waited_for.stop_others()
            is_idle = self._idle()
            if is_idle:
                self._hold.give_way()
            # First itself: what it runs before that counts as run while it was stopped.
            waited_for.thaw()
            if others:
                waited_for.continue_others()
            now = time.monotonic()
            if not is_idle:
                # Else a kernel without end would never come to the end of its time.
                self._not_before = now + _RETRY_SECONDS
            return now - began if is_idle else 0.0

    def _stop_computing(self) -> None:
        for process in (self._candidate.process, self._reference):
            if process is not None:
                process.freeze()

    def _idle(self) -> bool:
        """Whether the device has finished what stopped processes had left for it."""
        keeper = self._fleet.keeper
        if keeper is None:
            return True
        until = time.monotonic() + _IDLE_SECONDS
        while keeper.look().busy:
            if time.monotonic() > until:
                return False
        return True
