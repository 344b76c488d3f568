"""A seccomp filter, assembled by hand: refuses system calls that no kernel, compiler or tensor library needs.

A deny list, not an allow list: CUDA's driver, OpenMP, compilers and torch use a changing set of calls, while the
calls below are those by which a process reaches other processes, the network, the clock, kernel modules or new
namespaces. A refused call fails with EPERM; `clone3` answers ENOSYS so that libc falls back to `clone`, whose
flags a filter can read.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from evaluator.sandbox import syscalls

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
_RET_KILL_PROCESS = 0x80000000

# name: (x86-64, AArch64); None if the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "quotactl": (179, 60), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "personality": (135, 92), "vhangup": (153, 58), "syslog": (103, 116),
    # Signals from the kernel itself, with which a stopped process could resume itself.
    "timer_create": (222, 107), "mq_notify": (244, 184),
    "fanotify_init": (300, 262), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_SOCKET = (41, 198)
_PRLIMIT64 = (302, 261)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SETSID = (112, 157)
_FCNTL = (72, 25)
_MEMFD_CREATE = (319, 279)
# Calls whose first argument names a process. In the tier where outside process ids are visible, only the process's
# own is allowed.
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
_SCHEDULING = {
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}  # fmt: skip
_OF_OTHERS = {
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
_SOCKETPAIR = (53, 199)
_PRCTL = (157, 167)
_NAMESPACE_FLAGS = 0x7E020000
_F_SETSIG = 10
_PR_SET_TSC = 26
_AF_UNIX = 1

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JEQ = 0x15
_JGE = 0x35
_JSET = 0x45
_AND = 0x54
_RETURN = 0x06
_NUMBER = 0
_ARCHITECTURE = 4


def _argument(index: int) -> int:
    """Offset of the low half of a system call argument (both architectures are little-endian)."""
    return 16 + 8 * index


class _Program:
    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def add(self, code: int, k: int, true: int = 0, false: int = 0) -> None:
        self.code.append((code, true, false, k))

    def packed(self) -> bytes:
        return b"".join(struct.pack("<HBBI", *instruction) for instruction in self.code)


def build(
    *, unix_sockets: bool, new_sessions: bool, shared_memory_files: bool, alone: int | None = None
) -> bytes:
    """The filter as packed BPF instructions for this machine.

    Args:
        unix_sockets: allow `socket(AF_UNIX)`; CUDA's start fails without it (error 304, measured on an H200).
        new_sessions: allow `setsid`; safe if a PID namespace ends every process anyway.
        shared_memory_files: allow `memfd_create`.
        alone: the only process id that may be signalled or scheduled, for a tier without a PID namespace: Landlock
            blocks signals only from Linux 6.12 on, and never restricts CPU affinity.

    Raises:
        OSError: there is no table for this processor architecture.
    """
    if syscalls.MACHINE not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no seccomp table for {syscalls.MACHINE}")
    column = 0 if syscalls.MACHINE == "x86_64" else 1
    refuse = _RET_ERRNO | errno.EPERM
    program = _Program()
    program.add(_LOAD, _ARCHITECTURE)
    program.add(_JEQ, _AUDIT_ARCH[syscalls.MACHINE], 1, 0)
    program.add(_RETURN, _RET_KILL_PROCESS)
    program.add(_LOAD, _NUMBER)
    if column == 0:
        # x32 calls have bit 30 set and would pass a filter that compares 64-bit numbers.
        program.add(_JGE, 0x40000000, 0, 1)
        program.add(_RETURN, _RET_KILL_PROCESS)
    denied = [pair[column] for pair in _DENIED.values()]
    if not new_sessions:
        denied.append(_SETSID[column])
    if not shared_memory_files:
        denied.append(_MEMFD_CREATE[column])
    if alone is not None:
        denied += [pair[column] for pair in _OF_OTHERS.values()]
    for number in denied:
        if number is not None:
            program.add(_JEQ, number, 0, 1)
            program.add(_RETURN, refuse)
    program.add(_JEQ, _CLONE3[column], 0, 1)
    program.add(_RETURN, _RET_ERRNO | errno.ENOSYS)
    # socket(family): deny all but AF_UNIX, and allow that only if requested.
    program.add(_JEQ, _SOCKET[column], 0, 4 if unix_sockets else 1)
    if unix_sockets:
        program.add(_LOAD, _argument(0))
        program.add(_JEQ, _AF_UNIX, 1, 0)
        program.add(_RETURN, refuse)
        program.add(_LOAD, _NUMBER)
    else:
        program.add(_RETURN, refuse)
        # socketpair(type): a datagram socket can be connected again, to any path.
        program.add(_JEQ, _SOCKETPAIR[column], 0, 6)
        program.add(_LOAD, _argument(1))
        program.add(_AND, 0xF)
        program.add(_JEQ, 1, 2, 0)
        program.add(_JEQ, 5, 1, 0)
        program.add(_RETURN, refuse)
        program.add(_LOAD, _NUMBER)
    if alone is not None:
        for pair, own in [(p, alone) for p in _SIGNALS.values()] + [(p, 0) for p in _SCHEDULING.values()]:
            # 0 is the process itself, or its own process group, which contains no other process.
            program.add(_JEQ, pair[column], 0, 5)
            program.add(_LOAD, _argument(0))
            program.add(_JEQ, 0, 2, 0)
            program.add(_JEQ, own, 1, 0)
            program.add(_RETURN, refuse)
            program.add(_LOAD, _NUMBER)
    # prlimit64(pid): only on itself, or a candidate could starve the process that freezes it.
    program.add(_JEQ, _PRLIMIT64[column], 0, 4)
    program.add(_LOAD, _argument(0))
    program.add(_JEQ, 0, 1, 0)
    program.add(_RETURN, refuse)
    program.add(_LOAD, _NUMBER)
    # fcntl(F_SETSIG): data on a socket could trigger a continue signal.
    program.add(_JEQ, _FCNTL[column], 0, 4)
    program.add(_LOAD, _argument(1))
    program.add(_JEQ, _F_SETSIG, 0, 1)
    program.add(_RETURN, refuse)
    program.add(_LOAD, _NUMBER)
    # prctl(PR_SET_TSC): clock reads could be made to fault, and a candidate could then fake the answer.
    program.add(_JEQ, _PRCTL[column], 0, 4)
    program.add(_LOAD, _argument(0))
    program.add(_JEQ, _PR_SET_TSC, 0, 1)
    program.add(_RETURN, refuse)
    program.add(_LOAD, _NUMBER)
    program.add(_JEQ, _CLONE[column], 0, 3)
    program.add(_LOAD, _argument(0))
    program.add(_JSET, _NAMESPACE_FLAGS, 0, 1)
    program.add(_RETURN, refuse)
    program.add(_RETURN, _RET_ALLOW)
    return program.packed()


def install(program: bytes) -> None:
    """Installs the filter for this process and all its children; cannot be undone. Needs no_new_privs."""

    class _FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = _FilterProgram(len(program) // 8, ctypes.addressof(buffer))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(descriptor))
