"""Turns calls of `load_inline` into libraries.

Each is compiled once, from its sources alone, and stored by content.

A candidate names what it wants. A separate process, in which none of the candidate's Python runs, compiles it. So
the library under a key is what the key's sources compile to, whichever candidate asked. A candidate that lies
about its sources gets the compiled lie. What remains is trust in the compiler itself: source that takes over the
compiler's process could choose the bytes of its own library, which it chooses anyway by being compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from evaluator.building import compiler
from evaluator.building.artefacts import MAX_LIBRARY_BYTES, ArtefactStore, toolchain
from evaluator.building.extension_call import ExtensionCall
from evaluator.devices import Device
from evaluator.errors import RoleFailure, RoleTimeout
from evaluator.roles import confinement
from evaluator.roles.spawn import ForkServer, make_accessible
from evaluator.roles.tool_run import ToolResult, run_tool
from evaluator.sandbox.limits import Limits
from evaluator.timing.exclusive import file_lock

_COMPILE_SECONDS = 240.0
_PRECOMPILE_SECONDS = 120.0
#: One translation unit with all of torch's headers takes 1.5 GB. A compile bomb fails at this limit.
_COMPILER_MEMORY_BYTES = 6 << 30
_PROGRAM = """
import json
from evaluator.building import compiler, extension_call
call = extension_call.parse(json.load(open("call.json")))
compiler.main(call, compiler.Settings(**json.load(open("settings.json"))))
"""
_PRECOMPILE = """
import json
from evaluator.building import compiler
given = json.load(open("given.json"))
compiler.precompile(given["flags"], given["folder"])
"""
#: A set of flags is worth 335 MB and 15 s of precompiling when it occurs a second time. This many sets are kept.
_WORTH_PRECOMPILING, _MAX_PRECOMPILED = 2, 3
_NOT_IN_HEADERS = ("-D", "-W")
#: Their place in the folder of headers that all roles see read-only.
EXTENSION_HEADERS = "extension"


class Host(Protocol):
    """Where compilers run."""

    device: Device
    compile_workers: int
    headers: Path
    tier: str

    def server(self, role: str) -> ForkServer:
        """The fork server of a role."""


class ExtensionBuilder:
    """Builds and stores extensions for all candidates of one referee.

    Args:
        fleet: starts the compiler's processes.
        folder: where libraries are kept; private to the referee.
    """

    def __init__(self, fleet: Host, folder: Path) -> None:
        self._fleet = fleet
        self._store = ArtefactStore(folder)
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def build_all(
        self, calls: Sequence[ExtensionCall], name: str, expires_at: float
    ) -> dict[str, bytes | str]:
        """For each call, by its digest, the library or the compiler's error message. Several are compiled at once.

        Args:
            calls: what to build.
            name: role name used in failures.
            expires_at: monotonic time after which no compiler runs.

        Raises:
            RoleFailure: ``timeout``, ``out_of_memory``, ``contract_violation`` or ``not_judged``.
        """
        keys = {call: self._store.key(call, self._fleet.device.architecture) for call in calls}
        results: dict[str, bytes | str] = {}
        missing = []
        for call, key in keys.items():
            library = self._store.get(key)
            if library is None:
                missing.append(call)
            else:
                results[call.digest] = library
        if not missing:
            return results
        # A fork server dies with the thread that started it, so start it here, in this thread.
        self._fleet.server("compile")
        for call in missing:
            self._consider_precompiling(call, expires_at)
        workers = min(self._fleet.compile_workers, len(missing))
        jobs = max(1, self._fleet.compile_workers // workers)
        with ThreadPoolExecutor(workers) as pool:
            built = pool.map(lambda call: self._build(call, name, expires_at, jobs), missing)
            for call, result in zip(missing, built, strict=True):
                if isinstance(result, bytes):
                    self._store.put(keys[call], result)
                results[call.digest] = result
        return results

    def _build(self, call: ExtensionCall, name: str, expires_at: float, jobs: int) -> bytes | str:
        settings = compiler.Settings(self._fleet.device.architecture, jobs, self._precompiled(call))
        files = {"call.json": call.canonical, "settings.json": json.dumps(asdict(settings))}
        process = self._fleet.server("compile").fork(
            role="tool", limits=Limits(memory_bytes=_COMPILER_MEMORY_BYTES), may_compile=True
        )
        process.name, process.expires_at = name, expires_at
        deadline_s = min(_COMPILE_SECONDS, expires_at - time.monotonic())
        result = run_tool(process, _PROGRAM, files, deadline_s, MAX_LIBRARY_BYTES)
        return _take(result, name, deadline_s)

    # -- precompiled headers -----------------------------------------------------------------------------------

    def _consider_precompiling(self, call: ExtensionCall, expires_at: float) -> None:
        """Precompiles torch's header for the call's flags if this pays off.

        The caller holds the device's lock shared.
        """
        if call.cuda_sources or not compiler.includes_torch(call):
            # nvcc takes longer than the C++ compiler beside it, and cannot use precompiled headers.
            return
        flags = _header_flags(call)
        folder = self._precompiled_folder(flags)
        with self._lock:
            self._seen[folder.name] += 1
            # Try once: what failed then (no disk space, unknown flag) will fail again.
            worth_it = self._seen[folder.name] == _WORTH_PRECOMPILING
        if (
            not worth_it
            or (folder / "complete").exists()
            or expires_at - time.monotonic() < _PRECOMPILE_SECONDS
        ):
            return
        lock = self._fleet.headers.with_name(f"{self._fleet.headers.name}-{EXTENSION_HEADERS}.lock")
        try:
            with file_lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._make_room(folder)
                self._precompile(flags, folder)
        except BlockingIOError:
            # Another process is building it. Waiting takes as long as compiling without it.
            return

    def _make_room(self, folder: Path) -> None:
        """Removes remains of a killed build, and the oldest headers if there are too many (a process that reads
        one keeps it).
        """
        shutil.rmtree(folder, ignore_errors=True)
        make_accessible(folder.parent)
        others = sorted(folder.parent.iterdir(), key=lambda other: other.stat().st_mtime)
        for other in others[: max(0, len(others) - _MAX_PRECOMPILED + 1)]:
            shutil.rmtree(other, ignore_errors=True)

    def _precompile(self, flags: list[str], folder: Path) -> None:
        inside = (
            f"{process_headers(self._fleet.tier, self._fleet.headers)}/{folder.parent.name}/{folder.name}"
        )
        process = self._fleet.server("compile").fork(
            role="tool",
            limits=Limits(memory_bytes=_COMPILER_MEMORY_BYTES),
            builds_headers=True,
            may_compile=True,
        )
        given = json.dumps({"flags": flags, "folder": inside})
        result = run_tool(process, _PRECOMPILE, {"given.json": given}, _PRECOMPILE_SECONDS)
        if result.status == "ok" and folder.exists():
            (folder / "complete").touch()

    def _precompiled(self, call: ExtensionCall) -> str:
        """Where the compiler's process finds the precompiled header for a call; empty if there is none."""
        folder = self._precompiled_folder(_header_flags(call))
        if not (folder / "complete").exists():
            return ""
        return f"{process_headers(self._fleet.tier, self._fleet.headers)}/{folder.parent.name}/{folder.name}"

    def _precompiled_folder(self, flags: list[str]) -> Path:
        name = hashlib.sha256(json.dumps([flags, toolchain()]).encode()).hexdigest()[:24]
        return self._fleet.headers / EXTENSION_HEADERS / name


