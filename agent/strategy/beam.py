"""Selects the parents of a search round and their modes.

Speed mode takes accepted candidates, the fastest at the target shapes first and near-copies of a chosen one last. Repair mode
takes failed candidates, newest first, until a few repairs have failed too. With a beam of two or more, one place is reserved
for a repair while at most one candidate is available for speed mode; unused places also go to repairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.candidates import Judged
from agent.portfolio.clusters import Cluster, visible_geomean
from agent.strategy.novelty import likeness

MAX_REPAIRS = 2
_REPAIRABLE = frozenset(
    {"incorrect", "compile_error", "runtime_error", "timeout", "out_of_memory", "contract_violation"}
)
#: An answer contains the whole file: longer ones cost more than they bring, and models do not reproduce them.
LONGEST_PARENT_CHARACTERS = 24_000
#: Beam members more alike than this are one lineage.
_ALIKE = 0.9


@dataclass(frozen=True)
class Parent:
    """A candidate to improve or repair.

    Attributes:
        judged: the candidate and its verdict.
        mode: "speed" for an accepted one, else "repair".
    """

    judged: Judged
    mode: Literal["speed", "repair"]


def select(judged: Sequence[Judged], beam: int, cluster: Cluster | None = None) -> list[Parent]:
    """At most `beam` parents, best first.

    Args:
        judged: everything judged so far, in order of arrival.
        beam: maximum number of parents.
        cluster: target shapes; None means all visible ones.
    """
    speed = [Parent(one, "speed") for one in _fastest(judged, beam, cluster)]
    repair = [Parent(one, "repair") for one in _repairable(judged)]
    kept_for_repair = 1 if beam >= 2 and len(speed) < 2 and repair else 0
    chosen = speed[: beam - kept_for_repair]
    return chosen + repair[: beam - len(chosen)]


def _fastest(judged: Sequence[Judged], count: int, cluster: Cluster | None) -> list[Judged]:
    def speed(one: Judged) -> float:
        if cluster is None:
            return one.speedup
        # The cluster counts half: a kernel that is slow elsewhere may still be the best for these shapes.
        return (visible_geomean(one.verdict, cluster.shapes) * one.speedup) ** 0.5

    timed = [one for one in judged if one.speedup > 0 and editable(one)]
    ordered = sorted(timed, key=lambda one: -speed(one))
    chosen: list[Judged] = []
    copies: list[Judged] = []
    for one in ordered:
        if len(chosen) == count:
            break
        taken = {other.candidate.sha256: other.candidate.shown for other in chosen}
        alike = likeness(one.candidate.shown, taken).share > _ALIKE
        (copies if alike else chosen).append(one)
    return chosen + copies[: count - len(chosen)]


def editable(one: Judged) -> bool:
    """Whether a model can edit the file; False for long files and for compiler modes, which only wrap the reference."""
    if len(one.candidate.shown) > LONGEST_PARENT_CHARACTERS:
        return False
    return not (one.candidate.origin == "compiler" and "torch.compile(" in one.candidate.source)


def _repairable(judged: Sequence[Judged]) -> list[Judged]:
    """Failed model and external candidates, newest first, except those already repaired or given up."""
    by_sha = {one.candidate.sha256: one for one in judged}
    parents = {one.candidate.parent_sha256 for one in judged}
    return [
        one
        for one in reversed(judged)
        if one.verdict.verdict in _REPAIRABLE
        and one.candidate.origin in ("llm", "policy", "external")
        and len(one.candidate.shown) <= LONGEST_PARENT_CHARACTERS
        and one.candidate.sha256 not in parents  # continue from its repair instead
        and _failures_in_a_row(one, by_sha) <= MAX_REPAIRS
    ]


def _failures_in_a_row(one: Judged, by_sha: Mapping[str, Judged]) -> int:
    """Length of the chain of failures that ends in this one, itself included."""
    count = 0
    current: Judged | None = one
    seen: set[str] = set()
    while current is not None and not current.accepted and current.candidate.sha256 not in seen:
        seen.add(current.candidate.sha256)
        count += 1
        current = by_sha.get(current.candidate.parent_sha256 or "")
    return count
