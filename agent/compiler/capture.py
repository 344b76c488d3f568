"""Runs the capture program in the sandbox and reads what it wrote.

The tool program is ours, but the untrusted reference shares its process, so what comes back is untrusted text: its form
is checked here, it is rewritten as text by the other modules, and only the sandbox ever runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agent.errors import ProposalFailed

if TYPE_CHECKING:
    from evaluator.client import Referee
    from evaluator.sources import TaskSource

SCHEMA = "kernelwright.capture/1"
DEADLINE_S = 300.0
"""Tracing and code generation take 8 to 20 s on two free cores; no compiler runs."""
MEMORY_BYTES = 6 << 30
MAX_CAPTURE_BYTES = 8 << 20
MAX_VARIANTS = 8

_PROGRAMS = Path(__file__).parent / "sandboxed"


@dataclass(frozen=True)
class Symbol:
    """A dimension as the generated code sees it: `dimension = multiple * symbol`.

    Attributes:
        name: the task's name for the dimension.
        symbol: the name in the generated code.
        multiple: every legal size is a multiple of this.
        least: smallest value of the symbol that the code is right for.
        most: largest value, or None.
    """

    name: str
    symbol: str
    multiple: int
    least: int
    most: int | None


@dataclass(frozen=True)
class Value:
    """An argument, a constructor argument or a tensor of the module.

    Attributes:
        name: the parameter's name, or the dotted path of a tensor of the module.
        kind: "tensor", "size" (an integer made of symbols), "sizes" (a list of those) or "literal" (plain data).
        text: Python text of a size or literal.
        items: Python texts of the sizes in a list.
        holder: which dictionary of its module a tensor is in.
        dtype, shape, stride: of a tensor; sizes as Python text over the symbols.
    """

    name: str
    kind: Literal["tensor", "size", "sizes", "literal"]
    text: str = ""
    items: tuple[str, ...] = ()
    container: str = "list"
    holder: str = ""
    dtype: str = ""
    device: str = ""
    shape: tuple[str, ...] = ()
    stride: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """Generated code for one choice of dtypes and one range of sizes.

    Attributes:
        module: Inductor's Python module, as it would have been written to its cache.
        placeholders: what the module's `call` takes, in order: "symbol:NAME", "argument:INDEX" or "state:INDEX".
        outputs: how the returned tensors make up forward's return value (nested lists, see `symbolic_trace`).
        guards: conditions on the symbols, as Python text.
        operators: the operators of the reference in order.
        mode_matters: whether some module behaves differently in training mode; the capture is of eval mode.
    """

    choices: Mapping[str, Any]
    symbols: tuple[Symbol, ...]
    init: tuple[Value, ...]
    arguments: tuple[Value, ...]
    state: tuple[Value, ...]
    placeholders: tuple[str, ...]
    outputs: Any
    guards: tuple[str, ...]
    operators: tuple[str, ...]
    module: str
    mode_matters: bool = True


@dataclass(frozen=True)
class Capture:
    """Everything the capture program learnt of a task.

    Attributes:
        variants: empty when the module cannot be extracted; `reason` then says why.
        notes: attempts that failed on the way.
        capability: the vector instruction set that CPU kernels were made for ("AVX512", "AVX2", ...).
    """

    torch: str
    variants: tuple[Variant, ...]
    reason: str = ""
    notes: tuple[str, ...] = field(default=())
    capability: str = ""


def capture(
    referee: Referee,
    task: TaskSource,
    dims: Mapping[str, Any],
    device: str,
    settings: Mapping[str, Any],
    switches: Mapping[str, bool],
) -> Capture:
    """Extract the compiler's code for a task, in a disposable sandboxed process.

    Args:
        dims: the task's dimensions as `Referee.describe` gives them.
        settings: Inductor settings by dotted name, for example {"cpp.simdlen": 256}.
        switches: what the capture program changes beyond settings, for example {"variance_by_row": True}.

    Raises:
        ProposalFailed: if the process died, ran out of time or memory, or wrote nonsense.
    """
    program = (_PROGRAMS / "capture_program.py").read_text()
    files = {
        "reference.py": task.source,
        "symbolic_trace.py": (_PROGRAMS / "symbolic_trace.py").read_text(),
        "request.json": json.dumps(
            {**switches, "dims": dims, "device": device, "settings": settings}, sort_keys=True
        ),
    }
    # A GPU's driver reserves far more address space than it uses, so a limit on memory would refuse it.
    on_gpu = device == "cuda"
    memory_bytes = None if on_gpu else MEMORY_BYTES
    result = referee.run_tool(program, files, deadline_s=DEADLINE_S, memory_bytes=memory_bytes, device=on_gpu)
    text = result.outputs.get("capture.json")
    if text is None:
        last = (result.stderr.strip().splitlines() or ["it wrote nothing"])[-1][:300]
        raise ProposalFailed(f"extracting the compiler's code ended with {result.status}: {last}")
    return read_capture(text)


def read_capture(data: bytes) -> Capture:
    """Check the form of a capture.

    Raises:
        ProposalFailed: if anything has an unexpected type or size.
    """
    if len(data) > MAX_CAPTURE_BYTES:
        raise ProposalFailed(f"the capture has {len(data)} bytes, more than {MAX_CAPTURE_BYTES}")
    try:
        raw = json.loads(data)
        if raw["schema"] != SCHEMA:
            raise ProposalFailed(f"the capture has schema {raw['schema']!r}")
        variants = tuple(_variant(item) for item in raw["variants"][:MAX_VARIANTS])
        reason = _text(raw.get("error", ""))
        if not variants and not reason:
            raise ProposalFailed("the capture is empty")
        return Capture(
            torch=_text(raw["torch"]),
            variants=() if reason else variants,
            reason=reason,
            notes=tuple(_text(note) for note in raw["notes"]),
            capability=_text(raw.get("capability", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProposalFailed(
            f"the capture does not have the expected form: {type(error).__name__}: {error}"
        ) from error


def _variant(raw: Mapping[str, Any]) -> Variant:
    return Variant(
        choices={_text(key): value for key, value in raw["choices"].items()},
        symbols=tuple(
            Symbol(
                _word(name),
                _word(entry["symbol"]),
                int(entry["multiple"]),
                int(entry["min"]),
                None if entry["max"] is None else int(entry["max"]),
            )
            for name, entry in raw["symbols"].items()
        ),
        init=tuple(_value(name, entry) for name, entry in raw["init"].items()),
        arguments=tuple(_value(entry["name"], entry) for entry in raw["arguments"]),
        state=tuple(_value(entry["path"], entry) for entry in raw["state"]),
        placeholders=tuple(_text(item) for item in raw["placeholders"]),
        outputs=raw["outputs"],
        guards=tuple(_text(item) for item in raw["guards"]),
        operators=tuple(_text(item) for item in raw["operators"]),
        module=_text(raw["module"]),
        mode_matters=bool(raw["mode_matters"]),
    )


def _value(name: Any, raw: Mapping[str, Any]) -> Value:
    name, kind = _text(name), raw["kind"]
    if kind == "tensor":
        return Value(
            name,
            "tensor",
            holder=_text(raw.get("holder", "")),
            dtype=_word(raw["dtype"]),
            device=_word(raw["device"]),
            shape=tuple(_text(size) for size in raw["shape"]),
            stride=tuple(_text(size) for size in raw["stride"]),
        )
    if kind == "sizes":
        container = "tuple" if raw["type"] == "tuple" else "list"
        return Value(name, "sizes", items=tuple(_text(item) for item in raw["items"]), container=container)
    if kind in ("size", "literal"):
        return Value(name, kind, text=_text(raw["value"]))
    raise ProposalFailed(f"{name} is of kind {kind}, which a standalone source cannot carry")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise TypeError("expected an identifier")
    return value
