"""The local referee: runs the commands `lint`, `profile` and `evaluate` as child processes.

A child process can be killed when the agent cancels, gets no keys, and cannot write to the protocol's stream. It reads copies
of the files in a private folder, so the judged text is the checked text. Commands run one at a time: parallel ones would
disturb each other's timings.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from agent.redaction import without_secrets
from services.mcp.files import Refused

_LONGEST_S = 1200.0
_MOST_BYTES = 32 << 20
_LONGEST_COMPLAINT = 2000
_VERDICT = ("verdict", "reason", "detail", "findings", "labels", "summary", "reused", "elapsed_s")
_SHAPE = (
    "dims", "split", "best_baseline", "baseline_us", "candidate_us", "speedup", "ci95", "decision", "reason"
)  # fmt: skip
_KERNELS = 6
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


class Local:
    """Runs commands, one at a time.

    Args:
        device: cpu or cuda.
        minimum_tier: weakest sandbox to accept.
    """

    def __init__(self, device: str, minimum_tier: str) -> None:
        self._options = ["--device", device, "--minimum-tier", minimum_tier, "--json"]
        self._turn = anyio.Lock()

    async def lint(self, name: str, source: str) -> dict[str, Any]:
        """Return the output of `kernelwright lint --json`."""
        return await self._run("lint", {_file_name(name): source}, [])

    async def profile(self, name: str, source: str, dims: Mapping[str, int | str]) -> dict[str, Any]:
        """Return the output of `kernelwright profile --json`."""
        sizes = [word for dim, size in dims.items() for word in ("--dim", f"{dim}={size}")]
        return await self._run("profile", {_file_name(name): source}, sizes)

    async def evaluate(self, name: str, source: str, candidate: str, effort: str) -> dict[str, Any]:
        """Return the useful part of the output of `kernelwright evaluate --json`."""
        files = {_file_name(name): source, "candidate of it.py": candidate}
        verdict = await self._run("evaluate", files, ["--effort", effort])
        shapes = [{key: one.get(key) for key in _SHAPE} for one in verdict.get("shapes") or ()]
        return {
            **{key: verdict.get(key) for key in _VERDICT},
            "shapes": shapes,
            "kernels": (verdict.get("kernels") or [])[:_KERNELS],
            "device": (verdict.get("environment") or {}).get("device_name"),
        }

    async def _run(self, name: str, files: Mapping[str, str], options: Sequence[str]) -> dict[str, Any]:
        async with self._turn:
            with tempfile.TemporaryDirectory(prefix="kernelwright-mcp-") as folder:
                paths = [Path(folder, file_name) for file_name in files]
                for path, text in zip(paths, files.values(), strict=True):
                    path.write_text(text, encoding="utf-8")
                # -P: do not import modules from the working directory
                command = [sys.executable, "-P", "-m", "services.cli", name, *map(str, paths)]
                code, out, complaint = await _ended([*command, *options, *self._options])
        try:
            found = json.loads(out)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused(
                f"`{name}` ended with exit status {code}: {complaint.strip()[-_LONGEST_COMPLAINT:]}"
            )
        return found


def _file_name(task: str) -> str:
    """File name for a task; the command takes the task's name from it."""
    return f"{task}.py" if _PLAIN_NAME.fullmatch(task) else "task.py"


async def _ended(command: Sequence[str]) -> tuple[int | None, bytes, str]:
    """Run a command; return exit status, stdout and stderr. Cancellation kills it and its children."""
    # The command needs no service settings and no keys.
    environment = {
        name: value
        for name, value in without_secrets(os.environ).items()
        if not name.startswith("KERNELWRIGHT_")
    }
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, cwd="/", env=environment, start_new_session=True
    )
    pieces: list[bytes] = []
    complaint: list[bytes] = []
    try:
        with anyio.fail_after(_LONGEST_S):
            async with anyio.create_task_group() as group:
                group.start_soon(_gather, process.stdout, pieces)
                group.start_soon(_gather, process.stderr, complaint)
            await process.wait()
    except TimeoutError:
        raise Refused(f"it was ended after {_LONGEST_S:.0f} s") from None
    finally:
        _end(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return process.returncode, b"".join(pieces), b"".join(complaint).decode("utf-8", "replace")


async def _gather(stream: Any, pieces: list[bytes]) -> None:
    size = 0
    async for piece in stream:
        size += len(piece)
        if size <= _MOST_BYTES:  # drain the excess, or the command would block on a full pipe
            pieces.append(piece)


def _end(process: Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
