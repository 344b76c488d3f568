"""Proposes the compiler's generated code as an editable source."""

from __future__ import annotations

from collections.abc import Iterator

from agent.candidates import Candidate
from agent.compiler.inductor import LABELS, NOTE, assemble, kept_capture
from agent.errors import ProposalFailed
from agent.proposing import ProposalContext


class CompilerProposer:
    """Origin `compiler`: the code that torch.compile generates, one source for all sizes.

    The torch.compile modes are baselines compiled for the exact shape, so as candidates they would score 1.0x or less. They
    are not judged: where a mode is fastest, `agent.portfolio.baselines` makes it a portfolio member.
    """

    origin = "compiler"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield at most one candidate; if there is none, emit an event with the reason. A resume reuses the stored result."""
        label = LABELS[context.device]
        try:
            source = assemble(kept_capture(context), context.task.source, context.task.name)
        except ProposalFailed as error:
            said = {"origin": self.origin, "label": label, "skipped": str(error)}
            context.store.event("candidate.proposed", said)
        else:
            yield Candidate(source, self.origin, label, note=NOTE)
