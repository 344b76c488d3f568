"""Thin, checked bindings of the Linux system calls that the standard library of Python 3.11 does not offer."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

MACHINE = platform.machine()
#: Numbers are the same on x86-64 and AArch64 from 424 on.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_MOUNT_ATTR_NODEV = 4
_LINUX_CAPABILITY_VERSION_3 = 0x20080522


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object, what: str = "") -> int:
    """Makes a system call by number; raises OSError with ``what`` in the message."""
    ctypes.set_errno(0)
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what or f"syscall {number}")


def unshare(flags: int) -> None:
    """Moves this process into new namespaces (CLONE_NEW* flags)."""
    ctypes.set_errno(0)
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2); paths and data as text, None for NULL."""
    encoded = [None if value is None else os.fsencode(value) for value in (source, target, kind, data)]
    ctypes.set_errno(0)
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {source or kind} on {target}")


def umount(target: str) -> None:
    """Detaches a mount lazily."""
    ctypes.set_errno(0)
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def make_read_only(target: str) -> None:
    """Makes the mount at ``target`` and everything below it read-only, without setuid and device nodes."""
    wanted = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    attributes = _MountAttr(wanted, 0, 0, 0)
    syscall(
        _MOUNT_SETATTR,
        ctypes.c_int(-100),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
        what=f"mount_setattr {target}",
    )


def pivot_root(new_root: str) -> None:
    """Makes ``new_root`` (a mount point) the root and drops the old one."""
    os.chdir(new_root)
    syscall(_PIVOT_ROOT[MACHINE], b".", b".", what="pivot_root")
    umount(".")
    os.chdir("/")


def prctl(option: int, value: int = 0, argument: int = 0) -> None:
    """prctl(2) with unsigned long arguments."""
    ctypes.set_errno(0)
    zero = ctypes.c_ulong(0)
    result = _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(argument), zero, zero)
    _check(result, f"prctl {option}")


def drop_capabilities() -> None:
    """Drops every capability permanently: ambient, bounding, effective, permitted, inheritable; no new privileges."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            # EINVAL past the last capability of this kernel, EPERM if CAP_SETPCAP is already gone. With
            # no_new_privs set, the bounding set no longer matters, because no capability can be gained again.
            break
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    syscall(_CAPSET[MACHINE], header, data, what="capset")


#: IOV_MAX of the kernel.
_MOST_VECTORS = 1024


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Gatherer:
    """Reads the same ranges of another process's memory repeatedly.

    Args:
        pid: of the process.
        ranges: (address, length in bytes) of each.
    """

    def __init__(self, pid: int, ranges: Sequence[tuple[int, int]]) -> None:
        self._pid = pid
        parts = [ranges[first : first + _MOST_VECTORS] for first in range(0, len(ranges), _MOST_VECTORS)]
        self._parts = [
            (
                (_IoVec * len(part))(*[_IoVec(*each) for each in part]),
                len(part),
                sum(length for _, length in part),
            )
            for part in parts
        ]
        self._target = ctypes.create_string_buffer(max(wanted for _, _, wanted in self._parts))
        self._read = _libc.process_vm_readv
        self._read.restype = ctypes.c_ssize_t

    def read(self) -> bytes:
        """Their current contents, concatenated.

        Raises:
            OSError: one of them is not completely readable (EFAULT), or the process is gone (ESRCH).
        """
        found = []
        for remote, count, wanted in self._parts:
            local = _IoVec(ctypes.addressof(self._target), wanted)
            ctypes.set_errno(0)
            got = self._read(
                ctypes.c_int(self._pid),
                ctypes.byref(local),
                ctypes.c_ulong(1),
                remote,
                ctypes.c_ulong(count),
                ctypes.c_ulong(0),
            )
            _check(int(got), "process_vm_readv")
            if got != wanted:
                raise OSError(errno.EFAULT, "process_vm_readv: not all of it is there")
            found.append(ctypes.string_at(self._target, wanted))
        return b"".join(found)


def process_vm_read(pid: int, address: int, target: memoryview) -> None:
    """Copies ``len(target)`` bytes from ``address`` of another process.

    Raises:
        OSError: the range is not completely readable, or this process may not read it.
    """
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    length = target.nbytes
    local_base = ctypes.addressof(ctypes.c_char.from_buffer(target))
    done = 0
    while done < length:
        local = _IoVec(local_base + done, length - done)
        remote = _IoVec(address + done, length - done)
        ctypes.set_errno(0)
        count = _libc.process_vm_readv(
            ctypes.c_int(pid),
            ctypes.byref(local),
            ctypes.c_ulong(1),
            ctypes.byref(remote),
            ctypes.c_ulong(1),
            ctypes.c_ulong(0),
        )
        _check(int(count), "process_vm_readv")
        if count == 0:
            raise OSError(14, "process_vm_readv: nothing read")
        done += int(count)
