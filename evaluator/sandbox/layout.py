"""What an untrusted process can see of the file system: a few read-only trees and its own private folders."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

#: Programs, libraries and the compiler. None of these is secret on any distribution; missing paths are skipped.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CPU_FACTS = ("/sys/devices/system/cpu", "/sys/devices/system/node")


@dataclass(frozen=True)
class Layout:
    """The view of one role.

    Attributes:
        root: an empty folder outside, over which the new root is mounted.
        read_only: trees that keep their own path inside.
        writable: (folder outside, path inside) pairs; everything else that can be written is a private tmpfs.
        devices: device nodes that keep their own path.
        links: symbolic links of the root, path to destination.
        mount_points: empty folders on which children mount their own.
    """

    root: str
    read_only: tuple[str, ...]
    writable: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = _DEVICES
    links: dict[str, str] = field(default_factory=dict)
    mount_points: tuple[str, ...] = ()


def _python_trees() -> list[str]:
    trees = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    trees.update(site.getsitepackages())
    # Not the folder of a checkout, which may also hold a database or a `.env`.
    own = [os.path.realpath(root) for root in import_roots()]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    trees.update(entry for entry in given if os.path.realpath(entry) not in own)
    executable = Path(sys.executable)
    trees.add(str(executable.parent.parent))
    trees.add(str(executable.resolve().parent.parent))
    return [tree for tree in trees if tree and tree != "/"]


def _own_packages() -> list[str]:
    """Only the two packages that the roles import, not the folder around them: it may hold a database or a `.env`."""
    import kernelbench_tasks

    here = Path(__file__).resolve().parent.parent
    return [str(here), str(Path(kernelbench_tasks.__file__).resolve().parent)]


def _outermost(paths: list[str]) -> tuple[str, ...]:
    """Drops paths below another one of the list, and those that do not exist."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if os.path.exists(path)}, key=len):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(path)
    return tuple(kept)


def gpu_devices() -> tuple[str, ...]:
    """Device nodes of NVIDIA's driver that exist here."""
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    names += [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    return tuple(f"/dev/{name}" for name in names if os.path.exists(f"/dev/{name}"))


def for_role(
    root: str,
    *,
    gpu: bool,
    writable: tuple[tuple[str, str], ...] = (),
    mount_points: tuple[str, ...] = (),
) -> Layout:
    """The layout of a role's fork server: system, Python and the two packages read-only, plus its own folders."""
    read_only = [*_SYSTEM, *_python_trees(), *_own_packages()]
    devices: tuple[str, ...] = _DEVICES
    if gpu:
        # Without /sys the driver's start fails with error 304. It lists devices, but holds no user secrets.
        read_only += [
            "/sys",
            "/etc/OpenCL",
            "/usr/local/nvidia",
            "/usr/local/cuda",
            "/opt/nvidia/nsight-compute",
        ]
        devices += gpu_devices()
    else:
        read_only += list(_CPU_FACTS)
    links = {
        path: os.readlink(path)
        for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
        if os.path.islink(path)
    }
    kept = tuple(path for path in _outermost(read_only) if path not in links)
    return Layout(root, kept, writable, devices, links, mount_points)


def import_roots() -> list[str]:
    """Folders that must be on ``sys.path`` inside for `evaluator` and `kernelbench_tasks` to be importable."""
    return sorted({str(Path(path).parent) for path in _own_packages()})
