"""Contrastive exemplars: earlier candidates with different measured speeds, shown side by side.

Two successes come from two different score buckets, drawn without replacement with the probability of bucket i

    P(i) = exp(m_i / tau) / sum_j exp(m_j / tau),   m_i the mean speedup in the bucket,

and one candidate uniformly from each (CUDA-L1, arXiv 2507.14111, stage 3; its ablation: bucket draw 3.12x against random
draw 2.14x). This favors fast candidates and guarantees that the two differ enough for a useful comparison. A failure with
its reason is added if there is one. All scores come from this job: one machine, one set of shapes, one referee.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.candidates import Candidate, Judged
from agent.strategy.graph_variants import is_graph_variant

if TYPE_CHECKING:
    from agent.store import JobStore

#: Width of a bucket in log speedup: 16 %, several times the noise of a screen.
BUCKET = 0.15
#: Temperature in units of speedup.
TAU = 0.3
#: Longer files are not shown: several would fill the prompt, and every token costs money.
LONGEST_SHOWN_CHARACTERS = 12_000
_WORTH_SHOWING = frozenset({"incorrect", "compile_error", "runtime_error", "timeout", "contract_violation"})


def judged_in(store: JobStore, candidates: Sequence[Candidate]) -> list[Judged]:
    """The candidates with a conclusive screen verdict, in order, without graph variants."""
    found = []
    for candidate in candidates:
        verdict = store.verdict(candidate.sha256, "screen")
        if verdict is None or is_graph_variant(candidate):
            continue
        if verdict.verdict not in ("not_judged", "task_rejected"):
            found.append(Judged(candidate, verdict))
    return found


@dataclass(frozen=True)
class Exemplars:
    """Candidates shown in a prompt: successes, slowest first, and at most one failure."""

    successes: tuple[Judged, ...]
    failure: Judged | None


def buckets(speedups: Sequence[float], width: float = BUCKET) -> dict[int, list[int]]:
    """Indices into `speedups` (all above 0), by bucket of log speedup."""
    found: dict[int, list[int]] = {}
    for place, speedup in enumerate(speedups):
        found.setdefault(math.floor(math.log(speedup) / width), []).append(place)
    return found


def apart(
    speedups: Sequence[float],
    generator: random.Random,
    count: int = 2,
    *,
    tau: float = TAU,
    width: float = BUCKET,
) -> list[int]:
    """Draw up to `count` indices from different buckets (see the module docstring), in drawing order.

    Args:
        speedups: the candidates' speedups, all above 0.
        generator: source of randomness.
        count: number of indices, limited by the number of buckets.
        tau: temperature over the buckets' mean speedups.
        width: bucket width in log speedup.
    """
    left = buckets(speedups, width)
    chosen: list[int] = []
    while left and len(chosen) < count:
        keys = sorted(left)
        means = [sum(speedups[place] for place in left[key]) / len(left[key]) for key in keys]
        key = generator.choices(keys, softmax(means, tau))[0]
        chosen.append(generator.choice(left.pop(key)))
    return chosen


def draw(
    judged: Sequence[Judged], generator: random.Random, leave_out: Collection[str] = (), count: int = 2
) -> Exemplars:
    """Draw exemplars.

    Args:
        judged: everything judged so far, in order of arrival.
        generator: from `agent.records.recorded`.
        leave_out: sha256 of candidates that the prompt already shows.
        count: maximum number of successes.
    """
    short = [one for one in judged if len(one.candidate.shown) <= LONGEST_SHOWN_CHARACTERS]
    left = [one for one in short if one.candidate.sha256 not in leave_out and one.speedup > 0]
    chosen = [left[place] for place in apart([one.speedup for one in left], generator, count)]
    failures = [
        one
        for one in short
        if one.verdict.verdict in _WORTH_SHOWING
        and one.candidate.origin in ("llm", "policy")
        and one.candidate.sha256 not in leave_out
    ]
    # One of the last few: earlier failures were repaired since or cannot be repaired.
    failure = generator.choice(failures[-4:]) if failures else None
    return Exemplars(tuple(sorted(chosen, key=lambda one: one.speedup)), failure)


def softmax(values: Sequence[float], tau: float) -> list[float]:
    """Probabilities that sum to 1; subtracts the maximum first to avoid overflow."""
    top = max(values)
    weights = [math.exp((value - top) / tau) for value in values]
    return [weight / sum(weights) for weight in weights]
