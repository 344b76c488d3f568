"""Baselines as portfolio entries, built from the baseline times in the candidates' verdicts.

The delivered module can therefore fall back to the best baseline at a shape without additional judging.
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
from evaluator.devices import is_accelerator
from evaluator.sources import TaskSource
from evaluator.verdict import ShapeResult, Summary

#: 95 % uncertainty factor of a speedup computed from two medians of the ranking.
_UNSURE = math.exp(1.96 * 0.02)


def baseline_entries(
    task: TaskSource, device: str, entries: Sequence[Entry], judged: Collection[str] = ()
) -> list[Entry]:
    """Entries for the compiled reference in each mode and, on a GPU, as a CUDA graph, at the shapes where it was timed.

    A baseline that is nowhere clearly faster than the plain reference and the baselines before it is left out. Those with the
    longest compile times come last.

    Args:
        task: the reference.
        device: "cpu" or "cuda".
        entries: candidates with their verdicts.
        judged: sha256 of all judged candidates; a baseline that was judged itself is not added.
    """
    if not entries:
        return []
    entries = sorted(entries, key=lambda entry: entry.candidate.sha256)  # independent of judging order
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
    """Each baseline as a candidate, with the referee's name for it; the longest compile times come last."""
    try:
        if is_accelerator(device):
            source = cuda_graph.cuda_graph_source(task.source, task.name)
            graph = Candidate(source, "compiler", cuda_graph.LABEL, note=cuda_graph.NOTE)
            yield graph, cuda_graph.BASELINE
        for mode in modes(device):
            source = mode_source(mode, task.source, task.name)
            candidate = Candidate(source, "compiler", mode.label, note=mode.words)
            yield candidate, baseline_name(mode, device, threads)
    except ProposalFailed:  # its forward cannot be wrapped; only the plain reference remains
        return


def _rows(entries: Sequence[Entry], baseline: str) -> tuple[ShapeResult, ...]:
    """One row per shape where the baseline was timed, with the median over the candidates' verdicts."""
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
