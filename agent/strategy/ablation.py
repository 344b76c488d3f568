"""Ablation: undoes a winner's changes against its ancestor one at a time and judges each result.

A change is a block of differing lines and is undone as plain text. Results that do not parse are skipped; a change without
which the file does not work is reported as needed. A lesson is a measured factor with a sentence, not an opinion: models that
explain a speedup after the fact are often wrong.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.languages import DEVICES
from agent.memory.lessons import LESSON_STEPS
from agent.portfolio.clusters import visible_geomean, visible_rows
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from agent.store import JobStore

#: Factors closer to 1 than this are screening noise.
_NOISE = 1.03
#: Diff time grows with the square of the line count, and a file may have a hundred thousand equal lines.
_MOST_LINES = 2000
_COMMENT = re.compile(r"(^|\s)(#|//)\s.*$")
ABLATED_STEPS = "made-by-ablation/"
"""Steps that mark candidates made by undoing a change, by sha256; their failures are not lessons."""


# A closed list: memory passes sentences from one job to others, and a critic's own words may quote text from a user's module,
# including instructions.
_TECHNIQUES: tuple[tuple[str, str], ...] = (
    (r"_mm\d*_|__m\d{3}|\bomp simd\b|\bfloat4\b|\bint4\b|__restrict__", "explicit vector loads and arithmetic"),
    (r"\bomp\b.{0,80}\bparallel\b|num_threads|schedule\(", "another way to share work between threads"),
    (r"\b__shared__\b|extern __shared__", "staging in shared memory"),
    (r"\b(wmma|wgmma|mma_sync)\b|\btl\.dot\b|_tile_dp", "matrix units"),
    (r"CUDAGraph|make_graphed_callables", "replaying a CUDA graph"),
    (r"\bnum_warps\b|\bnum_stages\b|\bBLOCK\w*|\bTILE\w*|\bblockDim\b|\bUNROLL\w*|#pragma unroll", "other block sizes"),
    (r"__shfl|\btl\.(sum|max|reduce)\b|\bwarp\w*reduce", "another reduction"),
    (r"\b(bfloat16|float16|half|tf32|allow_tf32)\b", "lower precision"),
    (r"\bprogram_id\b|\bgrid\b|<<<", "another split of the work over blocks"),
    (r"\bload_inline\b|-O3|-march|-ffast-math|extra_c(uda_)?flags", "compiler settings"),
    (r"\b(data_ptr|ctypes|empty_like|torch\.empty|contiguous|view|stride)\b", "less overhead around the kernel"),
    (r"\b(exp|rsqrt|sqrt|log|tanh|erf)\w*\(", "cheaper elementwise arithmetic"),
    (r"\b(for|while)\b", "another order of loops"),
)  # fmt: skip


def technique(text: str) -> str:
    """The technique of changed lines: the first entry of the list that matches its lines, else "a change of code"."""
    for pattern, words in _TECHNIQUES:
        if re.search(pattern, text):
            return words
    return "a change of code"


@dataclass(frozen=True)
class Lesson:
    """One sentence and its evidence.

    Attributes:
        kind: "change_paid", "change_did_not_pay" or "change_is_needed".
        sentence: for prompts of other jobs; contains neither source nor the task's name, which belong to the user.
        factor: measured speed with the change over speed without it; None if the file fails without it.
        before_sha256: the candidate without the change.
        after_sha256: the candidate with it.
    """

    kind: str
    sentence: str
    factor: float | None
    before_sha256: str
    after_sha256: str

    def to_json(self) -> dict[str, Any]:
        """The lesson as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class Change:
    """One block of lines that differs between a winner and its ancestor.

    Attributes:
        number: from 1, top to bottom.
        begin, end: line range in the winner, from 0, `end` excluded.
        before: the ancestor's lines.
        after: the winner's lines.
    """

    number: int
    begin: int
    end: int
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def technique(self) -> str:
        """The technique of the change, in this project's own words."""
        return technique("\n".join([*self.after, *self.before]))


