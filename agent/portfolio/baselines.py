"""The ways to run the reference that anybody has, as entries: what the referee measured of them stands in every verdict.

So what is delivered can fall back to the best baseline at a shape without a judging more, whoever proposed the candidates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from agent.candidates import Candidate
from agent.compiler import cuda_graph
from agent.compiler.modes import baseline_name, mode_source, modes
from agent.dispatch.domain import dims_key
from agent.errors import ProposalFailed
from agent.portfolio.entries import TIE, Entry, eager_speedups, ranked_speedup, timed_rows
from evaluator.sources import TaskSource
from evaluator.verdict import ShapeResult, Summary

#: Of a log speedup that two medians of the ranking give, at 95 %.
_UNSURE = math.exp(1.96 * 0.02)


def baseline_entries(
    task: TaskSource, device: str, entries: Sequence[Entry], judged: Collection[str] = ()
) -> list[Entry]:
    """The compiled reference in each mode and, on a GPU, as a CUDA graph, wherever a candidate was timed against it.

    One that is nowhere clearly faster than the plain reference and those before it is left out: the dearest to compile come last.

    Args:
        task: the reference.
        device: "cpu" or "cuda".
        entries: candidates with their verdicts.
        judged: sha256 of candidates that the referee has spoken of: what was judged itself is not added.
    """
    if not entries:
        return []
    entries = sorted(entries, key=lambda entry: entry.candidate.sha256)  # in whatever order they were judged
    environment = entries[0].verdict.environment
    found: list[Entry] = []
    known: dict[str, float] = {}
    for entry in entries:
        known |= eager_speedups(entry.verdict)
    own = {entry.candidate.sha256 for entry in entries}
    for candidate, baseline in _ways(task, device, int(environment.get("threads") or 1)):
        rows = _rows(entries, baseline)
        speedups = {dims_key(row.dims): row.speedup or 0.0 for row in rows}
        if candidate.sha256 in judged and candidate.sha256 not in own:
            continue  # it was rejected
        if not any(speedup > known.get(key, 0.0) * (1 + TIE) for key, speedup in speedups.items()):
            continue
        known |= {key: max(speedup, known.get(key, 0.0)) for key, speedup in speedups.items()}
        if candidate.sha256 in own:
            continue
        mean = statistics.geometric_mean(speedups.values())
        summary = Summary(mean, (mean / _UNSURE, mean * _UNSURE))
        verdict = replace(entries[0].verdict, summary=summary, shapes=rows)
        order = max(entry.order for entry in entries) + 1 + len(found)
        found.append(Entry(candidate, order, verdict, baseline=baseline))
    return found


def _ways(task: TaskSource, device: str, threads: int) -> Iterator[tuple[Candidate, str]]:
    """Each way to run the reference with the name of the baseline that it is, those that compile longest last."""
    try:
        if device == "cuda":
            source = cuda_graph.cuda_graph_source(task.source, task.name)
            graph = Candidate(source, "compiler", cuda_graph.LABEL, note=cuda_graph.NOTE)
            yield graph, cuda_graph.BASELINE
        for mode in modes(device):
            source = mode_source(mode, task.source, task.name)
            candidate = Candidate(source, "compiler", mode.label, note=mode.words)
            yield candidate, baseline_name(mode, device, threads)
    except ProposalFailed:  # its forward cannot be wrapped: the plain reference alone is left
        return


def _rows(entries: Sequence[Entry], baseline: str) -> tuple[ShapeResult, ...]:
    """A row for each shape where the baseline was timed, by the median over the candidates' verdicts."""
    rows: dict[str, ShapeResult] = {}
    speedups: dict[str, list[float]] = {}
    for entry in entries:
        for row in timed_rows(entry.verdict):
            speedup = ranked_speedup(row, baseline)
            if speedup:
                key = dims_key(row.dims)
                rows.setdefault(key, row)
                speedups.setdefault(key, []).append(speedup)
    found = []
    for key, row in rows.items():
        speedup = min(statistics.median(speedups[key]), 1.0)
        interval = (speedup / _UNSURE, speedup * _UNSURE)
        found.append(replace(row, candidate_us=None, speedup=speedup, ci95=interval, decision=None, pairs=()))
    return tuple(found)
