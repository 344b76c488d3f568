"""Errors of fine-tuning.

RLError
├── ConfigError     a setting is unknown or out of range
│   └── NoRoom      a prompt fills the model's context
├── DataError       rows cannot be read or written, or hold nothing to learn from
├── CheckpointError a checkpoint is damaged, belongs to another run, or could not be written (a full disk)
├── JournalError    a database of a run cannot be read, or cannot be written (a full disk)
├── GroupError      the rewards of one group would not be compared with each other
├── Stopped         training stopped on request, and saved its state
└── FleetLost       no verdicts came for so long that training is pointless; resume when the fleet is back
"""

from __future__ import annotations


class RLError(Exception):
    """Base of all errors that this package raises deliberately; `str()` is a sentence for people."""


class ConfigError(RLError):
    """A config has an unknown or invalid setting."""


class NoRoom(ConfigError):
    """A prompt leaves no room for an answer in the model's context."""


class DataError(RLError):
    """A file of rows is missing or damaged, or holds nothing to learn from."""


class CheckpointError(RLError):
    """A checkpoint cannot be written, is damaged, or belongs to another config."""


class JournalError(RLError):
    """A file that records a run is damaged, in use by another process, or could not be extended."""


class GroupError(RLError):
    """The samples of a GRPO group do not answer the same prompt on the same rank."""


class FleetLost(RLError):
    """The evaluators gave no verdict for several steps in a row."""


class Stopped(RLError):
    """Training ended on request, after a checkpoint."""
