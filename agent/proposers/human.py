"""Candidates from the library of hand-written kernels: origin `human`.

A catalog task with its own library kernel is recognized by its text. Any other module is traced in the sandbox and its
formula compared with those of the library; a matching kernel is written out with the module's own names. On a GPU, kernels of
`agent.kernels` take the place of operations in the compiler's code. A module with neither yields nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agent.candidates import Candidate
from agent.compiler.inductor import assemble, kept_capture
from agent.errors import ProposalFailed
from agent.kernels.writing import with_library
from agent.library.assemble import CannotAssemble
from agent.library.assemble import assemble as assemble_match
from agent.library.by_task import find_task_kernel
from agent.library.find import find_matches
from agent.library.match.canonical import NotRowwise
from agent.library.match.graph import BadGraph, Traced, read_graphs
from agent.memory.features import FEATURES_STEP, features_of
from agent.proposing import ProposalContext
from evaluator.devices import is_accelerator

TRACE_DEADLINE_S = 120.0
_STEP = "library.match"
LIBRARY, LIBRARY_ANY_SIZE = "library kernels", "library kernels, any size"


@cache
def tracing_program() -> str:
    """The program that traces a task in the sandbox."""
    return (Path(__file__).resolve().parents[1] / "library" / "match" / "trace_program.py").read_text(
        encoding="utf-8"
    )


class HumanProposer:
    """Proposes the library kernel for a known task or for a module with a known formula."""

    origin = "human"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield the candidates; the step `library.match` stores the kernels found, or why there are none."""
        candidates, reason = self._match(context)
        if context.store.step(_STEP) is None:
            context.store.finish_step(_STEP, {"kernels": [c.label for c in candidates], "reason": reason})
        yield from candidates
        if is_accelerator(context.device):
            yield from self._in_generated_code(context)

    def _in_generated_code(self, context: ProposalContext) -> Iterator[Candidate]:
        """The compiler's code with the library's kernels: for the module's own sizes, then for others."""
        operations: tuple[str, ...] = ()

        def changed(module: str) -> str:
            nonlocal operations
            text, operations = with_library(module)
            return text

        words = ": the code that torch.compile generates, with kernels of the library."
        try:
            capture = kept_capture(context)
            told = json.loads(capture)
            if not isinstance(told, dict):
                raise ProposalFailed("the capture has another form")
            fault = str(told.get("library_fault", ""))[:300]
            if fault:
                self._skipped(context, f"some operations stay as they are: {fault}")
            has_own = "own" in told
            for own in (True, False) if has_own else (False,):
                source = assemble(capture, context.task.source, context.task.name, words, changed, own=own)
                if operations:
                    sizes = ", for its own sizes" if own else ""
                    note = f"library kernels for {', '.join(operations)} in the code that torch.compile generates{sizes}"
                    label = LIBRARY_ANY_SIZE if has_own and not own else LIBRARY
                    yield Candidate(source, self.origin, label, note=note)
        except (ProposalFailed, ValueError) as error:
            self._skipped(context, str(error))

    def _skipped(self, context: ProposalContext, reason: str) -> None:
        said = {"origin": self.origin, "label": LIBRARY, "skipped": reason}
        context.store.event("candidate.proposed", said)

    def _match(self, context: ProposalContext) -> tuple[list[Candidate], str]:
        kernel = find_task_kernel(context.task.source, context.device)
        if kernel is not None:
            note = f"library kernel, written for the task {kernel.task} of the catalogue"
            return [Candidate(kernel.source, self.origin, f"library {kernel.task}", note=note)], ""
        result = context.referee.run_tool(
            tracing_program(), {"task.py": context.task.source}, deadline_s=TRACE_DEADLINE_S
        )
        report = result.outputs.get("graphs.json")
        if result.status != "ok" or report is None:
            return [], f"the module could not be traced ({result.status})"
        found: list[Candidate] = []
        reason = "the library knows no kernel for this formula"
        try:
            traced = read_graphs(report)
            self._keep_features(context, traced)
            for match in find_matches(traced):
                if context.device not in match.exemplar.devices:
                    reason = f"the library has {match.exemplar.name} for another device only"
                    continue
                try:
                    source = assemble_match(match, context.device, context.task.source)
                except CannotAssemble as error:
                    reason = f"{match.exemplar.name} fits, but {error}"
                    continue
                note = f"library kernel, recognized by its formula: {match.exemplar.formula}"
                found.append(Candidate(source, self.origin, f"library {match.exemplar.name}", note=note))
        except (BadGraph, NotRowwise) as error:
            return [], str(error)
        return found, "" if found else reason

    @staticmethod
    def _keep_features(context: ProposalContext, traced: Traced) -> None:
        """Store the module's features for memory; only this proposer has the traced graph."""
        if context.store.step(FEATURES_STEP) is None:
            features = features_of(context.task.source, context.description, traced)
            context.store.finish_step(FEATURES_STEP, features.to_json())
