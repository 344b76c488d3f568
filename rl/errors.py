"""Errors of fine-tuning.

RLError
├── ConfigError     a setting that is unknown or out of its range
│   └── NoRoom      a prompt that fills the model's context
├── DataError       rows to train on that cannot be read or written, or that nothing can be learned from
├── CheckpointError a checkpoint that is damaged or another run's, or could not be written (a full disk)
├── JournalError    a database of a run that cannot be read, or not be written (a full disk)
├── GroupError      the rewards of one group would not be compared with each other
├── Stopped         training was asked to end, and saved where it was
└── FleetLost       nothing was judged for so long that training on would be pointless; resume when the fleet is back
"""

from __future__ import annotations


class RLError(Exception):
    """Base of everything that this package raises on purpose; `str()` is a sentence for people."""


class ConfigError(RLError):
    """A config file that says something else than what can be meant."""


class NoRoom(ConfigError):
    """A prompt leaves no room for an answer in the model's context."""


class DataError(RLError):
    """A file of rows is missing, damaged, or holds nothing to learn from."""


class CheckpointError(RLError):
    """A checkpoint cannot be written, is damaged, or belongs to another config."""


class JournalError(RLError):
    """A file that records a run is damaged, in use by another process, or could not be extended."""


class GroupError(RLError):
    """Samples that GRPO compares do not answer the same prompt on the same rank."""


class FleetLost(RLError):
    """The evaluators gave no verdict for several steps in a row."""


class Stopped(RLError):
    """Training ended on request, after a checkpoint."""
