"""Sandboxes a forked child before any untrusted code: namespaces, folders, limits, Landlock, seccomp, fresh
randomness.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from typing import Any

from evaluator.sandbox import landlock, namespaces, seccomp, syscalls
from evaluator.sandbox.limits import Limits
from evaluator.sandbox.syscalls import MS_BIND, MS_NODEV, MS_NOSUID

#: The sandbox's own mount points. No real path may be below them, or a mount would hide it.
STORE = "/.kernelwright/store"
WORK = "/.kernelwright/work"
HEADERS = "/.kernelwright/headers"
ALL_HEADERS = "/.kernelwright/headers-source"
TEMPORARY = "/.kernelwright/tmp"
MOUNT_POINTS = (WORK, HEADERS, TEMPORARY)


def enter(request: dict[str, Any], control: socket.socket, tier: str) -> None:
    """Sandboxes this process permanently.

    Args:
        request: the fork request: ``limits``, ``folder`` (in the store), ``folder_mode`` (``share`` or ``copy``),
            ``gpu``, ``read_only`` (trees for Landlock), ``memfd``.
        control: the referee's line to PID 1 of the new namespace.
        tier: the sandbox tier in use.
    """
    filter_program = seccomp.build(
        unix_sockets=bool(request["gpu"]),
        new_sessions=tier == "namespaces",
        shared_memory_files=bool(request.get("memfd")),
        alone=os.getpid() if tier == "landlock" else None,
    )
    if tier == "namespaces":
        private = [TEMPORARY, "/dev/shm"]
        if not any(path.startswith("/tmp/") for path in request["read_only"]):
            # For programs that ignore TMPDIR. Not if a needed tree is below /tmp and would be hidden.
            private.append("/tmp")
        namespaces.enter_inner(control, private, before_fork=lambda: _mount_work(request))
        temporary, work = TEMPORARY, WORK
        headers = HEADERS
        writable = [*private, "/dev/null", WORK]
        # CUDA's driver names its threads through /proc/<pid>/task/<tid>/comm; this /proc shows only the sandbox's
        # namespace.
        readable = [*request["read_only"], "/etc", "/sys", "/dev"]
        writable += ["/proc", *request["devices"]]
    else:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.send(b"R" + os.getpid().to_bytes(4, "little"))
        control.close()
        temporary = tempfile.mkdtemp(prefix="kernelwright-", dir=request["store"])
        work = os.path.join(temporary, "work")
        if request["folder"] and request["folder_mode"] == "share":
            work = os.path.join(request["store"], request["folder"])
        elif request["folder"]:
            shutil.copytree(os.path.join(request["store"], request["folder"]), work, symlinks=True)
        else:
            os.mkdir(work)
        headers = request["headers"]
        syscalls.drop_capabilities()
        writable = [temporary, work, "/dev/null", *request["devices"]]
        readable = [*request["read_only"], *request["links"], "/dev/zero", "/dev/urandom", "/dev/random"]
        readable.append("/proc/self")
        if request["gpu"]:
            writable.append("/proc")
    (writable if request["builds_headers"] else readable).append(headers)
    request["headers_path"] = headers
    _set_environment(temporary, work, request["environment"])
    Limits(**request["limits"]).apply()
    landlock_needed = tier == "landlock"
    if landlock_needed or landlock.abi() > 0:
        landlock.restrict(readable, writable)
    seccomp.install(filter_program)
    _forget_inherited_randomness()


def _mount_work(request: dict[str, Any]) -> None:
    """Binds or copies the one folder this child may use to /work and hides the rest of the store."""
    folder = os.path.join(STORE, request["folder"]) if request["folder"] else ""
    if folder and request["folder_mode"] == "share":
        syscalls.mount(folder, WORK, None, MS_BIND)
    else:
        namespaces.private_tmpfs(WORK, os.getuid())
        if folder:
            # Keep links as links: other folders are still visible here, and untrusted code could point links at
            # them.
            shutil.copytree(folder, WORK, dirs_exist_ok=True, symlinks=True)
    # Precompiled headers are built once, by trusted code, and read by every role.
    flags = MS_BIND | MS_NOSUID | MS_NODEV | (0 if request["builds_headers"] else syscalls.MS_RDONLY)
    syscalls.mount(request["headers"], HEADERS, None, MS_BIND)
    syscalls.mount(None, HEADERS, None, syscalls.MS_REMOUNT | flags)
    for hidden in (STORE, ALL_HEADERS):
        syscalls.mount("tmpfs", hidden, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=555")


def _set_environment(temporary: str, work: str, extra: dict[str, str]) -> None:
    # Which of several GPUs is the first one: the referee's shared memory is there.
    kept = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    os.environ.clear()
    os.environ.update(
        {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": temporary,
            "TMPDIR": temporary,
            "LANG": "C.UTF-8",
            "USER": "sandbox",
            "TORCHINDUCTOR_CACHE_DIR": f"{work}/inductor",
            "TRITON_CACHE_DIR": f"{work}/triton",
            "TORCH_EXTENSIONS_DIR": f"{work}/extensions",
            "CUDA_CACHE_PATH": f"{work}/cuda",
            # Of max-autotune, which compiles its choices in threads that end with it. The compiler was imported with 1,
            # so it starts no pool of processes, which would run on outside the timed turn.
            "TORCHINDUCTOR_COMPILE_THREADS": str(min(8, len(os.sched_getaffinity(0)))),
            "KERNELWRIGHT_WORK": work,
            **kept,
            **extra,
        }
    )
    tempfile.tempdir = temporary
    os.chdir(temporary)


def redirect_output(descriptor: int) -> None:
    """Sends standard output and error to the referee's capped pipe, and empties standard input."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for leftover in (null, descriptor):
        if leftover > 2:
            os.close(leftover)


def _forget_inherited_randomness() -> None:
    """Reseeds random generators. Otherwise a child could predict its parent's, and siblings each other's."""
    random.seed(os.urandom(32))
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
