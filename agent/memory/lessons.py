"""Builds memory entries from a finished job: pairs of a slower and a faster candidate, and failures with their reason.

Sentences use only the verdict's word, figures and rule names. A verdict's `reason`, evidence and detail may quote the
candidate or the task, and such untrusted text must not reach another job's prompt.
Only screen verdicts are used: they cover visible and adversarial shapes; validation and held-out figures never reach a proposer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.candidates import Judged
from agent.memory.entries import (
    MAX_SENTENCE_CHARACTERS,
    MAX_SENTENCES,
    MAX_SOURCE_CHARACTERS,
    MemoryEntry,
)
from agent.memory.features import Features
from agent.redaction import holds_secret
from evaluator.counting import counted
from evaluator.verdict import LABELS, Verdict

#: Steps with a job's ablation lessons: {"sentence", "after_sha256", ...}, in words from a closed list.
LESSON_STEPS = "lesson/"
_LEAST_RATIO = 1.05  # below this ratio, a difference may be noise
_MOST_PAIRS = 3
_MOST_FAILURES = 3
_RULE = re.compile(r"[a-z][a-z0-9_.-]{0,59}")
# Compiler candidates hold no lesson for writing kernels; external ones belong to their authors.
_TEACHING = ("llm", "policy", "human")
_BLAMELESS = ("accepted", "not_judged", "task_rejected")


@dataclass(frozen=True)
class JobFacts:
    """Fields shared by all entries of a job; see `MemoryEntry`."""

    task_name: str
    task_sha256: str
    device: str
    architecture: str
    features: Features


def entries_of(
    facts: JobFacts,
    judged: Sequence[Judged],
    *,
    with_sources: bool,
    learnt: Mapping[str, Sequence[str]] | None = None,
    secrets: Collection[str] = (),
) -> list[MemoryEntry]:
    """The entries of a job: at most three pairs (largest gain first) and three failures (one per kind).

    Args:
        facts: the job's facts.
        judged: its candidates in order of arrival.
        learnt: sentences in this project's own words about what made a candidate fast, by its sha256.
        with_sources: keep the candidates' sources; otherwise keep only sentences and drop the task's name.
        secrets: values that no entry may contain, in addition to anything that looks like a key.
    """
    teaching = [one for one in judged if one.candidate.origin in _TEACHING]
    found = [*_pairs(facts, teaching, learnt or {}), *_failures(facts, teaching)]
    if not with_sources:
        found = [entry.without_sources() for entry in found]
    return [entry for entry in found if not holds_secret(f"{entry.slow}\n{entry.fast}", secrets)]


def _pairs(
    facts: JobFacts, judged: Sequence[Judged], learnt: Mapping[str, Sequence[str]]
) -> list[MemoryEntry]:
    """Pairs of child and parent with a gain; for the best candidate without one, the worst or the baseline."""
    timed = {one.candidate.sha256: one for one in judged if one.speedup}
    if not timed:
        return []
    by_speed = sorted(timed.values(), key=lambda one: one.speedup)
    pairs: dict[str, tuple[Judged | None, Judged]] = {}
    for one in reversed(by_speed):
        parent = timed.get(one.candidate.parent_sha256 or "")
        if parent is not None and one.speedup / parent.speedup >= _LEAST_RATIO:
            pairs[one.candidate.sha256] = (parent, one)
    worst, best = by_speed[0], by_speed[-1]
    if best.candidate.sha256 not in pairs:
        if best.speedup / worst.speedup >= _LEAST_RATIO:
            pairs[best.candidate.sha256] = (worst, best)
        elif best.speedup >= _LEAST_RATIO:
            pairs[best.candidate.sha256] = (None, best)
    entries = [
        _pair(facts, slow, fast, learnt.get(fast.candidate.sha256, ())) for slow, fast in pairs.values()
    ]
    # Candidates with ablation lessons come first, regardless of their gain.
    return sorted(entries, key=lambda entry: (entry.sha256 not in learnt, -(entry.ratio or 0.0)))[
        :_MOST_PAIRS
    ]


def _pair(facts: JobFacts, slow: Judged | None, fast: Judged, learnt: Sequence[str]) -> MemoryEntry:
    slow_speed = slow.speedup if slow else 1.0
    ratio = fast.speedup / slow_speed
    against = f"an earlier version had {slow_speed:.2f}x" if slow else "nothing slower was tried"
    sentences = [
        f"Over the visible shapes it had {fast.speedup:.2f}x the speed of the best baseline; {against}.",
        *_spread(fast.verdict),
        *_kind_of_win(fast.verdict),
        *_launches(slow, fast),
    ]
    room = MAX_SENTENCES - len(sentences)
    sentences += [s for s in learnt if len(s) <= MAX_SENTENCE_CHARACTERS and s.isprintable()][:room]
    return _entry(facts, "faster", fast, sentences, ratio, _kept(slow), _kept(fast))


def _failures(facts: JobFacts, judged: Sequence[Judged]) -> list[MemoryEntry]:
    """One entry per verdict word and set of rules, in order of arrival."""
    seen: dict[tuple[str, ...], MemoryEntry] = {}
    for one in judged:
        word = one.verdict.verdict
        if word in _BLAMELESS:
            continue
        rules = _rules(one.verdict)
        if (word, *rules) in seen:
            continue
        because = f" by {', '.join(rules)}" if rules else ""
        sentences = [
            f"The referee's verdict was {word}{because}."[:MAX_SENTENCE_CHARACTERS],
            *_wrong_shapes(one.verdict),
        ]
        # never show a cheating source as an example
        source = "" if word == "cheating" else _kept(one)
        seen[(word, *rules)] = _entry(facts, "failure", one, sentences, None, source, "")
    return list(seen.values())[:_MOST_FAILURES]


def _entry(
    facts: JobFacts,
    kind: str,
    about: Judged,
    sentences: Sequence[str],
    ratio: float | None,
    slow: str,
    fast: str,
) -> MemoryEntry:
    return MemoryEntry(
        kind=kind,
        sha256=about.candidate.sha256,
        task_name=facts.task_name,
        task_sha256=facts.task_sha256,
        device=facts.device,
        architecture=facts.architecture,
        features=facts.features,
        sentences=tuple(sentences),
        ratio=ratio,
        slow=slow,
        fast=fast,
    )


def _kept(one: Judged | None) -> str:
    """A candidate's source, or "" if it is too long; it is never truncated."""
    text = one.candidate.shown if one else ""
    return text if len(text) <= MAX_SOURCE_CHARACTERS else ""


