"""Selects a job's proposers. One file per origin: to add an origin, add a file and a branch here."""

from __future__ import annotations

from agent.proposing import ASKING, Proposer
from agent.spec import JobSpec
from agent.strategy.finishing import Finisher


def proposers_for(spec: JobSpec) -> list[Proposer]:
    """The proposers of a job, in the order of `spec.origins`.

    An origin without a proposer here ("external") submits its candidates another way; "llm" and "policy" are skipped
    unless a model with that origin is configured (`ModelChoice.origin`). `Finisher` comes last.
    """
    found: list[Proposer] = []
    for origin in dict.fromkeys(spec.origins):
        if origin == "human":
            from agent.proposers.human import HumanProposer

            found.append(HumanProposer())
        elif origin == "compiler":
            from agent.proposers.compiler import CompilerProposer

            found.append(CompilerProposer())
        elif origin in ASKING:
            from agent.proposers.llm import LLMProposer

            models = [choice for choice in spec.models if choice.origin == origin]
            if models:
                found.append(
                    LLMProposer(
                        models,
                        spec.budget,
                        strategy=spec.strategy,
                        start_from=spec.start_from,
                        origin=origin,
                    )
                )
    found.append(Finisher(spec.strategy))
    return found
