"""One attempt to judge a step's candidates: limits concurrency and detects that the evaluators are gone."""

from __future__ import annotations

import asyncio

from rl.config import FleetPart
from rl.judges import Unjudged

#: Concurrent questions to judges: fewer than asyncio's threads on the smallest machine, so none waits for a thread.
_LOOKS_AT_ONCE = 4


class Attempt:
    """State shared by the candidates of a step during one attempt.

    Args:
        settings: the fleet's settings.
        number: the attempt's number, from 1. Each attempt starts with another candidate, since one that crashes evaluators should
            not always come first.
    """

    def __init__(self, settings: FleetPart, number: int) -> None:
        self._number = number
        self.turn = asyncio.Semaphore(settings.width)
        self.looks = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self.gone = ""
        #: Reasons that mean no evaluator answered; `lost` holds those that mean no evaluator was there.
        self.silences: set[str] = set()
        self.lost: set[str] = set()
        self._in_a_row: list[str] = []
        self._count = 0
        self._enough = settings.tries * settings.width

    def silent(self, why: str) -> str:
        """Record a reason that means no evaluator answered, and return it."""
        self.silences.add(why)
        return why

    def in_turn(self, candidates: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The order in which candidates are judged."""
        self._count = len(candidates)
        begin = (self._number - 1) % max(self._count, 1)
        return candidates[begin:] + candidates[:begin]

    def answered(self) -> None:
        self._in_a_row.clear()

    def failed(self, error: Unjudged, candidate: str) -> None:
        """Record a failure; after `tries * width` in a row, mark the evaluators as gone and stop asking them in this attempt.

        Failures of one candidate do not suffice unless it is the only one, since it may be what crashes the evaluators.
        """
        if error.late:
            self.silent(str(error))
        if not error.gone:
            self._in_a_row.clear()
            return
        self.lost.add(self.silent(str(error)))
        self._in_a_row.append(candidate)
        several = len(set(self._in_a_row)) > 1 or self._count == 1
        if len(self._in_a_row) >= self._enough and several and not self.gone:
            self.gone = f"the evaluators are gone: {error}"
            self.lost.add(self.silent(self.gone))