def _rules(verdict: Verdict) -> list[str]:
    names = {finding.rule for finding in verdict.findings if finding.severity in ("cheat", "error")}
    return sorted(name for name in names if _RULE.fullmatch(name))[:4]


def _visible_speedups(verdict: Verdict) -> list[float]:
    return [row.speedup for row in verdict.shapes if row.split == "visible" and row.timed and row.speedup]


def _spread(verdict: Verdict) -> list[str]:
    speeds = _visible_speedups(verdict)
    if len(speeds) < 2:
        return []
    slower = sum(speed < 1 for speed in speeds)
    return [f"From {min(speeds):.2f}x to {max(speeds):.2f}x over {len(speeds)} shapes, slower at {slower}."]


def _kind_of_win(verdict: Verdict) -> list[str]:
    labels = [label.replace("_", " ") for label in verdict.labels if label in LABELS]
    return [f"Kind of win: {', '.join(labels)}."] if labels else []


def _launches(slow: Judged | None, fast: Judged) -> list[str]:
    before, after = (_calls(one.verdict) if one else 0 for one in (slow, fast))
    if not after:
        return []
    return [
        f"One call runs {counted(after, 'kernel or operation', 'kernels or operations')}{f', before {before}' if before else ''}."
    ]


def _calls(verdict: Verdict) -> int:
    return sum(kernel.calls for kernel in verdict.kernels if kernel.kind != "none")


def _wrong_shapes(verdict: Verdict) -> list[str]:
    rows = [row for row in verdict.shapes if row.split in ("visible", "adversarial")]
    wrong = sum(not row.correct for row in rows)
    return [f"Wrong at {wrong} of {counted(len(rows), 'shape')}."] if wrong else []