def changes(ancestor: str, winner: str) -> list[Change]:
    """The changes between two files, ignoring comments and blank lines; empty for files over `_MOST_LINES` lines."""
    before, after = ancestor.splitlines(), winner.splitlines()
    if max(len(before), len(after)) > _MOST_LINES:
        return []
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    blocks: list[list[int]] = []
    for tag, a_begin, a_end, b_begin, b_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        if blocks and not _meaning(after[blocks[-1][3] : b_begin]):  # no code lines between them
            blocks[-1][1], blocks[-1][3] = a_end, b_end
        else:
            blocks.append([a_begin, a_end, b_begin, b_end])
    found: list[Change] = []
    for a_begin, a_end, b_begin, b_end in blocks:
        old, new = tuple(before[a_begin:a_end]), tuple(after[b_begin:b_end])
        if _meaning(old) != _meaning(new):
            found.append(Change(len(found) + 1, b_begin, b_end, old, new))
    return found


def undo(winner: str, change: Change) -> str | None:
    """The winner with one change undone; None if the result does not parse as Python."""
    lines = winner.splitlines()
    lines[change.begin : change.end] = change.before
    source = "\n".join(lines) + "\n"
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return source


def lesson(
    change: Change,
    winner_sha256: str,
    without_sha256: str,
    winner: Verdict,
    without: Verdict,
    device: str,
) -> Lesson | None:
    """The lesson from judging the file without a change; None if it could not be judged or compared.

    Args:
        change: the undone change.
        winner_sha256: the file with it.
        without_sha256: the file without it.
        winner: verdict of the file with it.
        without: verdict of the file without it.
        device: "cpu" or "cuda".
    """
    what, word = change.technique, without.verdict
    if word == "accepted":
        common = _common(winner, without)
        if not common:
            return None
        base = visible_geomean(without, common)
        factor = visible_geomean(winner, common) / base
        device_name = DEVICES.get(device, device)
        if factor >= _NOISE:
            kind, text = (
                "change_paid",
                f"{what}: {factor:.2f}x on {device_name}, measured by undoing it alone",
            )
        elif factor <= 1 / _NOISE:
            kind, text = (
                "change_did_not_pay",
                f"{what}: slower on {device_name}, {factor:.2f}x, measured by undoing it",
            )
        else:
            kind, text = (
                "change_did_not_pay",
                f"{what}: no measurable difference on {device_name} ({factor:.2f}x)",
            )
        return Lesson(kind, text, round(factor, 4), without_sha256, winner_sha256)
    if word in ("not_judged", "task_rejected"):
        return None
    text = f"{what}: without it the result is {word.replace('_', ' ')}, so its own share of the speed is not known"
    return Lesson("change_is_needed", text, None, without_sha256, winner_sha256)


def first_paid(lessons: Sequence[Lesson]) -> Lesson | None:
    """The lesson with the largest factor among changes that paid, or None."""
    paid = [one for one in lessons if one.kind == "change_paid" and one.factor is not None]
    return max(paid, key=lambda one: one.factor or 0.0, default=None)


def _common(first: Verdict, second: Verdict) -> list[Mapping[str, Any]]:
    theirs = [row.dims for row in visible_rows(second)]
    return [row.dims for row in visible_rows(first) if row.dims in theirs]


def _meaning(lines: Sequence[str]) -> list[str]:
    # Comments need a space after the marker: `#pragma` and `#include` in a kernel are code.
    stripped = (_COMMENT.sub("", line).strip() for line in lines)
    return [line for line in stripped if line]


def keep(store: JobStore, lesson: Lesson) -> None:
    """Store a lesson as a step; `agent.memory.lessons` turns these into entries after the job ends."""
    name = f"{LESSON_STEPS}{lesson.after_sha256[:16]}/{lesson.before_sha256[:16]}"
    if store.step(name) is None:
        store.finish_step(name, lesson.to_json())
        store.event("lesson.learnt", {"text": lesson.sentence, "kind": lesson.kind})