def _header_flags(call: ExtensionCall) -> list[str]:
    """The flags that a precompiled header must share.

    The compiler itself checks macros, so they are not included.
    """
    return [flag for flag in call.extra_cflags if not flag.startswith(_NOT_IN_HEADERS)]


def _take(result: ToolResult, name: str, deadline_s: float) -> bytes | str:
    """The result of a compiler's process: a library, or an error message for the candidate's author."""
    if result.status == "timeout":
        raise RoleTimeout("timeout", f"the compiler did not finish in {deadline_s:.0f} s", role=name)
    if result.status == "out_of_memory":
        raise RoleFailure("out_of_memory", "the compiler needs more memory than it may have", role=name)
    words = {
        file: data.decode("utf-8", "replace")
        for file, data in result.outputs.items()
        if file in (compiler.ERRORS, compiler.REFUSAL)
    }
    if compiler.REFUSAL in words:
        raise RoleFailure("contract_violation", f"load_inline: {words[compiler.REFUSAL][:500]}", role=name)
    if compiler.ERRORS in words:
        return f"the extension does not compile: {words[compiler.ERRORS]}"
    library = result.outputs.get(compiler.LIBRARY)
    if library is None:
        if result.status == "ok":
            return f"the extension does not compile: it is larger than {MAX_LIBRARY_BYTES >> 20} MiB"
        raise RoleFailure(
            "not_judged",
            "the extension could not be built, and no compiler said why; try again",
            f"{result.stderr}\n{result.stdout[-2000:]}",
        )
    return library


def process_headers(tier: str, headers: Path) -> str:
    """Where a child sees the folder of precompiled headers."""
    return confinement.HEADERS if tier == "namespaces" else str(headers)
