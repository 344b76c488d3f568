"""After all proposers: tunes what declares `TUNABLES`, and undoes the winner's changes one at a time to learn which paid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.candidates import Candidate
from agent.strategy.ablation import Change, changes, lesson, undo
from agent.strategy.draws import recorded
from agent.strategy.lessons import Memory, StoredLessons
from agent.strategy.tuner import tuned

if TYPE_CHECKING:
    from agent.proposers.base import ProposalContext
    from agent.strategy.settings import Strategy


class Finisher:
    """A proposer without a model: every candidate it yields is an earlier one with another number or one change less.

    Args:
        strategy: settings.
        memory: where lessons go besides the job's own store.
    """

    origin = "finishing"

    def __init__(self, strategy: Strategy, memory: Memory | None = None) -> None:
        self._strategy = strategy
        self._memory = memory

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """See `Proposer.propose`."""
        if self._strategy.tune:
            for candidate in self._accepted(context, "finishing/tune"):
                yield from tuned(context, candidate, self._strategy)
        if self._strategy.ablate:
            yield from self._ablations(context)

    def _ablations(self, context: ProposalContext) -> Iterator[Candidate]:
        accepted = {one.sha256: one for one in self._accepted(context, "finishing/ablate")}
        # By what validation measured, as the choice goes; those figures reach no model.
        winner = max(accepted.values(), key=lambda one: _validated(context, one), default=None)
        ancestor = accepted.get(winner.parent_sha256 or "") if winner is not None else None
        if winner is None or ancestor is None:
            return
        for change in changes(ancestor.source, winner.source)[: self._strategy.ablate_changes]:
            undone = undo(winner.source, change)
            if undone.source is None or undone.source == ancestor.source:
                continue  # its only change: the ancestor's own verdict says what it is worth
            label = f"{winner.label} without change {change.number}"
            candidate = Candidate(undone.source, winner.origin, label, winner.sha256, change.technique)
            yield candidate
            self._learn(context, winner, candidate, change)
        only = changes(ancestor.source, winner.source)
        if len(only) == 1:
            self._learn(context, winner, ancestor, only[0])

    def _learn(self, context: ProposalContext, winner: Candidate, without: Candidate, change: Change) -> None:
        with_verdict = context.store.verdict(winner.sha256, "screen")
        verdict = context.store.verdict(without.sha256, "screen")
        if with_verdict is None or verdict is None:
            return
        learnt = lesson(change, winner.sha256, without.sha256, with_verdict, verdict, context.device)
        if learnt is not None:
            StoredLessons(context.store).remember(learnt)
            if self._memory is not None:
                self._memory.remember(learnt)

    def _accepted(self, context: ProposalContext, step: str) -> list[Candidate]:
        """Accepted candidates as they were when this was first asked for."""
        found = {one.sha256: one for one in context.store.candidates() if _is_accepted(context, one)}
        _, known = recorded(context.store, step, list(found), self._strategy.seed)
        return [found[sha256] for sha256 in known if sha256 in found]


def _is_accepted(context: ProposalContext, candidate: Candidate) -> bool:
    verdict = context.store.verdict(candidate.sha256, "screen")
    return verdict is not None and verdict["verdict"] == "accepted"


def _validated(context: ProposalContext, candidate: Candidate) -> float:
    verdict = context.store.verdict(candidate.sha256, "validation") or {}
    if verdict.get("verdict") != "accepted":
        return 0.0
    return float((verdict.get("summary") or {}).get("geomean_speedup") or 0.0)
