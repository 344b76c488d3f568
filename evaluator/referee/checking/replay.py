"""The no-op replay: replaces the candidate's own kernels by nothing.

If the answer stays right, they were decoys (E53).

The referee chooses contents that the process has not seen and compares as always. Only the replacement happens in
the process. A candidate that detects it can spoil the test, and only gains or loses a label.
"""

from __future__ import annotations

from typing import Any

from evaluator.oracle.compare import compare, contract, dense
from evaluator.referee.session.expectation import Case
from evaluator.referee.sides.side import Side
from evaluator.roles import protocol

_CALL_SECONDS = 20.0
#: glibc fills new memory with the complement of this byte, so an empty kernel leaves zeros.
_ZEROS = 255


def still_right(side: Side, cases: list[Case]) -> bool | None:
    """Whether the outputs are right although none of the candidate's own kernels ran. None if none was called.

    Raises:
        RoleFailure: the module failed without its kernels, which only shows that it needs them.
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
    """Switches own kernels off or on. Returns the process's count of calls since the last switch."""
    answer: dict[str, Any] = side.process.request_json(protocol.MUTE, {"muted": muted}, _CALL_SECONDS)
    calls = answer.get("calls")
    return calls if type(calls) is int else 0
