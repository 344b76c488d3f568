"""Schedules the proposers: sends model requests first, runs cheap proposers meanwhile and judges answers as they arrive.

    ask every model -> library, compiler (between two candidates, one answer of each model) -> remaining answers
    -> proposers whose time share ran out -> finishing proposers

A budget in seconds is divided evenly: when a turn begins, the proposer gets at most an equal share of the remaining time,
which protects the shares of later proposers. Leftover time goes to the proposers that were cut off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent.candidates import Candidate
from agent.errors import AnswersAwaited
from agent.judging import JobStopped, raise_if_stopped
from agent.proposing import ASKING, ProposalContext, Proposer
from agent.redaction import known_secrets, redact_message
from agent.store import JobStore
from evaluator.errors import is_disk_trouble

_log = logging.getLogger(__name__)
FINISHING = "finishing"
"""Origin of the proposer that refines the candidates of the others."""
_END: Any = object()


class Spent(Exception):
    """The job's budget allows no more candidates."""


@dataclass
class _Turn:
    proposer: Proposer
    offers: Iterator[Candidate | None]
    count: int = 0
    ended: bool = False
    told: bool = False


class Schedule:
    """The turns of a job's proposers.

    Args:
        store: the job's store; a proposer that finished in an earlier attempt gets no turn.
        proposers: all proposers of the job.
        context: makes the proposers' context from their `others_wait` callback.
        judge: judges a candidate; returns False if the budget does not allow it.
        seconds_left: remaining time budget; None without a limit.
    """

    def __init__(
        self,
        store: JobStore,
        proposers: Sequence[Proposer],
        context: Callable[[Callable[[], bool]], ProposalContext],
        judge: Callable[[Candidate], bool],
        seconds_left: Callable[[], float | None],
    ) -> None:
        self._store = store
        self._judge = judge
        self._seconds_left = seconds_left
        self._begun = False
        self._context = context(self._others_wait)
        turns = [
            _Turn(one, iter(one.propose(self._context)))
            for one in proposers
            if store.step(_step(one)) is None
        ]
        self._asking = [one for one in turns if one.proposer.origin in ASKING]
        self._finishing = [one for one in turns if one.proposer.origin == FINISHING]
        self._making = [one for one in turns if one not in self._asking and one not in self._finishing]
        self._turns = turns

    @property
    def models(self) -> bool:
        """Whether any proposer will ask a model."""
        return bool(self._asking)

    def ask(self) -> None:
        """Send the first requests to all models before any judging."""
        try:
            for turn in self._asking:
                self._advance(turn)
        except Spent:
            return

    def run(self) -> None:
        """Run all turns until they end or the budget is spent.

        Raises:
            AnswersAwaited: a model's batch has no answers yet.
            JobStopped: the job was asked to stop.
        """
        self._begun = True
        try:
            cut_off = []
            while self._making:
                turn = self._making[0]
                self._have_turn(turn)
                self._making.pop(0)
                if not turn.ended:
                    cut_off.append(turn)
            for turn in (*self._asking, *cut_off, *self._finishing):
                while not turn.ended:
                    self._advance(turn)
        except Spent:
            return

    def close(self) -> None:
        """Close all running generators."""
        for turn in self._turns:
            if isinstance(turn.offers, Generator):
                turn.offers.close()

    def _have_turn(self, turn: _Turn) -> None:
        """Take one proposer's candidates until it ends or its time share runs out, interleaved with model answers."""
        left_s = self._seconds_left()
        waiting = [one for one in (*self._making, *self._asking) if not one.ended]
        until_s = None if left_s is None else time.monotonic() + left_s / len(waiting)
        while not turn.ended and (until_s is None or time.monotonic() < until_s):
            self._advance(turn)
            began_s = time.monotonic()
            for model in self._asking:
                if not model.ended:
                    self._advance(model)
            if until_s is not None:  # this time counts against the models' own shares
                until_s += time.monotonic() - began_s

    def _others_wait(self) -> bool:
        """Whether the job has other work, which tells a waiting proposer to yield."""
        return not self._begun or bool(self._making)

    def _advance(self, turn: _Turn) -> None:
        """Take a proposer's next offer and judge it.

        Raises:
            Spent: the budget allows no more candidates. The turn has not ended: with a larger budget it would continue.
        """
        if not self._context.may_go_on():
            raise Spent
        origin = turn.proposer.origin
        if not turn.told:
            turn.told = True
            self._store.event("job.progress", {"stage": "proposing", "text": f"proposing: {origin}"})
        try:
            candidate = next(turn.offers, _END)
        except (AnswersAwaited, JobStopped):
            raise  # the proposer has not ended: it continues when the job is run again
        except Exception as error:
            if is_disk_trouble(error):
                raise  # the job can be run again once the disk has room
            raise_if_stopped(self._store)  # a cancelled job's referee dies while the proposer uses it
            _log.warning("proposer %s failed", origin, exc_info=error)
            text = redact_message(f"{type(error).__name__}: {error}", known_secrets())[:2000]
            self._store.event("proposer.failed", {"origin": origin, "reason": text})
            self._end(turn, {"candidates": turn.count, "error": text})
            return
        if candidate is _END:
            self._end(turn, {"candidates": turn.count})
        elif candidate is not None:
            turn.count += 1
            if not self._judge(candidate):
                raise Spent

    def _end(self, turn: _Turn, value: dict[str, Any]) -> None:
        turn.ended = True
        self._store.finish_step(_step(turn.proposer), value)


def _step(proposer: Proposer) -> str:
    return f"proposed/{proposer.origin}"
