"""Starts fork servers and asks them for sandboxed children."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluator.errors import SandboxUnavailable
from evaluator.roles import confinement, protocol
from evaluator.roles.process import RoleProcess
from evaluator.sandbox import layout, namespaces
from evaluator.sandbox.limits import Limits

_START_SECONDS = 90.0
_BOOTSTRAP = (
    "import sys; sys.path[:0] = {roots!r}; "
    "from evaluator.roles.forkserver import main; main({descriptor}, sys.stdin.read())"
)


class ForkServer:
    """A warm, sandboxed process that has imported torch and forks children on request.

    Args:
        name: the role: ``reference``, ``candidate``, ``compile``.
        store: host folder with one subfolder per task or candidate; children see at most one of them.
        tier: ``namespaces`` or ``landlock``.
        gpu: whether children may open the GPU's device nodes.
        threads: threads for torch in children.
        chain_library: path of the compiled chain, or None.
        headers: host folder of shared precompiled headers.
        interprets_triton: whether triton is imported so that its interpreter can run kernels (no GPU anywhere).
        compiler: whether torch's compiler is imported at the start, not only once `load_compiler` was called.
        cores: where the server and its children run, unless a child is given others; None for everywhere.
    """

    def __init__(
        self,
        name: str,
        store: Path,
        tier: str,
        *,
        gpu: bool,
        threads: int,
        chain_library: str | None,
        headers: Path,
        interprets_triton: bool = False,
        compiler: bool = True,
        cores: frozenset[int] | None = None,
    ) -> None:
        self.name = name
        self.tier = tier
        self.gpu = gpu
        self._threads = threads
        self._store = store
        self._headers = headers
        make_accessible(headers)
        root = store.parent / "root"
        root.mkdir(exist_ok=True)
        self._view = layout.for_role(
            str(root),
            gpu=gpu,
            writable=((str(store), confinement.STORE), (str(headers), confinement.ALL_HEADERS)),
            mount_points=confinement.MOUNT_POINTS,
        )
        if chain_library:
            trusted = str(Path(chain_library).parent)
            self._view = layout.Layout(
                **{**asdict(self._view), "read_only": (*self._view.read_only, trusted)},
            )
        self._chain_library = chain_library
        settings = {
            "tier": tier,
            "layout": asdict(self._view),
            "import_roots": layout.import_roots(),
            "chain_library": chain_library,
            "gpu": gpu,
            "interprets_triton": interprets_triton,
            "compiler": compiler,
            "cores": sorted(cores) if cores else None,
        }
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._lock = threading.Lock()
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # OMP_WAIT_POLICY: an operator of shared cores may keep waiting threads from spinning.
        where = "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME"
        for passed in (*where, "OMP_WAIT_POLICY"):
            if passed in os.environ:
                environment[passed] = os.environ[passed]
        roots = [*layout.import_roots(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        program = _BOOTSTRAP.format(roots=roots, descriptor=theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        theirs.close()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(settings).encode())
        self._process.stdin.close()
        # So that it is not flushed again.
        self._process.stdin = None
        self._ready = False
        self._compiler = compiler

    def load_compiler(self) -> None:
        """Before its next child, the server imports torch's compiler."""
        self._compiler = True

    def wait_ready(self) -> None:
        """Waits until the server is sandboxed and has imported torch.

        Raises:
            SandboxUnavailable: it could not be sandboxed or did not start.
        """
        if self._ready:
            return
        answer = self._answer(_START_SECONDS)
        if not answer.get("ready"):
            self.close()
            raise SandboxUnavailable(f"the {self.tier} tier cannot be entered here: {answer.get('error')}")
        self._ready = True

    def _answer(self, deadline_s: float) -> dict[str, Any]:
        limit = time.monotonic() + deadline_s
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._channel], [], [], max(0.0, limit - time.monotonic()))
            part = self._channel.recv(4096) if ready else b""
            if not part:
                self._process.kill()
                _, errors = self._process.communicate()
                words = errors.decode("utf-8", "replace").strip().splitlines()[-3:]
                raise SandboxUnavailable(f"the {self.name} fork server did not start: {' | '.join(words)}")
            line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def fork(
        self,
        *,
        role: str | None = None,
        folder: str = "",
        folder_mode: str = "copy",
        limits: Limits,
        may_compile: bool = False,
        builds_headers: bool = False,
        environment: dict[str, str] | None = None,
    ) -> RoleProcess:
        """A new sandboxed child.

        Args:
            role: what it will serve as; the server's own name by default.
            folder: subfolder of the store that becomes its work folder.
            folder_mode: ``share`` (its files stay) or ``copy`` (private).
            limits: resource limits.
            may_compile: whether a candidate's calls of `load_inline` are recorded, to be built.
            builds_headers: it runs only trusted code and may fill the shared folder of precompiled headers.
            environment: more environment variables.
        """
        self.wait_ready()
        role = role or self.name
        ours, theirs = socket.socketpair()
        control_ours, control_theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        folder_path = self._store / folder if folder else None
        if folder_path is not None:
            make_accessible(folder_path)
        request = {
            "role": role,
            "folder": folder,
            "folder_mode": folder_mode,
            "store": str(self._store) if self.tier == "landlock" else confinement.STORE,
            "headers": str(self._headers) if self.tier == "landlock" else confinement.ALL_HEADERS,
            "builds_headers": builds_headers,
            "limits": asdict(limits),
            "gpu": self.gpu,
            "devices": list(layout.gpu_devices()) if self.gpu else [],
            "read_only": list(self._view.read_only),
            "links": list(self._view.links),
            "threads": self._threads,
            "chain_library": self._chain_library,
            "may_compile": may_compile,
            "compiler": self._compiler,
            "environment": environment or {},
        }
        process = RoleProcess(
            role,
            ours,
            control_ours,
            read_end,
            namespaced=self.tier == "namespaces",
            watched_folder=folder_path if folder_mode == "share" else None,
        )
        try:
            with self._lock:
                protocol.send_request(
                    self._channel, request, (theirs.fileno(), control_theirs.fileno(), write_end)
                )
                self._answer(_START_SECONDS)
        except (BrokenPipeError, ConnectionError) as error:
            raise SandboxUnavailable(f"the {self.name} fork server is gone: {error}") from None
        finally:
            theirs.close()
            control_theirs.close()
            os.close(write_end)
        process.greet(60.0)
        return process

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the server and every child of its namespace."""
        self._channel.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def make_accessible(folder: Path) -> None:
    """Creates a store folder that the sandbox's user can write."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, namespaces.UNPRIVILEGED_ID, namespaces.UNPRIVILEGED_ID)
