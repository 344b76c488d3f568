"""Wraps the unmodified code that Inductor generates for a task as a candidate file.

The file holds Inductor's module, the reference (for calls that the code does not cover), and `ModelNew`, which checks sizes, strides
and dtypes and passes the tensors on. The capture program is ours, but it shares its process with the untrusted reference: its output
is treated as text, its form is checked here, and only the sandbox runs it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.bundle.renaming import rename
from agent.bundle.sections import bound_names
from agent.compiler.forward import cut_apart, forward_of, joined, titled, without_docstring
from agent.compiler.model_text import OWN_NAMES, model_text
from agent.compiler.per_size import per_size, with_class
from agent.errors import ProposalFailed
from agent.kernels.writing import rewriting_text, row_program_text
from evaluator.devices import is_accelerator

if TYPE_CHECKING:
    from agent.proposing import ProposalContext
    from evaluator.client import Referee
    from evaluator.sources import TaskSource

LABELS = {"cpu": "inductor C++", "cuda": "inductor Triton"}
NOTE = "the code that torch.compile generates, one source for all sizes of a configuration"
#: Tracing and code generation take 8 to 20 s on two free cores, a large network's up to 5 minutes; no compiler runs.
_DEADLINE_S = 600.0
_MEMORY_BYTES = 6 << 30
_MAX_CAPTURE_BYTES = 8 << 20
#: Of an argument's layout, 0.5 us each: `applies` in `model_text` has looked at all of them.
_CHECK = re.compile(r"^ +assert_size_stride\((?:arg|primals_)\d\w*, .*\)\n", re.MULTILINE)
CAPTURE_PROGRAM = Path(__file__).parent / "sandboxed" / "capture_program.py"


def inductor_source(referee: Referee, task: TaskSource, dims: Mapping[str, Any], device: str) -> str:
    """The candidate file of a task: `captured`, then `assemble`, with their errors."""
    return assemble(captured(referee, task, dims, device), task.source, task.name)


def kept_capture(context: ProposalContext) -> str:
    """`captured` for a job: its text, or why there is none, is stored as a step, since two proposers use it.

    Raises:
        ProposalFailed: see `captured`.
    """
    step = f"compiler.capture.{context.device}"
    kept = context.store.step(step)
    if not isinstance(kept, dict):
        try:
            dims, own = context.description.dims, context.own_sizes
            data = captured(context.referee, context.task, dims, context.device, own)
            kept = {"capture": data.decode()}
        except (ProposalFailed, UnicodeDecodeError) as error:
            kept = {"reason": str(error)}
        context.store.finish_step(step, kept)
    if "capture" not in kept:
        raise ProposalFailed(kept["reason"])
    return str(kept["capture"])


def captured(
    referee: Referee,
    task: TaskSource,
    dims: Mapping[str, Any],
    device: str,
    own: Mapping[str, Any] | None = None,
) -> bytes:
    """What the capture program writes about a task in a disposable sandboxed process; untrusted, for `assemble`.

    Args:
        referee: its sandbox runs the compiler.
        task: the reference.
        dims: the task's dimensions as `Referee.describe` returns them.
        device: "cpu" or "cuda".
        own: sizes in place of the dimensions' defaults.

    Raises:
        ProposalFailed: the compiler's code is not self-contained, or the process died or wrote invalid output; the message says why.
        RefereeLost: the referee died.
    """
    request = {"dims": dims, "device": device, "own": dict(own or {})}
    files = {"reference.py": task.source, "request.json": json.dumps(request)}
    if is_accelerator(device):
        files["rewriting.py"] = rewriting_text()
    else:
        files["row_program.py"] = row_program_text()
    # A GPU driver reserves far more address space than it uses; a memory limit would make it fail.
    memory_bytes = None if is_accelerator(device) else _MEMORY_BYTES
    result = referee.run_tool(
        CAPTURE_PROGRAM.read_text(),
        files,
        deadline_s=_DEADLINE_S,
        memory_bytes=memory_bytes,
        device=is_accelerator(device),
    )
    data = result.outputs.get("capture.json")
    if data is None:
        last = (result.stderr.strip().splitlines() or ["it wrote nothing"])[-1][:300]
        raise ProposalFailed(f"asking for the compiler's code ended with {result.status}: {last}")
    if len(data) > _MAX_CAPTURE_BYTES:
        raise ProposalFailed(f"the capture has {len(data)} bytes, more than {_MAX_CAPTURE_BYTES}")
    return data


def assemble(
    data: bytes | str,
    reference: str,
    title: str,
    words: str = ": the code that torch.compile generates.",
    changed: Callable[[str], str] | None = None,
    *,
    own: bool = False,
) -> str:
    """Build the candidate file from the capture program's output; the same bytes give the same text.

    Args:
        data: the output of `captured`.
        reference: source of the task.
        title: name of the task.
        words: follow it in the file's docstring.
        changed: edits Inductor's module, the one that calls the kernel library if there is one.
        own: take the capture at the module's own sizes; it must be there.

    Raises:
        ProposalFailed: the compiler's code is not self-contained, or the capture has another form.
    """
    try:
        found = json.loads(data)
        if "error" in found:
            raise ProposalFailed(str(found["error"])[:400])
        found = found["own"] if own else found
        module = with_class(_module_of(found, with_library=changed is not None))
        if changed is not None:
            module = changed(module)
        bound = {name for statement in ast.parse(module).body for name in bound_names(statement)}
        section = cut_apart(reference, {*bound, *OWN_NAMES})
        forward = forward_of(section.text)
        model = model_text(found, forward, repeats="\n_kw_call = " in module)
    except (AttributeError, KeyError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ProposalFailed(f"the capture has another form: {type(error).__name__}: {error}") from error
    head = titled(title, words)
    imports = "import inspect\nimport weakref\nfrom operator import attrgetter"
    whole = joined([head, imports, module, without_docstring(section.text), model])
    return cut_apart(
        whole, set(), "ModelNew"
    ).text  # drops the many names that Inductor binds and this code does not use


def _module_of(found: Mapping[str, Any], *, with_library: bool) -> str:
    """Inductor's module of a capture, with that of the backward behind it, whose names are then its own."""

    def text(part: Mapping[str, Any]) -> str:
        module = str((part["library"] if with_library else "") or part["module"])
        if not module:
            raise ProposalFailed(
                "without the library there is no code for a recurrent layer: the compiler would write out its steps"
            )
        return per_size(module)

    forward = _CHECK.sub("", text(found))
    if not found["backward"]:
        return forward
    backward = text(found["backward"])
    names = {
        name
        for statement in ast.parse(backward).body
        if not isinstance(statement, ast.Import | ast.ImportFrom)
        for name in bound_names(statement)
    }
    return f"{forward}\n{rename(backward, {name: f'{name}_backward' for name in names})}"
