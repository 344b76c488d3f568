"""Proposes what the compiler already knows: the code that it generates, as a source that can be edited."""

from __future__ import annotations

from collections.abc import Iterator

from agent.candidates import Candidate
from agent.compiler.inductor import LABELS, NOTE, inductor_source
from agent.errors import ProposalFailed
from agent.proposing import ProposalContext


class CompilerProposer:
    """Origin `compiler`: the code that torch.compile generates, one source for all sizes.

    The modes of torch.compile are baselines, compiled for exactly the shape, so as candidates they would end at 1.0x or below. They
    are not judged: where one of them is the fastest, `agent.portfolio.baselines` makes it a member.
    """

    origin = "compiler"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield at most one candidate; why there is none is told in an event. Both are remembered, so that a resume pays nothing."""
        label = LABELS[context.device]
        step = f"compiler.extract.{label}"
        answer = context.store.step(step)
        if not isinstance(answer, dict):
            dims = context.description.get("dims") or {}
            try:
                answer = {"source": inductor_source(context.referee, context.task, dims, context.device)}
            except ProposalFailed as error:
                answer = {"reason": str(error)}
            context.store.finish_step(step, answer)
        if "source" in answer:
            yield Candidate(answer["source"], self.origin, label, note=NOTE)
        else:
            said = {"origin": self.origin, "label": label, "skipped": answer["reason"]}
            context.store.event("candidate.proposed", said)
