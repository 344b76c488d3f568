"""A referee whose words are a test's own: no candidate runs. Tools run in a process of their own, as in the sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.description import Description
from evaluator.roles.tool_run import ToolResult
from evaluator.verdict import Verdict, from_json
from tests.agent import programs

DIMS = {
    "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 64},
    "cols": {"min": 8, "max": 1024, "multiple_of": 1, "default": 256},
}
VISIBLE = [{"rows": 64, "cols": 256}]
VALIDATION = [{"rows": rows, "cols": 248} for rows in (16, 32, 64, 1024, 2048, 4096)]

Says = Callable[[str, str], dict[str, Any]]
"""From a candidate's label and a phase to a verdict."""


def timed(
    speedups: Mapping[int, float] | float,
    phase: str = "validation",
    *,
    eager: float = 0.5,
    compiled: float = 1.0,
    best: str = "compile_default/2t",
    width: float = 0.01,
    geomean: float | None = None,
) -> dict[str, Any]:
    """An accepted verdict: the candidate's speedup at each number of rows, and two baselines of which the better one counts.

    Args:
        speedups: by rows, or the same at all.
        phase: of the verdict.
        eager: the plain reference's speed against the best baseline.
        compiled: that of the compiled reference.
        best: the best baseline's name.
        width: half of each interval, as a share.
        geomean: of the summary, if it is not the speedups' own.
    """
    shapes = VALIDATION if phase == "validation" else VISIBLE
    rows = []
    product = 1.0
    for dims in shapes:
        speedup = speedups if isinstance(speedups, float) else speedups[dims["rows"]]
        product *= speedup
        rows.append(
            {
                "dims": dims,
                "split": "validation" if phase == "validation" else "visible",
                "timed": True,
                "speedup": speedup,
                "ci95": [speedup * (1 - width), speedup * (1 + width)],
                "baseline_us": 450.0,
                "candidate_us": 450.0 / speedup,
                "best_baseline": best,
                "baselines": {
                    "eager/2t": {"median_us": 450.0 / eager},
                    "compile_default/2t": {"median_us": 450.0 / compiled},
                },
            }
        )
    mean = geomean or product ** (1 / len(shapes))
    summary = {"geomean_speedup": mean, "geomean_ci95": [mean * (1 - width), mean * (1 + width)]}
    return {**_verdict("accepted"), "shapes": rows, "summary": summary}


def refused(word: str, reason: str, *rules: str) -> dict[str, Any]:
    """Any other verdict."""
    found = [{"rule": rule, "severity": "error", "evidence": reason} for rule in rules]
    return {**_verdict(word), "reason": reason, "findings": found}


def _verdict(word: str) -> dict[str, Any]:
    return {
        "schema": "kernelwright.verdict/1",
        "verdict": word,
        "reason": "",
        "findings": [],
        "task": {"name": "t", "sha256": ""},
        "candidate": {"sha256": "", "origin": "", "label": ""},
        "environment": {"threads": 2},
        "shapes": [],
        "summary": {},
        "elapsed_s": 0.0,
    }


class ScriptedReferee:
    """Stands in for `evaluator.client.Referee`.

    Args:
        says: what it says of a candidate in a phase.
    """

    def __init__(self, says: Says) -> None:
        self._says = says
        self.judged: list[tuple[str, str]] = []

    def describe(self, *_: Any, **__: Any) -> Description:
        """A space of rows and columns."""
        shapes = {"visible": VISIBLE, "validation": VALIDATION, "held_out": [], "adversarial": []}
        return Description(dims=DIMS, shapes=shapes, processors=132)

    def evaluate(self, task: Any, candidate: Any, *, splits: Sequence[str], effort: str, **_: Any) -> Verdict:
        """The scripted verdict."""
        phase = next((one for one in ("held_out", "validation") if one in splits), "screen")
        self.judged.append((candidate.label, phase))
        verdict = self._says(candidate.label, phase)
        about = {"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label}
        return from_json({**verdict, "candidate": about, "splits": list(splits), "effort": effort})

    def run_tool(self, program: str, files: Mapping[str, str], **_: Any) -> ToolResult:
        """Runs a program that a test may trust."""
        return _ran(tuple({**files, "program.py": program}.items()))


@cache
def _ran(files: tuple[tuple[str, str], ...]) -> ToolResult:
    """The result of a program; many jobs ask for the same probe of the same task."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files:
            Path(folder, path).write_text(text)
        done = programs.run(folder, "program.py")
        out = Path(folder, "out")
        outputs = {one.name: one.read_bytes() for one in out.iterdir()} if out.is_dir() else {}
    return ToolResult(
        "ok" if done.returncode == 0 else "failed", done.returncode, done.stderr, outputs=outputs
    )
