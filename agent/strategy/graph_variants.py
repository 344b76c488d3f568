"""Graph variants: accepted candidates replayed as a CUDA graph, if launch overhead matters.

The best baseline may be a CUDA graph, which needs one launch per call. A candidate with several kernels must not lose to it
because of launch overhead alone, so its graph variant is judged as a separate candidate right after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.candidates import Candidate
from agent.compiler.cuda_graph import cuda_graph_source
from agent.errors import ProposalFailed
from agent.folding import BEGIN
from agent.kernels.writing import as_replayed
from agent.portfolio.entries import timed_rows
from agent.strategy.ablation import ABLATED_STEPS
from evaluator.devices import is_accelerator
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from agent.store import JobStore

_ENDING = " in a CUDA graph"
#: Shorter calls may be launch-bound: a launch takes about 5 us, and modules have several. The library's kernels are launched from
#: Python, five or more for an operation, at 30 to 100 us each.
_SHORT_US, _SHORT_WITH_LIBRARY_US = 100.0, 5000.0
#: Baselines with one launch per call.
_GRAPHS = ("cuda_graph", "compile_reduce_overhead", "compile_max_autotune")


def graph_variant(store: JobStore, candidate: Candidate, device: str) -> Candidate | None:
    """The graph variant of an accepted candidate; None if launches do not matter or it cannot be a graph.

    Args:
        store: the job's store, with the candidate's verdicts.
        candidate: any candidate.
        device: "cpu" or "cuda".
    """
    if (
        not is_accelerator(device)
        or is_graph_variant(candidate)
        or store.step(f"{ABLATED_STEPS}{candidate.sha256}") is not None
    ):
        return None
    if candidate.origin == "compiler" and "torch.compile(" in candidate.source:
        return None  # the reduce-overhead mode already uses a graph
    verdicts = [store.verdict(candidate.sha256, phase) for phase in ("screen", "validation")]
    accepted = [one for one in verdicts if one is not None and one.verdict == "accepted"]
    replayed = as_replayed(candidate.source)
    short_us = _SHORT_WITH_LIBRARY_US if BEGIN in candidate.source else _SHORT_US
    if len(accepted) < len(verdicts) or not any(_launches_matter(verdict, short_us) for verdict in accepted):
        return None
    try:
        source = cuda_graph_source(replayed, candidate.label, "ModelNew")
    except ProposalFailed:
        return None
    label = f"{candidate.label}{_ENDING}"
    return Candidate(source, candidate.origin, label, candidate.sha256, candidate.note)


def is_graph_variant(candidate: Candidate) -> bool:
    """Whether a candidate is a graph variant, which is never tuned, ablated or shown to a model."""
    return candidate.parent_sha256 is not None and candidate.label.endswith(_ENDING)


def _launches_matter(verdict: Verdict, short_us: float) -> bool:
    return any(
        str(row.best_baseline).startswith(_GRAPHS) or (row.candidate_us or short_us) < short_us
        for row in timed_rows(verdict)
    )
