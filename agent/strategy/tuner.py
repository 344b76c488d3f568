"""Tunes the `TUNABLES` of an accepted candidate in the sandbox and proposes the fastest settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.candidates import Candidate
from agent.portfolio.clusters import visible_rows
from agent.records import recorded
from agent.strategy import tuning
from agent.strategy.tunables import NotTunable, Setting, declared, setting_key, substituted
from evaluator.counting import counted
from evaluator.devices import is_accelerator

if TYPE_CHECKING:
    from agent.proposing import ProposalContext
    from agent.spec import Strategy

PROGRAM = Path(__file__).parent / "sandboxed" / "tune_program.py"
FULL_S = 0.25
"""Seconds of one full-length timing per shape: medians of two runs then differ by less than 1 % on a quiet machine."""
MOST_SHAPES = 4
PREPARE_S = 120.0
"""Seconds in which settings are compiled, one after the other; those that are not compiled by then are not tried."""
DEADLINE_S = 60.0
"""Seconds for the successive halving, during which nothing else may use the device; the fastest setting so far is taken."""
_GRACE_S = 60.0
#: Maximum number of settings judged; the next one is tried only if the referee rejects the previous one.
_TRIES = 2
#: A setting must be this much faster in the sandbox to be worth judging.
_GAIN = 1.02


@dataclass(frozen=True)
class Found:
    """The sandbox's validated result: settings, fastest first, with microseconds, or the reason for having none."""

    ranked: tuple[tuple[Setting, float], ...]
    reason: str = ""


def tuned(context: ProposalContext, parent: Candidate, strategy: Strategy) -> Iterator[Candidate]:
    """Yield the best setting of a candidate, and the next one if the referee rejects it.

    Yields nothing for a candidate without `TUNABLES`, one whose own setting is the best, or one made by tuning.

    Args:
        context: the proposer's context; its store keeps the result, so a job does not tune twice.
        parent: an accepted candidate.
        strategy: `tune_variants` and the seed.
    """
    step = f"tuned/{parent.sha256}"
    try:
        tunables = declared(parent.source)
        if tunables is not None:
            substituted(parent.source, tunables.chosen)  # if its own setting fails, all settings fail
    except NotTunable as error:
        if context.store.step(step) is None:
            context.store.finish_step(step, {"ranked": [], "reason": str(error)})
            context.store.event("proposer.finished", {"origin": parent.origin, "text": f"not tuned: {error}"})
        return
    if tunables is None or tunables.count < 2 or context.store.step(f"made-by-tuning/{parent.sha256}"):
        return
    generator, _ = recorded(context.store, f"{step}/draw", [parent.sha256], strategy.seed)
    settings = tunables.settings(strategy.tune_variants, generator)
    stored: Any = context.store.step(step)
    if not isinstance(stored, dict):
        found = _search(context, parent, settings)
        stored = {"ranked": [[dict(setting), us] for setting, us in found.ranked], "reason": found.reason}
        context.store.finish_step(step, stored)
        text = f"{parent.label}: {counted(len(settings), 'setting')} tried; " + (
            f"fastest {tuning.words(found.ranked[0][0])}" if found.ranked else found.reason
        )
        context.store.event("proposer.finished", {"origin": parent.origin, "text": text})
    own_us = next(
        (us for one, us in stored["ranked"] if setting_key(one) == setting_key(settings[0])), math.inf
    )
    for setting, elapsed_us in stored["ranked"][:_TRIES]:
        if elapsed_us * _GAIN > own_us:
            return
        made = Candidate(
            substituted(parent.source, setting),
            parent.origin,
            f"{parent.label}, tuned",
            parent.sha256,
            f"tuned by machine: {tuning.words(setting)}",
        )
        context.store.finish_step(f"made-by-tuning/{made.sha256}", {"parent": parent.sha256})
        yield made
        verdict = context.store.verdict(made.sha256, "screen")
        if verdict is not None and verdict.verdict == "accepted":
            return


def _search(context: ProposalContext, parent: Candidate, settings: list[Any]) -> Found:
    variants = [{"setting": one, "source": substituted(parent.source, one)} for one in settings]
    request = {
        "device": context.device,
        "full_s": FULL_S,
        "prepare_s": PREPARE_S,
        "deadline_s": DEADLINE_S,
        "shapes": _shapes(context, parent),
        "variants": variants,
    }
    files = {
        "task.py": context.task.source,
        "request.json": json.dumps(request),
        "tuning.py": Path(tuning.__file__).read_text(),
    }
    result = context.referee.run_tool(
        PROGRAM.read_text(),
        files,
        deadline_s=max(PREPARE_S, DEADLINE_S) + _GRACE_S,
        device=is_accelerator(context.device),
        timed=True,
    )
    if result.status != "ok" or "tuned.json" not in result.outputs:
        last = (result.stderr or result.stdout).strip().splitlines()[-1:]
        return Found((), f"the tuner ended without an answer ({result.status}): {' '.join(last)[:300]}")
    return read(result.outputs["tuned.json"], settings)


def read(data: bytes, settings: list[Any]) -> Found:
    """Parse the tool's output and keep only requested settings; untrusted, since the candidate may have written it."""
    known = {setting_key(one): one for one in settings}
    ranked: list[tuple[Setting, float]] = []
    try:
        for entry in json.loads(data)["ranked"][: len(settings)]:
            key = setting_key(entry["setting"])
            elapsed_us = float(entry["elapsed_us"])
            if key in known and math.isfinite(elapsed_us) and elapsed_us > 0:
                ranked.append((known.pop(key), elapsed_us))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return Found((), "the tuner's answer has another form")
    return Found(tuple(ranked), "" if ranked else "no setting worked")


def _shapes(context: ProposalContext, parent: Candidate) -> list[dict[str, Any]]:
    """Visible shapes to time, spread evenly from fast to slow."""
    verdict = context.store.verdict(parent.sha256, "screen")
    rows = sorted(visible_rows(verdict) if verdict else [], key=lambda row: row.candidate_us or 0.0)
    shapes = [dict(row.dims) for row in rows]
    if not shapes:
        shapes = [dict(dims) for dims in context.description.shapes.get("visible") or [{}]]
    if len(shapes) <= MOST_SHAPES:
        return shapes
    step = (len(shapes) - 1) / (MOST_SHAPES - 1)
    return [shapes[round(step * number)] for number in range(MOST_SHAPES)]
