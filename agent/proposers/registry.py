"""Which proposers a job runs. One file per origin; a new origin is a new file and a line here."""

from __future__ import annotations

from agent.proposers.base import Proposer
from agent.spec import JobSpec
from agent.strategy.finishing import Finisher


def proposers_for(spec: JobSpec) -> list[Proposer]:
    """The proposers of a job, in the order of `spec.origins`.

    An origin without a proposer here ("external", "policy") brings its candidates by another way; "llm" is skipped
    while no model is configured. What finishes a search comes last.
    """
    found: list[Proposer] = []
    for origin in dict.fromkeys(spec.origins):
        if origin == "human":
            from agent.proposers.human import HumanProposer

            found.append(HumanProposer())
        elif origin == "compiler":
            from agent.proposers.compiler import CompilerProposer

            found.append(CompilerProposer())
        elif origin == "llm" and spec.models:
            from agent.proposers.llm import LLMProposer

            found.append(LLMProposer(spec.models, spec.budget, spec.strategy, spec.start_from))
    found.append(Finisher(spec.strategy))
    return found
