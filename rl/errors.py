"""Errors of fine-tuning.

RLError
├── ConfigError     a setting that is unknown or out of its range
├── JournalError    a database of a run that cannot be read, or not be written (a full disk)
├── GroupError      the rewards of one group would not be compared with each other
└── FleetLost       nothing was judged for so long that training on would be pointless; resume when the fleet is back
"""

from __future__ import annotations


class RLError(Exception):
    """Base of everything that this package raises on purpose; `str()` is a sentence for people."""


class ConfigError(RLError):
    """A config file that says something else than what can be meant."""


class JournalError(RLError):
    """A file that records a run is damaged, in use by another process, or could not be extended."""


class GroupError(RLError):
    """Samples that GRPO compares do not answer the same prompt on the same rank."""


class FleetLost(RLError):
    """The evaluators gave no verdict for several steps in a row."""
