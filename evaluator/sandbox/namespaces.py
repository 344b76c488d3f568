"""Separate user, mount, PID, network, IPC and UTS namespaces around a fork server, and a second set around each
child.

The outer set gives a minimal read-only root without network. The inner set, new for every forked process, gives a
private /proc, /tmp and PID 1, so that one candidate can neither see nor signal another one or the fork server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable

from evaluator.sandbox import syscalls
from evaluator.sandbox.layout import Layout
from evaluator.sandbox.syscalls import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC

#: Used when the operator runs this as root: limits such as RLIMIT_NPROC do not apply to the real root user.
UNPRIVILEGED_ID = 64321
_TMP_BYTES = 1 << 30

_OUTER = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
_INNER = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
)


def _map_identity(uid: int, gid: int) -> None:
    """Maps the process's ids to themselves in the user namespace just entered."""
    with open("/proc/self/setgroups", "w", encoding="ascii") as file:
        file.write("deny")
    with open("/proc/self/uid_map", "w", encoding="ascii") as file:
        file.write(f"{uid} {uid} 1")
    with open("/proc/self/gid_map", "w", encoding="ascii") as file:
        file.write(f"{gid} {gid} 1")


def enter_outer(layout: Layout) -> None:
    """Moves this single-threaded process into the outer namespaces. Returns only in the new PID 1.

    The calling process stays outside, waits, and exits with the status of the new one.

    Raises:
        OSError: this machine does not allow it. The caller should exit; no partial change matters.
    """
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    if root:
        syscalls.unshare(_OUTER)
    else:
        syscalls.unshare(_OUTER | syscalls.CLONE_NEWUSER)
        _map_identity(uid, gid)
    child = os.fork()
    if child:
        _wait_and_exit(child)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    _build_root(layout, UNPRIVILEGED_ID if root else uid)
    if root:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    syscalls.drop_capabilities()
    # Changing ids makes a process undumpable, and then it may not write its children's id maps.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    # setresuid also clears the death signal.
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)


def _wait_and_exit(child: int) -> None:
    try:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
    finally:
        os._exit(70)


def _build_root(layout: Layout, uid: int) -> None:
    syscalls.mount(None, "/", None, MS_REC | MS_PRIVATE)
    # Mounted over only in this private namespace: outside, the folder stays empty.
    base = layout.root
    syscalls.mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755")
    for path in ("/tmp", "/dev/shm", "/proc", *layout.mount_points):
        os.makedirs(base + path, exist_ok=True)
    # Before the trees: a Python environment may itself be below /tmp.
    for path in ("/tmp", "/dev/shm"):
        private_tmpfs(base + path, uid)
    for path in layout.read_only:
        target = base + path
        _mount_point(path, target)
        syscalls.mount(path, target, None, MS_BIND | MS_REC)
        syscalls.make_read_only(target)
    for path, destination in layout.links.items():
        os.symlink(destination, base + path)
    for path in layout.devices:
        _mount_point(path, base + path)
        syscalls.mount(path, base + path, None, MS_BIND)
    for outside, inside in layout.writable:
        os.makedirs(base + inside, exist_ok=True)
        syscalls.mount(outside, base + inside, None, MS_BIND)
        syscalls.mount(None, base + inside, None, MS_BIND | syscalls.MS_REMOUNT | MS_NOSUID | MS_NODEV)
    syscalls.mount("proc", base + "/proc", "proc", MS_NOSUID | MS_NODEV)
    for name, destination in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
    ):
        os.symlink(destination, f"{base}/dev/{name}")
    os.makedirs(base + "/etc", exist_ok=True)
    # torch's profiler and getpass look the user up. Replacing the real names hides the machine's other users.
    with open(base + "/etc/passwd", "w", encoding="ascii") as file:
        file.write(f"sandbox:x:{uid}:{uid}::/tmp:/bin/sh\n")
    with open(base + "/etc/group", "w", encoding="ascii") as file:
        file.write(f"sandbox:x:{uid}:\n")
    syscalls.pivot_root(base)
    # From here on the root itself cannot be written either; the mounts above keep their own modes.
    syscalls.mount(None, "/", None, syscalls.MS_REMOUNT | MS_BIND | syscalls.MS_RDONLY | MS_NOSUID | MS_NODEV)


def _mount_point(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb"):
        pass


def private_tmpfs(path: str, uid: int) -> None:
    """Mounts an empty folder in memory that only one user may use."""
    options = f"size={_TMP_BYTES},mode=700,uid={uid},gid={uid}"
    syscalls.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)


def enter_inner(control: socket.socket, private: list[str], before_fork: Callable[[], None]) -> None:
    """Gives a freshly forked child its own namespaces. Returns only in the process that will run untrusted code.

    Between it and the fork server is a new, trusted PID 1, which runs nothing untrusted, reaps orphans and obeys
    the one-byte commands of the referee on ``control`` (see :func:`_serve_as_init`). ``private`` folders get an
    empty tmpfs each; ``before_fork`` runs while this process may still mount.
    """
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(_INNER)
    _map_identity(uid, gid)
    if os.fork():
        os._exit(0)
    # PID 1 of the new namespace.
    syscalls.mount(None, "/", None, MS_REC | MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    for path in private:
        private_tmpfs(path, uid)
    before_fork()
    runner = os.fork()
    if runner == 0:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        syscalls.drop_capabilities()
        return
    syscalls.drop_capabilities()
    # Nothing in the namespace may inspect or trace PID 1.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    _serve_as_init(control, runner)


def _serve_as_init(control: socket.socket, runner: int) -> None:
    """PID 1: answers "how many processes are there" and stops or continues all of them; dies with the referee."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
    line = control.fileno()
    kept = {control.fileno(), wake_read, wake_write}
    low = 3
    for high in (*sorted(kept), 4096):
        os.closerange(low, high)
        low = high + 1
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    control.send(b"R" + struct.pack("<I", runner))
    while True:
        if _reap(runner):
            # The runner is gone: no process that it left may survive. When PID 1 ends, the namespace ends.
            os._exit(0)
        ready, _, _ = select.select([line, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        if line not in ready:
            continue
        command = control.recv(1)
        if not command:
            os._exit(0)
        if command == b"S":
            _signal_everyone(19)
        elif command == b"C":
            _signal_everyone(18)
        others = sum(name.isdigit() and name not in ("1", str(runner)) for name in os.listdir("/proc"))
        control.send(b"A" + struct.pack("<I", others))


def _signal_everyone(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def _reap(runner: int) -> bool:
    """Reaps ended children; True when the runner is among them."""
    ended = False
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return ended
        ended = ended or pid == runner
