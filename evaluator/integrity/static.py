"""Static analysis of a candidate's source: what it uses, with lines as evidence.

It explains and never decides alone.

The source is untrusted: it may not be Python, may have millions of characters, or may be nested so deeply that
parsing crashes the interpreter. So the referee runs :func:`main` in a disposable sandboxed process and validates
the result.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from evaluator.integrity import rules
from evaluator.integrity.source import MAX_SOURCE_BYTES, Source, Unreadable, kernel_names

NOT_ANALYZED = "not_analyzed"
#: Most characters of a file that are read: more than the limit for analysis, so that a longer file is recognized
#: as too long.
MAX_READ = 2 * MAX_SOURCE_BYTES
_SHOWN_HITS = 3
_MAX_NAMES = 64


@dataclass(frozen=True)
class Analysis:
    """What the source contains.

    Attributes:
        findings: (rule, severity, evidence) with severity ``info`` or ``warning``.
        kernels: names of the kernels that it defines: Triton functions, and `__global__` functions in its strings.
        builds: whether it builds kernels from C++ or CUDA source.
    """

    findings: tuple[tuple[str, str, str], ...] = ()
    kernels: tuple[str, ...] = ()
    builds: bool = False

    @property
    def has_kernels(self) -> bool:
        """Whether the source has kernels of its own."""
        return bool(self.kernels) or self.builds


def analyze(text: str) -> Analysis:
    """The analysis of any text. Never raises for its contents (deep nesting may still crash the interpreter)."""
    try:
        source = Source(text)
        found = []
        for rule in rules.ALL:
            hits = sorted({(hit.line, hit.words) for hit in rule.find(source)})
            if hits:
                found.append((rule.name, rule.severity, _evidence(rule.about, hits)))
    except Unreadable as reason:
        return Analysis(((NOT_ANALYZED, "info", str(reason)),))
    except (RecursionError, MemoryError) as error:
        return Analysis(
            ((NOT_ANALYZED, "info", f"the file is too much for the analysis ({type(error).__name__})"),)
        )
    names = [*source.jit_names(), *(name for one in source.native for name in kernel_names(one.code))]
    builds = any(name.rpartition(".")[2] in ("load_inline", "_compile_kernel") for name, _ in source.calls)
    return Analysis(tuple(found), tuple(dict.fromkeys(names))[:_MAX_NAMES], builds)


def _evidence(about: str, hits: list[tuple[int, str]]) -> str:
    shown = "; ".join(f"line {line}: {words[:80]}" for line, words in hits[:_SHOWN_HITS])
    more = f" and {len(hits) - _SHOWN_HITS} more" if len(hits) > _SHOWN_HITS else ""
    return f"{about} ({shown}{more})"


def as_json(analysis: Analysis) -> dict[str, Any]:
    """JSON form, read by :func:`from_json`."""
    return {"findings": analysis.findings, "kernels": analysis.kernels, "builds": analysis.builds}


def from_json(plain: Any) -> Analysis:
    """Inverse of :func:`as_json`, for untrusted bytes.

    Raises:
        ValueError: they have another form.
    """
    severities = {rule.name: rule.severity for rule in rules.ALL} | {NOT_ANALYZED: "info"}
    try:
        findings = tuple(
            (str(name), severities[name], clean(evidence, 600))
            for name, _, evidence in plain["findings"][:64]
        )
        kernels = tuple(clean(name, 120) for name in plain["kernels"][:_MAX_NAMES])
        return Analysis(findings, kernels, plain["builds"] is True)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the form of an analysis: {type(error).__name__}") from None


def clean(text: Any, length: int) -> str:
    """Text of an untrusted process as printable characters that any terminal and any encoding accepts."""
    if not isinstance(text, str):
        raise TypeError("not a text")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:length])


def main(path: str, target: str) -> None:
    """Reads a candidate from a file and writes its analysis as JSON to another."""
    sys.setrecursionlimit(5000)
    with open(path, encoding="utf-8", errors="replace") as file:
        analysis = analyze(file.read(MAX_READ))
    with open(target, "w", encoding="utf-8") as file:
        json.dump(as_json(analysis), file)


#: Run beside the candidate's source in a disposable process.
PROGRAM = "from evaluator.integrity.static import main\nmain('candidate.py', 'out/analysis.json')\n"
