"""Packs what compilers left in a candidate's work folder into one run of bytes, and unpacks it.

Runs only in processes of the candidate. One packs, and a later one of the same candidate unpacks. In between, the
referee keeps the bytes without reading them. So nothing here is a defense: a candidate that writes other bytes or
other files only affects itself.

Format: a length (little-endian, 4 bytes), that many bytes of JSON (`work`: the original folder; `files`: pairs of
name and size), and the files' contents one after the other.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from typing import Any

#: Cache folders of Inductor, Triton and the driver's own compiler; see :mod:`evaluator.roles.confinement`.
FOLDERS = ("inductor", "triton", "cuda")
MAX_FILES = 8192
_LENGTH = struct.Struct("<I")
#: Triton's lists of files that belong together contain full paths.
_LISTS_OF_PATHS = "__grp__"


def pack(work: str, descriptor: int, most_bytes: int, known: frozenset[str]) -> int:
    """Writes the regular files of a work folder to an open file.

    Args:
        work: the folder.
        descriptor: the open file; it has room for ``most_bytes``.
        most_bytes: files beyond this are left out.
        known: names that an earlier process has packed already.

    Returns:
        Number of bytes written; 0 if there is nothing new.
    """
    found = _files(work)
    kept: list[tuple[str, int]] = []
    room = most_bytes - _LENGTH.size - len(json.dumps({"work": work, "files": []}))
    for name, size in found[:MAX_FILES]:
        room -= size + len(json.dumps([name, size])) + 2
        if room < 0:
            break
        kept.append((name, size))
    if not any(name not in known for name, _ in kept):
        return 0
    index = json.dumps({"work": work, "files": kept}).encode()
    with os.fdopen(os.dup(descriptor), "r+b", buffering=0) as sink:
        sink.seek(0)
        sink.write(_LENGTH.pack(len(index)) + index)
        for name, size in kept:
            _copy(os.path.join(work, name), size, sink.fileno())
    return _LENGTH.size + len(index) + sum(size for _, size in kept)


def _files(work: str) -> list[tuple[str, int]]:
    """Regular files below the compilers' folders, oldest first, with their sizes.

    Links and other file types are skipped.
    """
    found = []
    for folder in FOLDERS:
        top = os.path.join(work, folder)
        for parent, _, names in () if os.path.islink(top) else os.walk(top):
            for name in names:
                path = os.path.join(parent, name)
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, os.path.relpath(path, work), status.st_size))
    return [(name, size) for _, name, size in sorted(found)]


def _copy(path: str, size: int, sink: int) -> None:
    # The kernel copies: a copy through this heap would leave it in another state than the baseline's process has.
    with open(path, "rb", buffering=0) as source:
        while size:
            sent = os.sendfile(sink, source.fileno(), None, size)
            if not sent:
                raise OSError(f"{path} became shorter while it was read")
            size -= sent


def unpack(descriptor: int, work: str) -> frozenset[str]:
    """Unpacks an open file into a work folder. Returns the file names; none if it is empty."""
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return frozenset()
    with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
        (length,) = _LENGTH.unpack_from(view)
        start = _LENGTH.size + length
        index: dict[str, Any] = json.loads(bytes(view[_LENGTH.size : start]))
        for name, size in index["files"]:
            path = os.path.join(work, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with view[start : start + size] as content, open(path, "wb", buffering=0) as file:
                if os.path.basename(name).startswith(_LISTS_OF_PATHS):
                    file.write(bytes(content).replace(os.fsencode(index["work"]), os.fsencode(work)))
                else:
                    file.write(content)
            start += size
    return frozenset(name for name, _ in index["files"])
