"""Stores what compilers made in a candidate's own process, for the next process of the same candidate.

Triton compiles in the process that launches a kernel, 0.3 to 1.4 s for each specialization (H200). Only the
candidate's process can do it, because only its calls determine the specializations. So untrusted code writes the
files, and they may hold anything. That is safe, because only that candidate gets them: they are stored under a
hash of its source, the task's and the versions, and reach only a process that runs this very source, which could
write the same files itself. The referee treats them as opaque bytes: it opens nothing by a name from them, unpacks
nothing and never parses them. Packing and unpacking happen in the sandbox (:mod:`evaluator.roles.compiled_files`).
The candidate gains a memory of at most 64 MiB from one evaluation to the next. Contents and weights are drawn
anew, so no answer can be in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator.errors import ProtocolViolation, RoleReported
from evaluator.keeping import seal
from evaluator.roles import protocol
from evaluator.roles.process import RoleProcess
from evaluator.roles.tool_run import run_tool

_log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
_MAX_STORE_BYTES = 2 << 30
_SECONDS = 20.0
#: Header of each file. A damaged file, unpacked in the sandbox, would end the evaluation of an honest candidate.
_SEAL_BYTES = 32
_BASICS_SECONDS = 60.0
#: Triton compiles a small library of its own with the C compiler, in every process whose cache is empty.
_BASICS = """
import os
from triton.backends.nvidia.driver import CudaUtils
from evaluator.roles import compiled_files
CudaUtils()
with open("out/files", "wb") as file:
    compiled_files.pack(os.environ["KERNELWRIGHT_WORK"], file.fileno(), 1 << 24, frozenset())
"""
#: The parts of the environment on which compiled files depend.
_VERSIONS = ("device_name", "driver", "torch", "triton", "python", "platform")


class KeptFiles:
    """One file per candidate, in ``folder``. Only the referee reads and writes it, and no sandbox sees it.

    Args:
        folder: private to the referee, or to referees of one user.
        most_bytes: of all files together; the least recently used are removed first.
    """

    def __init__(self, folder: Path, most_bytes: int = _MAX_STORE_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @staticmethod
    def key(candidate_sha256: str, task_sha256: str, environment: dict[str, Any]) -> str:
        """The key of a candidate's files."""
        parts = [candidate_sha256, task_sha256, *(str(environment.get(name)) for name in _VERSIONS)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def get(self, key: str) -> bytes:
        """The stored bytes. Empty if there are none or the file is damaged: compilers then run again."""
        path = self.folder / key
        try:
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return b""
        digest, data = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
        if digest != seal(key, data):
            _log.warning("a candidate's compiled files are damaged and will be compiled again: %s", key)
            path.unlink(missing_ok=True)
            return b""
        return data

    def put(self, key: str, data: bytes) -> None:
        """Stores bytes, replacing earlier ones; completely or, on a full disk, not at all."""
        part = self.folder / f".{key}.{os.getpid()}"
        try:
            part.write_bytes(seal(key, data) + data)
            part.replace(self.folder / key)
        except OSError as error:
            part.unlink(missing_ok=True)
            _log.warning("could not store a candidate's compiled files: %s", error)
        self._prune()

    def _prune(self) -> None:
        files = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
            except OSError:
                continue  # another referee removed it first
            files.append((status.st_mtime_ns, status.st_size, path))
        kept_bytes = 0
        for _, size, path in sorted(files, reverse=True):
            kept_bytes += size
            if kept_bytes > self._most_bytes:
                path.unlink(missing_ok=True)


def basics(store: KeptFiles, environment: dict[str, Any], tool: Callable[[], RoleProcess]) -> bytes:
    """What Triton compiles before its first kernel: made once by a trusted program, without user code.

    Empty if that fails; then every process does it for itself.
    """
    key = store.key("basics", "", environment)
    data = store.get(key)
    if data:
        return data
    result = run_tool(tool(), _BASICS, {}, _BASICS_SECONDS)
    data = result.outputs.get("files", b"")
    if result.status == "ok" and data:
        store.put(key, data)
        return data
    _log.warning("Triton's own library was not compiled ahead: %s %s", result.stderr, result.stdout[-300:])
    return b""


def take(process: RoleProcess, most_bytes: int = MAX_BYTES) -> bytes:
    """Has a process hand over what its compilers made; empty if there is nothing new.

    Raises:
        RoleFailure: the process is gone, did not answer, or claims more than there is room for.
    """
    descriptor = os.memfd_create("kernelwright-files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # The file has its full size from the start (memory is used as it is written) and cannot grow.
        os.ftruncate(descriptor, most_bytes)
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        try:
            answer = process.request_json(protocol.KEEP, {"most_bytes": most_bytes}, _SECONDS, (descriptor,))
        except RoleReported:
            return b""  # nothing could be packed, which is not a fault
        length = answer.get("bytes")
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= most_bytes:
            process.kill()
            raise ProtocolViolation(
                "contract_violation",
                "its process reports compiled files of an impossible size",
                role=process.name,
            )
        return os.pread(descriptor, length, 0)
    finally:
        os.close(descriptor)
