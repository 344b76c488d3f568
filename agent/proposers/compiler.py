"""Proposes what the compiler already knows: its generated kernels as editable sources, and its modes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.candidates import Candidate
from agent.compiler.capture import capture
from agent.compiler.graph import graph_source
from agent.compiler.modes import mode_source, modes
from agent.compiler.standalone import standalone_source
from agent.errors import ProposalFailed
from agent.portfolio.entries import wins_everywhere
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
    """Origin `compiler`: extracted kernels first, because they can win; then the modes, which cannot lose by much."""

    origin = "compiler"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield at most eight candidates; what could not be made is told in an event and costs nothing else."""
        seen: set[str] = set()
        yield from self._extracted(context, seen)
        if context.device == "cuda":
            yield from self._graphs(context, seen)
        if not self._modes_needed(context):
            return
        for mode in modes(context.device):
            try:
                source = mode_source(mode, context.task.source, context.task.name)
            except ProposalFailed as error:
                self._tell(context, mode.label, str(error))
                continue
            if source not in seen:
                seen.add(source)
                yield Candidate(source, self.origin, mode.label, note=mode.words)

    def _graphs(self, context: ProposalContext, seen: set[str]) -> Iterator[Candidate]:
        """The reference and the extracted kernels as CUDA graphs, where some shape is not won yet.

        The first stands in where nothing wins: on a GPU the best baseline of small shapes is just that.
        """
        step = "compiler.graphs"
        decided = context.store.step(step)
        if not isinstance(decided, dict):
            decided = {"entered": not wins_everywhere(self._validations(context))}
            context.store.finish_step(step, decided)
        if not decided["entered"]:
            self._tell(context, "cuda graph", "not entered: every validation shape is won already")
            return
        extracted = context.store.step(f"compiler.extract.{CUDA_EXTRACTIONS[0].label}")
        sources = [("cuda graph", context.task.source, "Model")]
        if isinstance(extracted, dict) and "source" in extracted:
            sources.append((f"{CUDA_EXTRACTIONS[0].label} in a cuda graph", extracted["source"], "ModelNew"))
        for label, source, root in sources:
            try:
                made = graph_source(source, context.task.name, root)
            except ProposalFailed as error:
                self._tell(context, label, str(error))
                continue
            if made not in seen:
                seen.add(made)
                yield Candidate(
                    made, self.origin, label, note="replayed as a CUDA graph, outputs copied out of it"
                )

    def _modes_needed(self, context: ProposalContext) -> bool:
        """Whether the modes enter as candidates of their own.

        They are what every candidate is timed against, each compiled for exactly the shape, so as candidates they end
        at 1.0x or below. They are entered to be delivered where nothing else is confidently faster.
        """
        decided = context.store.step("compiler.modes")
        if not isinstance(decided, dict):
            best = max(map(_validated_lower_bound, self._validations(context)), default=0.0)
            decided = {"entered": best <= 1.0, "best_lower_bound": best}
            context.store.finish_step("compiler.modes", decided)
            if not decided["entered"]:
                reason = (
                    f"not entered: a candidate beats all of them on validation shapes (at least {best:.2f}x)"
                )
                self._tell(context, "torch.compile modes", reason)
        return bool(decided["entered"])

    def _worth_another(self, context: ProposalContext, extraction: Extraction) -> bool:
        """Whether a second form of the same kernels is worth its judging: not where something already wins."""
        step = f"compiler.another.{extraction.label}"
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

    def _extracted(self, context: ProposalContext, seen: set[str]) -> Iterator[Candidate]:
        operators: set[str] = set()
        for extraction in CUDA_EXTRACTIONS if context.device == "cuda" else CPU_EXTRACTIONS:
            if extraction.needs and not (
                extraction.needs & operators and self._worth_another(context, extraction)
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
