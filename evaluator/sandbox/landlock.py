"""Landlock: which files a process may read and write, enforced by the kernel (ABI 1 to 7 known)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from evaluator.sandbox import syscalls

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_READ = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read file, read directory
_FILE_ONLY = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_TCP = 3
_SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 3


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("access", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def abi() -> int:
    """The kernel's Landlock ABI version; 0 if Landlock is absent or off."""
    try:
        return syscalls.syscall(
            _CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG), what="landlock"
        )
    except OSError:
        return 0


def restrict(read_only: Iterable[str], read_write: Iterable[str]) -> int:
    """Restricts this process to the given trees and returns the ABI in use.

    A path that does not exist is left out (it grants nothing). Every other failure raises, so that a broken rule
    can never mean "everything allowed".

    Raises:
        OSError: Landlock is not available or refused the rules.
    """
    version = abi()
    if version < 1:
        raise OSError(38, "this kernel has no Landlock")
    handled = _RIGHTS_BY_ABI[min(version, 5)]
    ruleset = _Ruleset(handled, _NETWORK_TCP if version >= 4 else 0, 0)
    if version >= 6:
        ruleset.scoped = _SCOPE_ABSTRACT_UNIX_AND_SIGNAL
    size = 8 if version < 4 else 16 if version < 6 else 24
    descriptor = syscalls.syscall(
        _CREATE,
        ctypes.byref(ruleset),
        ctypes.c_size_t(size),
        ctypes.c_uint(0),
        what="landlock_create_ruleset",
    )
    try:
        for paths, access in ((read_only, _READ), (read_write, handled)):
            for path in paths:
                _allow(descriptor, path, access & handled)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.syscall(
            _RESTRICT_SELF, ctypes.c_int(descriptor), ctypes.c_uint(0), what="landlock_restrict_self"
        )
    finally:
        os.close(descriptor)
    return version


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            access &= _FILE_ONLY
        rule = _PathBeneath(access, target)
        syscalls.syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint(0),
            what=f"landlock_add_rule {path}",
        )
    finally:
        os.close(target)
