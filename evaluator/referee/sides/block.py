"""What is known of a block of calls once it has been run."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.roles.frames import BlockReport


@dataclass
class Block:
    """A finished block: what was claimed and how long it took."""

    report: BlockReport
    calls: int
    first_state: int
    elapsed_ns: int
    variant: str
