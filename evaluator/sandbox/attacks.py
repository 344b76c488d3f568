"""The sandbox's self-test: each function tries one forbidden thing from inside and raises if it is refused.

A tier is used only if every attack fails. ``facts`` tells them what exists outside: a file, a process, a port.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

Facts = dict[str, Any]


class Blocked(Exception):
    """The attack did not work; the message says how it was stopped."""


def read_a_file_outside(facts: Facts) -> None:
    """The referee wrote a secret file that no layout includes."""
    with open(facts["secret_file"], encoding="utf-8") as file:
        file.read()


def write_outside(facts: Facts) -> None:
    """A file beside the secret one."""
    with open(facts["secret_file"] + ".planted", "w", encoding="utf-8") as file:
        file.write("planted")


def read_the_password_file(facts: Facts) -> None:
    """/etc/shadow, readable for real root."""
    with open("/etc/shadow", encoding="utf-8") as file:
        file.read()


def write_to_system_folders(facts: Facts) -> None:
    """A file that every later process would load."""
    path = os.path.join(os.path.dirname(ctypes.__file__), "planted.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write("")


def read_another_environment(facts: Facts) -> None:
    """The referee's environment through /proc, where keys would be."""
    with open(f"/proc/{facts['referee_pid']}/environ", "rb") as file:
        if facts["marker"].encode() not in file.read():
            raise Blocked("that process id belongs to another process in here")


def read_memory_of_parent(facts: Facts) -> None:
    """/proc/<parent>/mem of the process that forked this one, or of PID 1."""
    with open(f"/proc/{os.getppid() or 1}/mem", "rb"):
        return


def signal_the_referee(facts: Facts) -> None:
    """Signal 0 tests whether signals would be allowed."""
    _refuse_own(facts["referee_pid"])
    os.kill(facts["referee_pid"], 0)


def kill_another_process(facts: Facts) -> None:
    """A victim process of the referee, which checks afterwards whether it is alive."""
    _refuse_own(facts["victim_pid"])
    os.kill(facts["victim_pid"], 9)


def hold_another_process_back(facts: Facts) -> None:
    """A rival that is confined to one shared core would seem slow."""
    _refuse_own(facts["victim_pid"])
    os.sched_setaffinity(facts["victim_pid"], {min(os.sched_getaffinity(0))})


def _refuse_own(pid: int) -> None:
    """In a separate PID namespace, an outside process id may belong to one of this sandbox."""
    if pid in (1, os.getpid()):
        raise Blocked("that process id belongs to another process in here")


def trace_the_parent(facts: Facts) -> None:
    """PTRACE_ATTACH on the parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(16, os.getppid() or 1, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def connect_to_the_network(facts: Facts) -> None:
    """A TCP port that the referee listens on."""
    with socket.create_connection(("127.0.0.1", facts["tcp_port"]), timeout=1):
        return


def send_a_datagram(facts: Facts) -> None:
    """UDP needs no connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", facts["tcp_port"]))


def open_a_netlink_socket(facts: Facts) -> None:
    """Netlink talks to the kernel about interfaces and processes."""
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


def connect_to_a_unix_socket(facts: Facts) -> None:
    """A socket by path outside, like a container engine's."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(facts["unix_socket"])


def send_to_a_unix_socket_of_datagrams(facts: Facts) -> None:
    """One end of a socket pair needs no socket(), and can be connected to a path, like a system log's."""
    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        with end:
            end.connect(facts["unix_datagram_socket"])
            end.send(b"x")


def make_a_user_namespace(facts: Facts) -> None:
    """A new namespace would grant capabilities again."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
        raise OSError(1, "unshare")


def clone_into_a_user_namespace(facts: Facts) -> None:
    """The same through clone and clone3, which create the process in it directly."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    request = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
    calls: list[tuple[object, ...]] = [(435, ctypes.byref(request), ctypes.c_size_t(ctypes.sizeof(request)))]
    if os.uname().machine == "x86_64":
        calls.append((56, ctypes.c_ulong(0x10000000 | 17), None, None, None, None))
    for call in calls:
        child = libc.syscall(*call)
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            return
    raise OSError(ctypes.get_errno(), "clone")


def mount_something(facts: Facts) -> None:
    """A tmpfs over this process's own folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.environ["TMPDIR"].encode(), b"tmpfs", ctypes.c_ulong(0), None) != 0:
        raise OSError(1, "mount")


def become_root(facts: Facts) -> None:
    """setuid(0), then using it."""
    os.setuid(0)
    with open(facts["secret_file"], encoding="utf-8") as file:
        file.read()


def use_io_uring(facts: Facts) -> None:
    """io_uring performs operations that a system call filter does not see."""
    if ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(120)) < 0:
        raise OSError(1, "io_uring_setup")


def continue_by_a_timer(facts: Facts) -> None:
    """A kernel timer that sends SIGCONT would resume a stopped process."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = ctypes.create_string_buffer(struct.pack("<qii48x", 0, signal.SIGCONT, 0))
    if libc.timer_create(1, event, ctypes.byref(ctypes.c_void_p())) != 0:
        raise OSError(ctypes.get_errno(), "timer_create")


def continue_by_data(facts: Facts) -> None:
    """The same through a signal for data that arrives on a socket."""
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(reading, 10, signal.SIGCONT)  # F_SETSIG
    finally:
        os.close(reading)
        os.close(writing)


def take_the_processors_clock(facts: Facts) -> None:
    """A process that can make clock reads fault can answer in the clock's place. This request changes nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    set_tsc, as_always = 26, 1
    if libc.prctl(set_tsc, as_always, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def fork_without_end(facts: Facts) -> None:
    """More processes than the limit allows. They end when a pipe is closed, since killing them may be refused."""
    read_end, write_end = os.pipe()
    children = []
    try:
        for _ in range(facts["process_limit"] + 8):
            pid = os.fork()
            if pid == 0:
                os.close(write_end)
                os.read(read_end, 1)
                os._exit(0)
            children.append(pid)
    finally:
        os.close(write_end)
        os.close(read_end)
        for child in children:
            os.waitpid(child, 0)


def allocate_without_end(facts: Facts) -> None:
    """100 GiB of anonymous memory."""
    import mmap

    mmap.mmap(-1, 100 << 30).close()


ATTACKS: tuple[Callable[[Facts], None], ...] = (
    read_a_file_outside, write_outside, read_the_password_file, write_to_system_folders, read_another_environment,
    read_memory_of_parent, signal_the_referee, hold_another_process_back, kill_another_process, trace_the_parent, connect_to_the_network, send_a_datagram,
    open_a_netlink_socket, connect_to_a_unix_socket, send_to_a_unix_socket_of_datagrams, make_a_user_namespace,
    clone_into_a_user_namespace, mount_something, become_root, use_io_uring,
    continue_by_a_timer, continue_by_data, take_the_processors_clock, fork_without_end, allocate_without_end,
)  # fmt: skip


def run_all(facts: Facts) -> list[dict[str, Any]]:
    """Every attack with its result: ``blocked`` is True when it raised."""
    results = []
    skipped = set(facts.get("skip", ()))
    for attack in ATTACKS:
        if attack.__name__ in skipped:
            continue
        try:
            attack(facts)
        except (OSError, Blocked, MemoryError, ValueError) as error:
            results.append({"name": attack.__name__, "blocked": True, "how": str(error)[:200]})
        else:
            results.append({"name": attack.__name__, "blocked": False, "how": "it worked"})
    return results
