"""What came out of the disposable process, validated: the task's code shared that process and may have written anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from evaluator.integrity.static import clean

_MOST_ROWS, _MOST_NAME, _MOST_TEXT = 200, 160, 300
_MOST_SECONDS, _MOST_COUNT = 1e6, 1 << 60


@dataclass
class Operation:
    """What was done at one place, over all calls in a pass.

    Attributes:
        name: of the operation of torch.
        line: of the task file; 0 for the backward pass and what no line of it stands behind.
        module: path of the submodule in whose forward it ran.
        kind: type in which products are computed, "" for all else.
        calls, seconds, moved_bytes, flops, elements: sums.
        transcendental: each element takes an exponential or its like.
    """

    name: str
    line: int
    module: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    moved_bytes: int = 0
    flops: int = 0
    elements: int = 0
    transcendental: bool = False


@dataclass(frozen=True)
class OtherSize:
    """The call at another batch: which dimension, by which factor the inputs' bytes changed, and seconds per call."""

    dim: str
    bytes_factor: float
    steady_s: float


@dataclass(frozen=True)
class Measured:
    """Everything that was seen of a call.

    Attributes:
        steady_s: seconds per call in a stream of calls.
        replay_s: the same replayed as a CUDA graph; None on a CPU, or where it could not be captured.
        capture_problem: why not.
        cold_s, warm_s: seconds of a call with the caches full of something else, and with its own data in them.
        narrow_s: seconds per call with every float32 as bfloat16, replayed from a graph.
        sizes: the call at half and at twice the batch.
        input_bytes, state_bytes, output_bytes: what a call must read and write at least.
        operation_count: operations of torch per call, views among them.
        operations: the longest of them.
        kernels: name, seconds, calls; longest first.
        waits: line, what, how often the host waits for the device there (on a CPU: would wait on a GPU).
        transfers: line, way, bytes.
        graphs: how many graphs torch.compile makes of the module; 0 where it could not be traced.
        breaks: line and reason.
        compile_problem: why it could not be traced.
    """

    steady_s: float
    replay_s: float | None
    capture_problem: str
    cold_s: float | None
    warm_s: float | None
    narrow_s: float | None
    sizes: tuple[OtherSize, ...]
    input_bytes: int
    state_bytes: int
    output_bytes: int
    operation_count: int
    operations: tuple[Operation, ...]
    kernels: tuple[tuple[str, float, int], ...]
    waits: tuple[tuple[int, str, int], ...]
    transfers: tuple[tuple[int, str, int], ...]
    graphs: int
    breaks: tuple[tuple[int, str], ...]
    compile_problem: str


def parse(plain: Any, compiling: Any) -> Measured:
    """Checks the answers of the disposable processes: the one that timed, and the one that looked for graph breaks.

    Raises:
        ValueError: it has another form.
    """
    try:
        return Measured(
            steady_s=_seconds(plain["steady_s"]),
            replay_s=_optional(plain.get("replay_s")),
            capture_problem=clean(plain.get("capture_problem", ""), _MOST_TEXT),
            cold_s=_optional(plain.get("cold_s")),
            warm_s=_optional(plain.get("warm_s")),
            narrow_s=_optional(plain.get("narrow_s")),
            sizes=tuple(
                OtherSize(
                    clean(row["dim"], _MOST_NAME), _seconds(row["bytes_factor"]), _seconds(row["steady_s"])
                )
                for row in plain["sizes"][:4]
            ),
            input_bytes=_count(plain["input_bytes"]),
            state_bytes=_count(plain["state_bytes"]),
            output_bytes=_count(plain["output_bytes"]),
            operation_count=_count(plain["operation_count"]),
            operations=tuple(_operation(row) for row in plain["operations"][:_MOST_ROWS]),
            kernels=tuple(
                (clean(name, _MOST_NAME), _seconds(seconds), _count(calls))
                for name, seconds, calls in plain["kernels"][:_MOST_ROWS]
            ),
            waits=_places(plain["waits"]),
            transfers=_places(plain["transfers"]),
            graphs=_count(compiling["graphs"]),
            breaks=tuple(
                (_count(line), clean(reason, _MOST_TEXT)) for line, reason in compiling["breaks"][:_MOST_ROWS]
            ),
            compile_problem=clean(compiling["problem"], _MOST_TEXT),
        )
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not the form of a profile: {type(error).__name__}") from None


def _operation(row: Any) -> Operation:
    return Operation(
        name=clean(row["name"], _MOST_NAME),
        line=_count(row["line"]),
        module=clean(row["module"], _MOST_NAME),
        kind=clean(row["kind"], 16),
        calls=_count(row["calls"]),
        seconds=_number(row["seconds"]),
        moved_bytes=_count(row["moved_bytes"]),
        flops=_count(row["flops"]),
        elements=_count(row["elements"]),
        transcendental=row["transcendental"] is True,
    )


def _places(rows: Any) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (_count(line), clean(what, _MOST_NAME), _count(count)) for line, what, count in rows[:_MOST_ROWS]
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("no finite number")
    return min(max(float(value), 0.0), _MOST_SECONDS)


def _seconds(value: Any) -> float:
    return max(_number(value), 1e-9)


def _optional(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _count(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("no count")
    return min(max(value, 0), _MOST_COUNT)
