"""The main loop of a job: describe, propose, judge, choose, assemble, judge once more on held-out shapes, bundle."""

from __future__ import annotations

from agent.spec import Budget, JobOutcome, JobSpec, ModelChoice

__all__ = ["Budget", "JobOutcome", "JobSpec", "ModelChoice"]
