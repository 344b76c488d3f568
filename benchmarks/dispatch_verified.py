"""What a bundle's `verified` mode would run at the held-out shapes of a matrix, decided by the very code that bundles carry.

Contenders are those of the mode: the tree's choice, two other kernels of the portfolio, and a mode of the compiler where the portfolio
has one. Which other kernel is likely is taken here from the nearest shape that was built from, in place of the bundle's
prices. Half of the rounds are what the first sight times, the others say what came of it.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

_BETTER_THAN = math.log(0.98)
_NARROW = math.log(1.01)


def rules(compiled: set[int]) -> SimpleNamespace:
    """`first_sight` as a bundle whose members with these numbers come from the compiler has it."""
    text = files("agent.bundle").joinpath("templates/first_sight.py.template").read_text(encoding="utf-8")
    names: dict[str, Any] = {"math": math, "time": time, "threading": threading, "torch": torch}
    names |= {"DEVICE": "cuda", "COMPILED": compiled}
    names["_Found"] = lambda runs, *_: SimpleNamespace(runs=runs)
    exec(compile(text, "first_sight", "exec"), names)
    return SimpleNamespace(decided=names["_decided"])


def chosen(
    samples: Mapping[int, Sequence[float]],
    reference: int,
    by_tree: int,
    likely: Sequence[int],
    baselines: Sequence[int],
) -> int:
    """The variant that runs after a first sight.

    Args:
        samples: microseconds a call in each round, by variant.
        reference: which one is the reference.
        by_tree: what the tree chooses.
        likely: the portfolio's members but the reference, likeliest first.
        baselines: which variants anybody could have had.
    """
    order = sorted(likely, key=lambda one: one != by_tree)
    own = [one for one in order if one not in baselines]
    contenders = own[:3] + [one for one in order if one in baselines][:1]
    seen: dict[int | None, Sequence[float]] = {None: samples[reference]}
    seen |= {one: samples[one] for one in contenders}
    runs = rules(set(baselines)).decided(seen, ()).runs
    return reference if runs is None else int(runs)


def nearest(shape: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> int:
    """Place of the shape whose sizes' logarithms are nearest."""

    def distance(other: Mapping[str, Any]) -> float:
        sizes = [(value, other[name]) for name, value in shape.items() if isinstance(value, int)]
        return sum(math.log(max(one, 1) / max(two, 1)) ** 2 for one, two in sizes)

    return min(range(len(others)), key=lambda place: distance(others[place]))


def looked_at(
    study: Any, picks: Sequence[int], members: Sequence[int], more: Sequence[Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """Figures of the mode at the held-out shapes.

    Args:
        study: a `benchmarks.dispatch.Study`.
        picks: the tree's choice at each of them.
        members: variants of the portfolio, the reference among them.
        more: microseconds by shape, variant and round.

    Returns:
        ``of_portfolio_oracle`` and its 5th percentile, ``slower_than_2_percent`` (a share: confidently more than 2 % slower than
        the best baseline) and ``narrow`` (the share of shapes whose interval is at most 1 % wide on each side).
    """
    to_oracle, slower, narrow = [], [], []
    built_from = study.shapes[: study.building]
    for place, (pick, rounds) in enumerate(zip(picks, more, strict=True)):
        us = np.array(rounds)
        sight, later = us[:, 0::2], us[:, 1::2]
        near = np.median(study.all[nearest(study.shapes[study.building + place], built_from)], axis=1)
        likely = sorted((one for one in members if one != study.reference), key=lambda one: near[one])
        samples = {one: sight[one].tolist() for one in members}
        runs = chosen(samples, study.reference, pick, likely, study.baselines)
        medians = np.median(np.log(later), axis=1)
        oracle = min(members, key=lambda one: float(np.median(sight[one])))
        to_oracle.append(float(medians[oracle] - medians[runs]))
        best = min(study.baselines, key=lambda one: float(np.median(sight[one])))
        ratios = np.log(later[best]) - np.log(later[runs])
        middle = float(np.median(ratios))
        error = 1.4826 * float(np.median(np.abs(ratios - middle))) * math.sqrt(math.pi / 2 / len(ratios))
        slower.append(middle + 1.96 * error < _BETTER_THAN)
        narrow.append(1.96 * error <= _NARROW)
    return {
        "of_portfolio_oracle": math.exp(statistics.fmean(to_oracle)),
        "of_portfolio_oracle_p5": math.exp(float(np.quantile(to_oracle, 0.05))),
        "slower_than_2_percent": statistics.fmean(slower),
        "narrow": statistics.fmean(narrow),
    }
