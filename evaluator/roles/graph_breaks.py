"""Finds where torch.compile would split a module into several graphs. Runs beside the untrusted module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from evaluator.breaking_off import TooSlow, broken_off


def graph_breaks(model: torch.nn.Module, inputs: list[Any], path: str, most_s: int) -> dict[str, Any]:
    """Traces the module with Dynamo, compiles nothing.

    Returns:
        ``graphs``, how many there would be, and ``breaks``, a list of line (of ``path``, 0 if none) and reason;
        ``problem`` if tracing failed or took longer than ``most_s`` seconds.
    """
    try:
        with broken_off(most_s), torch.no_grad():
            explained = torch._dynamo.explain(model)(*inputs)
            # After a break inside a loop, Dynamo leaves the whole frame to Python and keeps no reason.
            found = rows_of(explained.break_reasons, path) or _first_break(model, inputs, path)
        return {"graphs": int(explained.graph_count), "breaks": found, "problem": ""}
    except TooSlow:
        return {"graphs": 0, "breaks": [], "problem": f"tracing took longer than {most_s} s"}
    except Exception as error:
        return {
            "graphs": 0,
            "breaks": [],
            "problem": f"{type(error).__name__}: {_first_line(str(error))}",
        }
    finally:
        torch._dynamo.reset()


def rows_of(reasons: Iterable[Any], path: str) -> list[list[Any]]:
    """Line (of ``path``, 0 if none) and reason of each of Dynamo's reasons, without repetition."""
    found: list[list[Any]] = []
    for reason in reasons:
        lines = [frame.lineno for frame in reason.user_stack if frame.filename == path]
        row = [lines[-1] if lines else 0, _first_line(str(reason.reason))]
        if row not in found:
            found.append(row)
    return found


def _first_break(model: torch.nn.Module, inputs: list[Any], path: str) -> list[list[Any]]:
    """Where tracing the module as one graph stops; empty if it does not."""
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend="eager", fullgraph=True)(*inputs)
    except Exception as error:
        lines = [frame.lineno for frame in getattr(error, "real_stack", ()) if frame.filename == path]
        return [[lines[-1] if lines else 0, _first_line(str(error))]]
    return []


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
