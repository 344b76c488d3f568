"""One time that a step's candidates are asked about: turns among the evaluators, and whether these seem to be gone."""

from __future__ import annotations

import asyncio

from rl.config import FleetPart
from rl.judges import Unjudged

#: Questions to judges under way: fewer than threads that asyncio has on the smallest machine, so that none waits for a thread.
_LOOKS_AT_ONCE = 4


class Attempt:
    """What candidates of a step have in common while they are asked about.

    Args:
        settings: of the fleet.
        number: from 1; each begins with another candidate, so that one that ends evaluators is not always the first.
    """

    def __init__(self, settings: FleetPart, number: int) -> None:
        self._number = number
        self.turn = asyncio.Semaphore(settings.width)
        self.looks = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self.gone = ""
        #: Reasons that are no answer of anybody, and those of them that say that nobody was there.
        self.silences: set[str] = set()
        self.lost: set[str] = set()
        self._in_a_row: list[str] = []
        self._count = 0
        self._enough = settings.tries * settings.width

    def silent(self, why: str) -> str:
        """The same reason, which is none that anybody has given."""
        self.silences.add(why)
        return why

    def in_turn(self, candidates: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The order in which candidates are asked about."""
        self._count = len(candidates)
        begin = (self._number - 1) % max(self._count, 1)
        return candidates[begin:] + candidates[:begin]

    def answered(self) -> None:
        self._in_a_row.clear()

    def failed(self, error: Unjudged, candidate: str) -> None:
        """After as many failures in a row as all evaluators together may have, nobody else is asked in this step; not of one candidate
        alone, which may be what ends them."""
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
