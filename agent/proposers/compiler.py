"""Proposes what the compiler already knows: another layout, and its generated kernels as editable sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.candidates import Candidate
from agent.compiler import channels_last
from agent.compiler.capture import capture
from agent.compiler.standalone import standalone_source
from agent.errors import ProposalFailed
from agent.proposers.base import ProposalContext


@dataclass(frozen=True)
class Extraction:
    """One way to ask for generated kernels.

    Attributes:
        label: for tables.
        request: switches of the capture program (see `sandboxed/capture_program.py`).
        settings: Inductor settings by dotted name.
        needs: operators without which this asks for the same code as the extraction before it; empty for "always".
        note: what is special about it.
    """

    label: str
    note: str
    request: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()


_VARIANCE = frozenset(
    {"layer_norm", "group_norm", "native_layer_norm", "batch_norm", "instance_norm", "var", "var_mean", "std"}
)

CPU_EXTRACTIONS = (
    Extraction("inductor C++", "generated kernels; variances as two sums by row", {"variance_by_row": True}),
    Extraction("inductor C++, Welford", "generated kernels as torch.compile would run them", needs=_VARIANCE),
)
CUDA_EXTRACTIONS = (Extraction("inductor Triton", "generated kernels with one launch setting each"),)


class CompilerProposer:
    """Origin `compiler`: another layout, which is soon judged, then the generated kernels.

    The modes of torch.compile are baselines, compiled for exactly the shape, so as candidates they would end at 1.0x or below. They
    are not judged: where one of them is the fastest, `agent.portfolio.baselines` makes it a member.
    """

    origin = "compiler"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield at most four candidates; what could not be made is told in an event and costs nothing else."""
        yield from self._channels_last(context)
        yield from self._extracted(context)

    def _channels_last(self, context: ProposalContext) -> Iterator[Candidate]:
        """Another layout is no baseline's, so it can win, but only where a library has kernels for it."""
        if not channels_last.holds_images(context.task.source):
            return
        for compiled, label in channels_last.LABELS.items():
            try:
                source = channels_last.channels_last_source(
                    context.task.source, context.task.name, compiled=compiled
                )
            except ProposalFailed as error:
                self._tell(context, label, str(error))
                return
            yield Candidate(source, self.origin, label, note=channels_last.NOTE)

    def _worth_it(self, context: ProposalContext, step: str) -> bool:
        """Whether something that cannot win by much is worth its judging: not where something wins already."""
        decided = context.store.step(step)
        if not isinstance(decided, dict):
            best = max(map(_validated_lower_bound, self._validations(context)), default=0.0)
            decided = {"entered": best <= 1.0, "best_lower_bound": best}
            context.store.finish_step(step, decided)
        return bool(decided["entered"])

    @staticmethod
    def _validations(context: ProposalContext) -> list[dict[str, Any]]:
        found = (context.store.verdict(one.sha256, "validation") for one in context.store.candidates())
        return [verdict for verdict in found if verdict is not None and verdict["verdict"] == "accepted"]

    def _extracted(self, context: ProposalContext) -> Iterator[Candidate]:
        seen: set[str] = set()
        operators: set[str] = set()
        for extraction in CUDA_EXTRACTIONS if context.device == "cuda" else CPU_EXTRACTIONS:
            if extraction.needs and not (
                extraction.needs & operators
                and self._worth_it(context, f"compiler.another.{extraction.label}")
            ):
                continue
            try:
                answer = self._extract(context, extraction)
            except ProposalFailed as error:
                answer = {"reason": str(error)}
            if "source" not in answer:
                self._tell(context, extraction.label, answer["reason"])
                return  # whatever stands in the way stands in the way of the others too
            operators = set(answer["operators"])
            if answer["source"] not in seen:
                seen.add(answer["source"])
                yield Candidate(answer["source"], self.origin, extraction.label, note=extraction.note)

    def _extract(self, context: ProposalContext, extraction: Extraction) -> dict[str, Any]:
        """The source and its operators, or the reason why there is none; remembered, so that a resume pays nothing."""
        step = f"compiler.extract.{extraction.label}"
        known = context.store.step(step)
        if isinstance(known, dict):
            return known
        dims = context.description.get("dims") or {}
        captured = capture(
            context.referee, context.task, dims, context.device, extraction.settings, extraction.request
        )
        answer: dict[str, Any] = {"reason": captured.reason}
        if captured.variants:
            try:
                source = standalone_source(captured, context.task.source, context.task.name, context.device)
                names = {name.split(".")[1] for variant in captured.variants for name in variant.operators}
                answer = {"source": source, "operators": sorted(names)}
            except ProposalFailed as error:
                answer = {"reason": str(error)}
        context.store.finish_step(step, answer)
        return answer

    def _tell(self, context: ProposalContext, label: str, reason: str) -> None:
        context.store.event("candidate.proposed", {"origin": self.origin, "label": label, "skipped": reason})


def _validated_lower_bound(verdict: dict[str, Any]) -> float:
    """Lower end of the geometric mean's interval, 0 where nothing was timed."""
    interval = verdict["summary"].get("geomean_ci95")
    return float(interval[0]) if interval else 0.0
