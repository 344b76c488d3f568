"""Proposes what the compiler already knows: its generated kernels as editable sources, and its modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from agent.candidates import Candidate
from agent.compiler import channels_last, cuda_graph
from agent.compiler.capture import capture
from agent.compiler.modes import mode_source, modes
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
    """Origin `compiler`: extracted kernels and another layout first, because they can win; then the modes, which cannot lose by much."""

    origin = "compiler"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield at most eight candidates; what could not be made is told in an event and costs nothing else."""
        seen: set[str] = set()
        yield from self._extracted(context, seen)
        yield from self._channels_last(context)
        best = self._modes_needed(context)
        for label, note, make in self._modes(context, best):
            try:
                source = make()
            except ProposalFailed as error:
                self._tell(context, label, str(error))
                continue
            if source not in seen:
                seen.add(source)
                yield Candidate(source, self.origin, label, note=note)

    @staticmethod
    def _modes(
        context: ProposalContext, best: Sequence[str] | None
    ) -> Iterator[tuple[str, str, Callable[[], str]]]:
        """Label, note and maker of each mode that is one of the best baselines; None for all."""

        def wanted(baseline: str) -> bool:
            return best is None or any(name.startswith(baseline) for name in best)

        text, title = context.task.source, context.task.name
        if context.device == "cuda" and wanted(cuda_graph.BASELINE):
            yield (cuda_graph.LABEL, cuda_graph.NOTE, partial(cuda_graph.cuda_graph_source, text, title))
        for mode in modes(context.device):
            if wanted(mode.baseline):
                yield mode.label, mode.words, partial(mode_source, mode, text, title)

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

    def _modes_needed(self, context: ProposalContext) -> Sequence[str] | None:
        """The baselines whose modes enter as candidates of their own; None for all, since nothing is known.

        They are what every candidate is timed against, each compiled for exactly the shape, so as candidates they end at 1.0x or
        below. They are entered to be delivered where nothing else is confidently faster, and only those that were the best
        baseline at some shape: to compile and judge the others takes minutes on a GPU, and none of them can come out first.
        """
        decided = context.store.step("compiler.modes")
        if not isinstance(decided, dict):
            best = max(map(_validated_lower_bound, self._validations(context)), default=0.0)
            decided = {
                "entered": best <= 1.0,
                "best_lower_bound": best,
                "baselines": self._best_baselines(context),
            }
            context.store.finish_step("compiler.modes", decided)
            if not decided["entered"]:
                reason = (
                    f"not entered: a candidate beats all of them on validation shapes (at least {best:.2f}x)"
                )
                self._tell(context, "torch.compile modes", reason)
        if not decided["entered"]:
            return ()
        return cast("list[str]", decided.get("baselines")) or None

    @staticmethod
    def _best_baselines(context: ProposalContext) -> list[str]:
        """Which baselines were the best one at a shape where a candidate was timed."""
        found: set[str] = set()
        for candidate in context.store.candidates():
            for phase in ("screen", "validation"):
                verdict = context.store.verdict(candidate.sha256, phase) or {}
                found |= {
                    row["best_baseline"] for row in verdict.get("shapes") or [] if row.get("best_baseline")
                }
        return sorted(found)

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
