"""Candidates from the library of hand-written kernels: origin `human`.

A catalog task with its own library kernel is recognized by its text. For any other module the compiler's graph is captured. On a
GPU, kernels of `agent.kernels.gpu` take the place of operations in the compiler's code; on a CPU, a module that works on rows
becomes one loop (`agent.kernels.cpu`). A module with neither yields nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.candidates import Candidate
from agent.compiler.inductor import assemble, kept_capture
from agent.errors import ProposalFailed
from agent.kernels.by_task import find_task_kernel
from agent.kernels.writing import row_module, with_library
from agent.proposing import ProposalContext
from evaluator.devices import is_accelerator

LIBRARY, LIBRARY_ANY_SIZE, ROWS = "library kernels", "library kernels, any size", "library loop over rows"


class HumanProposer:
    """Proposes the library's kernel for a known task, and the library's operations in a captured graph."""

    origin = "human"

    def propose(self, context: ProposalContext) -> Iterator[Candidate]:
        """Yield the candidates; an event says why there is none."""
        kernel = find_task_kernel(context.task.source, context.device)
        if kernel is not None:
            note = f"library kernel, written for the task {kernel.task} of the catalogue"
            yield Candidate(kernel.source, self.origin, f"library {kernel.task}", note=note)
        on_gpu = is_accelerator(context.device)
        try:
            capture = kept_capture(context)
            told = json.loads(capture)
            if not isinstance(told, dict):
                raise ProposalFailed("the capture has another form")
            yield from (self._in_generated_code if on_gpu else self._over_rows)(context, capture, told)
        except (ProposalFailed, KeyError, TypeError, ValueError) as error:
            said = {"origin": self.origin, "label": LIBRARY if on_gpu else ROWS, "skipped": str(error)[:300]}
            context.store.event("candidate.proposed", said)

    def _in_generated_code(
        self, context: ProposalContext, capture: str, told: dict[str, Any]
    ) -> Iterator[Candidate]:
        """The compiler's code with the library's kernels: for the module's own sizes if the job judges them, then for others."""
        operations: tuple[str, ...] = ()

        def changed(module: str) -> str:
            nonlocal operations
            text, operations = with_library(module)
            return text

        words = ": the code that torch.compile generates, with the library's kernels or changes to the graph."
        fault = str(told.get("library_fault", ""))[:300]
        if fault:
            said = f"some operations stay as they are: {fault}"
            context.store.event(
                "candidate.proposed", {"origin": self.origin, "label": LIBRARY, "skipped": said}
            )
        has_own = "own" in told and context.judges_own_sizes
        for own in (True, False) if has_own else (False,):
            source = assemble(capture, context.task.source, context.task.name, words, changed, own=own)
            if operations or _is_rewritten(told["own"] if own else told):
                what = (
                    f"library kernels for {', '.join(operations)}"
                    if operations
                    else "a graph that the library rewrote"
                )
                sizes = ", for its own sizes" if own else ""
                note = f"{what} in the code that torch.compile generates{sizes}"
                label = LIBRARY_ANY_SIZE if has_own and not own else LIBRARY
                yield Candidate(source, self.origin, label, note=note)

    def _over_rows(self, context: ProposalContext, capture: str, told: dict[str, Any]) -> Iterator[Candidate]:
        """The module as one loop over its rows, if it is one."""
        if not told.get("rows"):
            why = str(told.get("library_fault")).removeprefix("NotRows: ")
            raise ProposalFailed(f"the module is no loop over rows: {why}")
        module = row_module(told["rows"])
        words = ": one loop over rows, each read once from memory."
        source = assemble(capture, context.task.source, context.task.name, words, lambda _: module)
        yield Candidate(
            source, self.origin, ROWS, note="a loop over rows in C++, written for the module's formula"
        )


def _is_rewritten(told: dict[str, Any]) -> bool:
    """Whether the library changed the graph of a capture, if only by operations of torch's."""
    return any((part or {}).get("library") for part in (told, told.get("backward")))
