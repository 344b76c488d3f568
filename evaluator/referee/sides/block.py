"""The record of a finished block of calls."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.roles.frames import BlockReport


@dataclass
class Block:
    """A finished block: what the process claimed, and how long it took."""

    report: BlockReport
    calls: int
    first_state: int
    elapsed_ns: int
    variant: str
