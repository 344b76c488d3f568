"""The no-op replay: own kernels replaced by nothing. Where the answer is still right, they were decoys (E53).

The referee chooses contents that the process has not seen and compares as always; only the replacing is left to the
process. A candidate that notices can spoil the test, and keeps no more than a label for it.
"""

from __future__ import annotations

from typing import Any

from evaluator.oracle.compare import compare, contract, dense
from evaluator.referee.session.expectation import Case
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol

_CALL_SECONDS = 20.0
#: glibc fills new memory with the complement of this byte: what an empty kernel leaves behind is zero.
_ZEROS = 255


def still_right(side: Side, cases: list[Case]) -> bool | None:
    """Whether the outputs are right although no kernel of the candidate's own ran; None if none was called.

    Raises:
        RoleFailure: the module failed without its kernels, which only says that it needs them.
    """
    called = 0
    for case in cases:
        _switch(side, muted=True)
        side.ready(_CALL_SECONDS, poison=_ZEROS)
        side.write(0, case.contents)
        block = side.block(1, _CALL_SECONDS)
        metas = block.report.metas
        same_form = len(metas) == len(case.metas) and not any(
            contract(meta, wanted) for meta, wanted in zip(metas, case.metas, strict=True)
        )
        if not same_form:
            return False
        spans = side.outputs(block, 0)
        called += _switch(side, muted=False)
        values = [dense(span, meta) for span, meta in zip(spans, metas, strict=True)]
        if not all(compare(value, want).ok for value, want in zip(values, case.expected, strict=True)):
            return False
    return True if called else None


def _switch(side: Side, *, muted: bool) -> int:
    """Own kernels off or on; how often they were called since the last switch, as the process says."""
    answer: dict[str, Any] = side.process.request_json(protocol.MUTE, {"muted": muted}, _CALL_SECONDS)
    calls = answer.get("calls")
    return calls if type(calls) is int else 0
