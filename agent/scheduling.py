"""Whose turn it is to propose: models are asked first, and their answers judged as they arrive; cheap proposers come meanwhile.

    ask every model -> library, compiler (between any two candidates one answer of each model) -> the other answers
    -> whoever had to stop before its end -> what finishes a search

A budget in seconds is divided: each proposer has at most its even share of what is left when its turn begins, so that the ones
after it keep theirs. What then is left over goes to those that had to stop.
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
from agent.proposing import Asks, ProposalContext, Proposer
from agent.redaction import known_secrets, redact_message
from agent.store import JobStore
from evaluator.errors import is_disk_trouble

_log = logging.getLogger(__name__)
FINISHING = "finishing"
"""Origin of the proposer that works on what the others brought."""
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
        store: of the job; a proposer that came to its end in an earlier attempt has no turn.
        proposers: all of the job's.
        context: for the proposers; here it learns when others wait.
        judge: judges a candidate; False when the budget does not allow it.
        seconds_left: of the budget; None without a limit.
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
        turns = [self._turn(one) for one in proposers if store.step(_step(one)) is None]
        self._asking = [one for one in turns if isinstance(one.proposer, Asks)]
        self._finishing = [one for one in turns if one.proposer.origin == FINISHING]
        self._making = [one for one in turns if one not in self._asking and one not in self._finishing]
        self._turns = turns

    @property
    def models(self) -> bool:
        """Whether a model is to be asked."""
        return bool(self._asking)

    def ask(self) -> None:
        """Send the first requests to all models, before anything is judged."""
        try:
            for turn in self._asking:
                self._advance(turn)
        except Spent:
            return

    def run(self) -> None:
        """All turns, to the end or until the budget is spent.

        Raises:
            AnswersAwaited: a model's answers come by batch and are not there yet.
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
        """End what is under way."""
        for turn in self._turns:
            if isinstance(turn.offers, Generator):
                turn.offers.close()

    def _have_turn(self, turn: _Turn) -> None:
        """Take candidates of one proposer until its end or that of its share; between them answers of models."""
        left_s = self._seconds_left()
        waiting = [one for one in (*self._making, *self._asking) if not one.ended]
        until_s = None if left_s is None else time.monotonic() + left_s / len(waiting)
        while not turn.ended and (until_s is None or time.monotonic() < until_s):
            self._advance(turn)
            began_s = time.monotonic()
            for model in self._asking:
                if not model.ended:
                    self._advance(model)
            if until_s is not None:  # that was of the models' own shares
                until_s += time.monotonic() - began_s

    def _others_wait(self) -> bool:
        """Whether there is something else to do for a proposer that would wait."""
        return not self._begun or bool(self._making)

    def _turn(self, proposer: Proposer) -> _Turn:
        offers = proposer.offers if isinstance(proposer, Asks) else proposer.propose
        return _Turn(proposer, iter(offers(self._context)))

    def _advance(self, turn: _Turn) -> None:
        """Take the next thing that a proposer offers, and judge it.

        Raises:
            Spent: it may not be judged, or nothing more after it; the turn has not ended: with a larger budget it would go on.
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
            raise  # not the proposer's end: it goes on when the job is run again
        except Exception as error:
            if is_disk_trouble(error):
                raise  # the job is run again when there is room
            raise_if_stopped(self._store)  # a cancelled job's referee is killed under its proposer
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
