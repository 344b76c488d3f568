"""Runs a trusted program beside untrusted files in a disposable sandboxed process and collects its output."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from evaluator.errors import RoleExited, RoleFailure
from evaluator.roles import protocol
from evaluator.roles.arena import sealed_text
from evaluator.roles.process import RoleProcess

_MAX_TOOL_BYTES = 32 << 20


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool program. All of it is untrusted text and bytes.

    Attributes:
        status: ``ok``, ``error``, ``timeout`` or ``out_of_memory``.
        exit_code: of the program; -1 when it was killed.
        stdout: what it printed (standard output and error together, the last 64 KiB).
        stderr: why the referee ended it, if it did.
        outputs: files it wrote under ``out``.
    """

    status: str
    exit_code: int
    stdout: str
    stderr: str = ""
    outputs: dict[str, bytes] = field(default_factory=dict)


class RunsTools(Protocol):
    """Runs a trusted program beside untrusted files: :class:`evaluator.client.Referee`."""

    def run_tool(
        self,
        program: str,
        files: Mapping[str, str],
        *,
        deadline_s: float,
        memory_bytes: int | None = ...,
        device: bool = ...,
        timed: bool = ...,
    ) -> ToolResult:
        """See :meth:`evaluator.client.Referee.run_tool`."""
        ...


def run_tool(
    process: RoleProcess,
    program: str,
    files: Mapping[str, str],
    deadline_s: float,
    max_bytes: int = _MAX_TOOL_BYTES,
    stages: Sequence[tuple[str | None, AbstractContextManager[object]]] = ((None, nullcontext()),),
) -> ToolResult:
    """Runs ``program`` in a process of the role ``tool`` and ends that process.

    Args:
        process: fresh, of the role ``tool``.
        program: trusted Python source.
        files: untrusted files beside it.
        deadline_s: seconds of each stage, after which it is killed.
        max_bytes: limit for all its outputs together; the rest is left out.
        stages: "prepare" and "main", which call the program's functions of these names, each with what holds meanwhile. One without a
            name runs all of it.
    """
    text = sealed_text(json.dumps({"program": program, "files": dict(files)}).encode("utf-8", "replace"))
    with tempfile.TemporaryFile() as sink:
        try:
            for stage, holding in stages:
                with holding:
                    answer = process.request_json(
                        protocol.TOOL, {"stage": stage}, deadline_s, (text, sink.fileno())
                    )
                code = answer.get("exit")
                exit_code = code if isinstance(code, int) else 1
                if exit_code != 0:
                    break
            outputs = _outputs(answer.get("outputs"), sink, max_bytes)
            process.close()
            status = "ok" if exit_code == 0 else "error"
            return ToolResult(status, exit_code, process.drain.text(), "", outputs)
        except RoleFailure as failure:
            status = failure.word if failure.word in ("timeout", "out_of_memory") else "error"
            process.close()
            printed = process.drain.text()
            reason = (
                failure.sentence
                if isinstance(failure, RoleExited)
                else f"{failure.sentence}\n{failure.detail}"
            )
            return ToolResult(status, -1, printed, reason)
        finally:
            process.close()
            os.close(text)


def _outputs(listing: Any, sink: Any, max_bytes: int) -> dict[str, bytes]:
    """Splits the sink into files as the (untrusted) listing says, within a cap."""
    if not isinstance(listing, list) or len(listing) > 64:
        return {}
    sink.seek(0)
    outputs: dict[str, bytes] = {}
    total = 0
    for entry in listing:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int) and entry[1] >= 0):
            return {}
        total += entry[1]
        if total > max_bytes:
            return outputs
        outputs[os.path.basename(str(entry[0]))] = sink.read(entry[1])
    return outputs
