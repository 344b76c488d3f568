"""The contents of a bundle, and evidence.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.candidates import Candidate
from evaluator.description import Description
from evaluator.devices import is_accelerator
from evaluator.precision import TIERS, declared, rounds_operands
from evaluator.verdict import Verdict, as_json

if TYPE_CHECKING:
    from evaluator.sources import TaskSource

SCHEMA = "kernelwright.evidence/1"


@dataclass(frozen=True)
class BundleContents:
    """All inputs for writing the bundle.

    Attributes:
        job_name: the job's display name.
        device: "cpu" or "cuda".
        task: the reference.
        description: `Referee.describe`'s answer.
        optimized: the delivered file as a candidate.
        members: the candidates inside it, winner first.
        decision: "faster" or "same", see `agent.portfolio.Portfolio`.
        reason: one sentence with the result.
        verdicts: of the members and of the delivered file, each with its phase.
        leaderboard: a row per judged candidate, rejected ones included.
        no_fallback: why the delivered file has no fall-back to the reference; empty when it has one.
        models: the model requests and their cost, see `agent.records.account`; empty if no model was used.
        dispatch: which member runs at which sizes and what each candidate contributes, see `agent.portfolio.Portfolio.told`;
            empty without a dispatcher.
    """

    job_name: str
    device: str
    task: TaskSource
    description: Description
    optimized: Candidate
    members: tuple[Candidate, ...]
    decision: str
    reason: str
    verdicts: tuple[tuple[str, Verdict], ...]
    leaderboard: tuple[dict[str, Any], ...]
    no_fallback: str = ""
    models: Mapping[str, Any] = field(default_factory=dict)
    dispatch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def held_out(self) -> Verdict | None:
        """The reported verdict: the delivered file on the held-out shapes."""
        return self.verdict_of(self.optimized, "held_out")

    def verdict_of(self, candidate: Candidate, phase: str) -> Verdict | None:
        """A verdict among `verdicts`, or None."""
        for known, verdict in self.verdicts:
            if known == phase and verdict.candidate["sha256"] == candidate.sha256:
                return verdict
        return None


def evidence(contents: BundleContents) -> dict[str, Any]:
    """evidence.json as a value, with full verdicts including the raw per-quad log ratios."""
    held_out = as_json(contents.held_out) if contents.held_out else {}
    return {
        "schema": SCHEMA,
        "job": contents.job_name,
        "device": contents.device,
        "decision": contents.decision,
        "reason": contents.reason,
        "task": {"name": contents.task.name, "sha256": contents.task.sha256},
        "precision": precision(contents.task, contents.device),
        "dims": contents.description.dims,
        "optimized": {
            "sha256": contents.optimized.sha256,
            "file": "optimized.py",
            "no_fallback": contents.no_fallback or None,
        },
        "members": [
            {
                "file": f"kernels/{kernel_file(number, member)}",
                "sha256": member.sha256,
                "origin": member.origin,
                "label": member.label,
                "note": member.note,
                "parent_sha256": member.parent_sha256,
            }
            for number, member in enumerate(contents.members, start=1)
        ],
        "dispatch": dict(contents.dispatch) or None,
        "models": dict(contents.models),
        "summary": held_out.get("summary", {}),
        "environment": held_out.get("environment", {}),
        "verdicts": [{"phase": phase, **as_json(verdict)} for phase, verdict in contents.verdicts],
        "leaderboard": list(contents.leaderboard),
    }


def evidence_text(contents: BundleContents) -> str:
    """evidence.json as deterministic text."""
    return json.dumps(evidence(contents), indent=1, sort_keys=True, default=str) + "\n"


def kernel_file(number: int, member: Candidate) -> str:
    """File name of a member: its number, origin and label, in portable ASCII characters."""
    label = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in member.label)
    return f"{number}_{member.origin}_{label.strip('_')[:40] or 'candidate'}.py"


def precision(task: TaskSource, device: str) -> dict[str, Any]:
    """The task's precision tier, as reproduce.py sets it up; ``mantissa_bits`` is None if no operand is rounded."""
    tier = declared(task.source)
    found = TIERS[tier]
    bits = found.mantissa_bits if rounds_operands(tier, gpu=is_accelerator(device)) else None
    return {
        "tier": tier,
        "matrix_tf32": found.matrix_tf32,
        "cudnn_tf32": found.cudnn_tf32,
        "mantissa_bits": bits,
    }
