"""Runs after all proposers: tunes candidates with `TUNABLES` and ablates the winner's changes to learn which paid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.candidates import Candidate
from agent.extraction import unfolded
from agent.records import recorded
from agent.strategy.ablation import ABLATED_STEPS, Change, Lesson, changes, first_paid, keep, lesson, undo
from agent.strategy.graph_variants import is_graph_variant
from agent.strategy.tuner import tuned

if TYPE_CHECKING:
    from agent.proposing import ProposalContext
    from agent.spec import Strategy


class Finisher:
    """A proposer without a model: yields earlier candidates with other tunable values or with one change undone.

    Args:
        strategy: settings.
    """

    origin = "finishing"

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """See `Proposer.propose`."""
        if self._strategy.tune:
            for candidate in self._accepted(context, "finishing/tune"):
                yield from tuned(context, candidate, self._strategy)
        if self._strategy.ablate:
            yield from self._ablations(context)

    def _ablations(self, context: ProposalContext) -> Iterator[Candidate]:
        accepted = {one.sha256: one for one in self._accepted(context, "finishing/ablate")}
        # Chosen by validation speed, like the final choice; these figures never reach a model.
        winner = max(accepted.values(), key=lambda one: _validated(context, one), default=None)
        ancestor = accepted.get(winner.parent_sha256 or "") if winner is not None else None
        if winner is None or ancestor is None:
            return
        found = changes(ancestor.shown, winner.shown)
        learnt: list[Lesson | None] = []
        for change in found[: self._strategy.ablate_changes]:
            source = undo(winner.shown, change)
            if source is None or source == ancestor.shown:
                continue  # undoing the only change yields the ancestor, which already has a verdict
            label = f"{winner.label} without change {change.number}"
            candidate = Candidate(unfolded(source), winner.origin, label, winner.sha256, change.technique)
            context.store.finish_step(f"{ABLATED_STEPS}{candidate.sha256}", {"winner": winner.sha256})
            yield candidate
            learnt.append(_learn(context, winner, candidate, change))
        if len(found) == 1:
            learnt.append(_learn(context, winner, ancestor, found[0]))
        best = first_paid([one for one in learnt if one is not None])
        step = "finishing/paid"
        if best is not None and context.store.step(step) is None:
            context.store.finish_step(step, best.to_json())
            text = f"{winner.label}: what paid most is {best.sentence}"
            context.store.event("proposer.finished", {"origin": self.origin, "text": text})

    def _accepted(self, context: ProposalContext, step: str) -> list[Candidate]:
        """The accepted candidates at the time of the first call for this step."""
        found = {one.sha256: one for one in context.store.candidates() if _is_accepted(context, one)}
        _, known = recorded(context.store, step, list(found), self._strategy.seed)
        return [found[sha256] for sha256 in known if sha256 in found]


def _learn(context: ProposalContext, winner: Candidate, without: Candidate, change: Change) -> Lesson | None:
    """Compute a change's effect from the verdicts and store the lesson for memory (`agent.memory.lessons`)."""
    with_verdict = context.store.verdict(winner.sha256, "screen")
    verdict = context.store.verdict(without.sha256, "screen")
    if with_verdict is None or verdict is None:
        return None
    learnt = lesson(change, winner.sha256, without.sha256, with_verdict, verdict, context.device)
    if learnt is not None:
        keep(context.store, learnt)
    return learnt


def _is_accepted(context: ProposalContext, candidate: Candidate) -> bool:
    verdict = context.store.verdict(candidate.sha256, "screen")
    return verdict is not None and verdict.verdict == "accepted" and not is_graph_variant(candidate)


def _validated(context: ProposalContext, candidate: Candidate) -> float:
    verdict = context.store.verdict(candidate.sha256, "validation")
    if verdict is None or verdict.verdict != "accepted":
        return 0.0
    return verdict.summary.geomean_speedup or 0.0
