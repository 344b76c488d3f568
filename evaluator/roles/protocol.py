"""What the referee and the processes of user code say to each other: numbers of operations, names of variants, kinds of errors."""

from __future__ import annotations

(
    LOAD,
    DESCRIBE,
    SIZES,
    BUILD,
    IMPORT,
    BIND,
    READY,
    BLOCK,
    ORACLE,
    VARIANT,
    CLOSE,
    EXCHANGE,
    CAPTURE,
    FETCH,
    TOOL,
    PROBE,
    KERNELS,
    MUTE,
    ASKED,
    WAKE,
    KEEP,
    LANDMARKS,
    INSPECT,
    COSTS,
    HAND_OVER,
    RENEW,
    LIMITS,
) = range(1, 28)

#: Variant that returns an output made before: a block of it takes what the harness itself takes.
NULL = "null"
#: Variant that does the least that any module does: it is called, makes a new tensor and returns it.
LEAST = "least"

#: In the message of an error of a compiled baseline that would be eager under another name.
NOTHING_COMPILED = "torch.compile compiled nothing of it"

#: Answer to a change of weights by a module that shows it; one that `from_reference` made need not.
RENEWED = b"renewed"

#: In place of a precision tier: the module's own result.
OWN_RESULT = "own"
#: The same in its tier instead of full precision, widened.
OWN_IN_TIER = "own in tier"

#: In the message of an error that more shared memory would mend.
TOO_SMALL = "the memory shared with the referee is too small"

#: Before the name of a kernel of the candidate's own in a profile of its process.
OWN = "kernelwright_own::"

#: First byte of an error payload; the words they stand for are in :mod:`evaluator.roles.process`.
RUNTIME, MEMORY, CONTRACT, COMPILE = range(4)


class ContractError(Exception):
    """User code does not keep the contract of its file format; the message is for the user."""


class BuildError(Exception):
    """A compiler refused the user's source; the message carries its output."""
