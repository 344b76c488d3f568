"""Decides which jobs rank, for the boards, the job's page and the HTTP API.

A job ranks by the verdict on its delivered module at held-out shapes, if all of these conditions hold:

- the task is a catalogue file, matched by the digest of its text: against a slow private reference, anything would look fast;
- the referee chose the shapes: a job with its own shapes, sizes or traffic measures something else;
- the verdict is `accepted`, from a confirmation (several pairs of fresh processes) by the current referee version;
- it was measured in a sandbox, on a machine that reported its type;
- it has no finding above severity `info`, known or unknown, except one that does not affect speed. Rules on the source text
  apply to each member's own file instead of the delivered one: this project assembles that file around the members, with a
  dispatcher that falls back to the reference and reads version counters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.fingerprint import platform, type_of
from evaluator.integrity import rules
from evaluator.integrity.static import NOT_ANALYZED
from evaluator.verdict import HARNESS_VERSION
from kernelbench_tasks import catalog
from services.db.models import Candidate, Job, Verdict

_CHOSEN_BY_USER = {"shapes": "shapes", "space": "sizes", "traffic": "traffic"}
_FEWEST_PAIRS = 2
#: Warnings that do not affect the speedup: a module with several kernels and a fallback does not run each at every shape.
_HARMLESS = frozenset({"fallback_ran"})
#: Info findings that disqualify: the candidate was checked without the real device.
_NOT_REAL = frozenset({"interpreted"})
#: Rules that examine only the source text.
_BY_TEXT = frozenset(rule.name for rule in rules.ALL)
_SANDBOXES = frozenset({"container", "namespaces", "landlock"})
#: Environment fields that describe a platform to people.
_VERSIONS = ("driver", "power_limit_w", "torch", "triton", "threads")


@dataclass(frozen=True)
class Board:
    """The board that a job ranks on: the columns of `services.db.models.Leaderboard` that describe it."""

    task_sha256: str
    task_name: str
    harness: str
    platform: str
    device: str
    device_type: str
    versions: dict[str, Any]


@dataclass(frozen=True)
class Figures:
    """A ranked job's speedups over the best baseline at each held-out shape: geometric mean, 95 % interval, worst shape."""

    geomean: float
    ci_low: float
    ci_high: float
    worst: float
    shapes: int


@dataclass(frozen=True)
class Standing:
    """A ranked job's board, figures and winner."""

    board: Board
    figures: Figures
    winner: Candidate


@dataclass(frozen=True)
class NotListed:
    """Why a job does not rank, in one sentence."""

    reason: str


def decide(
    job: Job, winner: Candidate | None, held_out: Verdict | None, members: Sequence[Mapping[str, Any]] = ()
) -> Standing | NotListed:
    """Decide whether a job ranks.

    Args:
        job: its row.
        winner: the row of `job.winner_sha256`.
        held_out: the verdict on the delivered module.
        members: verdicts on every candidate in that module, each judged separately; empty if any is unknown, in which case the
            text findings on the module count instead.
    """
    task = catalog.find_by_sha256(job.task_sha256)
    if task is None:
        return NotListed("its task is not one of the catalogue: only those rank")
    for name, words in _CHOSEN_BY_USER.items():
        if job.request.get(name):
            return NotListed(f"its {words} were the user's choice: only the referee's own shapes rank")
    if job.state != "succeeded" or winner is None:
        return NotListed("it has not ended with a delivered module")
    if held_out is None:
        return NotListed("its delivered module has no held-out verdict")
    body = held_out.body
    refused = _unconfirmed(body) or _unknown_machine(body) or _flagged(body, members)
    if refused:
        return NotListed(refused)
    if (body.get("task") or {}).get("sha256") != job.task_sha256:
        return NotListed("its verdict is about another task")
    figures = _figures(body)
    if figures is None:
        return NotListed("its speed was not measured")
    environment = body["environment"]
    board = Board(
        task_sha256=task.sha256,
        task_name=task.name,
        harness=HARNESS_VERSION,
        platform=platform(environment),
        device=str(environment["device"])[:16],
        device_type=type_of(environment)[:200],
        versions={name: environment.get(name) for name in _VERSIONS},
    )
    return Standing(board, figures, winner)


def _unconfirmed(body: Mapping[str, Any]) -> str:
    if body.get("verdict") != "accepted":
        return "its delivered module was not accepted at held-out shapes"
    if body.get("effort") != "confirm" or "held_out" not in (body.get("splits") or ()):
        return "its figure is provisional: only confirmations at held-out shapes rank"
    pairs = (body.get("timing") or {}).get("pairs")
    if not isinstance(pairs, int) or pairs < _FEWEST_PAIRS:
        return "its figure is provisional: it does not rest on several pairs of processes"
    return ""


def _unknown_machine(body: Mapping[str, Any]) -> str:
    environment = body.get("environment")
    if not isinstance(environment, Mapping) or not type_of(environment) or not environment.get("device"):
        return "the machine that it was measured on is not known"
    harness = environment.get("harness")
    if harness != HARNESS_VERSION:
        return f"it was measured by version {harness} of the referee, and figures of version {HARNESS_VERSION} are others"
    if environment.get("sandbox_tier") not in _SANDBOXES:
        return "it was not measured in a sandbox"
    return ""


def _flagged(body: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    if members:
        shown = [one for member in members for one in member.get("findings") or () if _is_of_text(one)]
        if any(one.get("rule") == NOT_ANALYZED for one in shown):
            return "the text of a candidate in it could not be analyzed"
    else:
        shown = [one for one in body.get("findings") or () if _is_of_text(one)]
    others = [one for one in body.get("findings") or () if not _is_of_text(one)]
    for finding in (*shown, *others):
        rule, severity = str(finding.get("rule")), finding.get("severity")
        if rule in _HARMLESS and severity == "warning":
            continue
        if severity != "info" or rule in _NOT_REAL:
            return f"the referee remarked on it ({rule.replace('_', ' ')})"
    return ""


def _is_of_text(finding: Mapping[str, Any]) -> bool:
    return finding.get("rule") in _BY_TEXT or finding.get("rule") == NOT_ANALYZED


def _figures(body: Mapping[str, Any]) -> Figures | None:
    summary = body.get("summary") or {}
    interval = summary.get("geomean_ci95")
    if not isinstance(interval, list) or len(interval) != 2:
        return None
    found = [summary.get("geomean_speedup"), *interval, summary.get("worst_speedup")]
    if not all(isinstance(one, int | float) and math.isfinite(one) and one > 0 for one in found):
        return None
    geomean, low, high, worst = map(float, found)
    timed = sum(bool(shape.get("timed")) for shape in body.get("shapes") or ())
    if not low <= geomean <= high or not timed:
        return None
    return Figures(geomean, low, high, worst, timed)
