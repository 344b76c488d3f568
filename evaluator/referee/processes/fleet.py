"""The referee's processes and resources: fork servers, folders, device limits, and the sandbox tier in use."""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.devices import Device
from evaluator.devices.base import AUTOCAST_DTYPES
from evaluator.devices.cpu.device import core_cache_bytes
from evaluator.environment import measured_on, thread_count
from evaluator.errors import RoleFailure, SandboxUnavailable
from evaluator.folders import headers_folder
from evaluator.precision import DEFAULT
from evaluator.referee.memory.budget import MemoryBudget
from evaluator.referee.memory.sizes import MemorySize
from evaluator.referee.processes.baseline_store import BaselineStore
from evaluator.referee.processes.compiled_for_candidates import KeptFiles, basics
from evaluator.referee.processes.extensions import EXTENSION_HEADERS, ExtensionBuilder, process_headers
from evaluator.referee.sides.shape_inputs import ShapeInputs
from evaluator.referee.sides.side import Side
from evaluator.roles import chain, protocol
from evaluator.roles.process import RoleProcess
from evaluator.roles.spawn import ForkServer, make_accessible
from evaluator.roles.tool_run import run_tool
from evaluator.sandbox.limits import Limits
from evaluator.timing import cores
from evaluator.timing.exclusive import DeviceLock, file_lock
from evaluator.timing.memory_parts import MemoryParts

if TYPE_CHECKING:  # commands that do not judge load no torch
    from evaluator.referee.memory.device_work import Keeper
    from evaluator.referee.sides.open_shape import Baseline

TIERS = ("namespaces", "landlock")
_WAKE_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Fleet:
    """Fork servers for the three roles under the strongest sandbox tier of this machine.

    Args:
        device: where modules run.
        work_dir: folder for stores and caches; private to this user.
        minimum_tier: ``namespaces`` or ``landlock``; a lower one is refused.
        exactly: try only the minimum tier, not stronger ones first.
        stores: folder that referees side by side may share (built extensions, baselines' times, candidates'
            compiled files); the work folder by default.
        referees: how many share the device, including this one.

    Raises:
        SandboxUnavailable: no tier at or above the minimum passed its self-test.
    """

    def __init__(
        self,
        device: Device,
        work_dir: Path,
        minimum_tier: str,
        *,
        exactly: bool = False,
        stores: Path | None = None,
        referees: int = 1,
    ) -> None:
        if minimum_tier not in TIERS:
            raise SandboxUnavailable(f"unknown sandbox tier {minimum_tier!r}; known: {', '.join(TIERS)}")
        self.device = device
        self.gpu = device.is_accelerator
        # On a GPU the timed process has one core. Every further thread would be stopped and resumed with each
        # block: 0.7 ms for the sixteen threads of an unused pool (H200).
        self.threads = 1 if self.gpu else thread_count()
        self.compile_workers = max(1, min(8, thread_count()))
        #: Where measurements of a GPU run. On a CPU they need all cores.
        self.core = cores.core_for(device.index) if self.gpu else None
        #: Where everything else runs; None leaves it to the operating system.
        self.role_cores = cores.beside(device.index, device.count) if self.gpu else None
        self.input_cap_bytes = device.input_cap_bytes
        #: The same for shapes named by a user or the file: the cost of a call is measured when the shape is
        #: opened.
        self.given_cap_bytes = (device.memory_bytes or device.memory_limit_bytes) // 2
        self.caps = device.caps
        self.limits = Limits(memory_bytes=None if self.gpu else device.memory_limit_bytes)
        self.store = work_dir / "store"
        self.store.mkdir(parents=True, exist_ok=True, mode=0o755)
        make_accessible(self.store)
        self.built_folder = work_dir / "built"
        self.built_folder.mkdir(exist_ok=True)
        self._sweep()
        # One for all work folders of this user: only trusted code writes it, and it takes 150 MB and seconds to
        # make.
        self.headers = headers_folder()
        self.chain_library = chain.build(work_dir / "trusted")
        self.chain = chain.load(self.chain_library)
        self.budget = MemoryBudget(device, referees)
        #: Whether candidates' compilers run once without the device. Worth it if others use the device meanwhile.
        self.rehearses = self.gpu and referees > 1
        self.keeper: Keeper | None = None
        self._spare: RoleProcess | None = None
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()
        self._headers_lock = threading.Lock()
        self._headers_tried = False
        self._basics: bytes | None = None
        #: Whether fork servers have torch's compiler. On a CPU it is imported once something compiles or is timed.
        self.has_compiler = self.gpu
        self.attacks: list[dict[str, Any]] = []
        name = device.facts()["gpu_uuid"] or "cpu"
        self.device_lock = DeviceLock(name)
        self.memory_parts = MemoryParts(name)
        #: Whether other referees have work folders of their own and look here for compiled files.
        self.shares_stores = stores is not None and stores != work_dir
        stores = stores or work_dir
        self.extensions = ExtensionBuilder(self, stores / "artefacts")
        self.baseline_store = BaselineStore(stores / "baselines")
        self.kept_files = KeptFiles(stores / "compiled")
        strongest = TIERS.index(minimum_tier) if exactly else 0
        self.tier = self._choose_tier(TIERS[strongest : TIERS.index(minimum_tier) + 1])
        if self.gpu:
            # Only now: a fork server must not inherit a CUDA context.
            from evaluator.referee.memory.device_work import Keeper

            pool_library = chain.build(work_dir / "trusted", chain.SOURCE.with_name("pool.c"))
            self.keeper = Keeper(pool_library)
        #: Hardware figures for strata of shapes: multiprocessors or cores, and the cache that all or each of them
        #: have.
        self.processors = self.keeper.processors if self.keeper else thread_count()
        self.cache_bytes = self.keeper.cache_bytes if self.keeper else core_cache_bytes()

    def _sweep(self) -> None:
        """Removes private folders that an earlier run left behind, if no other referee works here now."""
        self._presence = os.open(self.store.with_name("in-use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in self.store.glob("kernelwright-*"):
                shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            _log.info("another referee works in %s", self.store)
        fcntl.flock(self._presence, fcntl.LOCK_SH)

    # -- tier --------------------------------------------------------------------------------------------------

    def _choose_tier(self, tiers: Sequence[str]) -> str:
        reasons = []
        for tier in tiers:
            self.attacks = []
            try:
                names = {"run", "compile"} if self.gpu else {"run"}
                self._servers = {name: self._server(name, tier) for name in names}
                # Fork servers take seconds to import torch. This process imports its own modules meanwhile.
                importlib.import_module("evaluator.referee.judging.evaluation")
                self.attacks = self._attack_ourselves()
            except (SandboxUnavailable, RoleFailure) as failure:
                reasons.append(f"{tier}: {failure}")
            except OSError as error:
                reasons.append(f"{tier}: its self-test could not be set up: {error}")
            else:
                open_doors = [attack["name"] for attack in self.attacks if not attack["blocked"]]
                if not open_doors:
                    return tier
                reasons.append(f"{tier}: {', '.join(open_doors)} worked from inside")
            self._end_servers()
        self.close()
        raise SandboxUnavailable(
            "nothing on this machine can isolate untrusted code well enough, so nothing is run ("
            + "; ".join(reasons)
            + "). It needs Linux with user namespaces, or with Landlock and seccomp as a non-root user.",
            self.attacks,
        )

    def _server(self, name: str, tier: str) -> ForkServer:
        return ForkServer(
            name,
            self.store,
            tier,
            gpu=self.gpu and name != "compile",
            threads=self.threads,
            chain_library=self.chain_library,
            headers=self.headers,
            interprets_triton=not self.gpu,
            compiler=self.has_compiler,
            cores=self.role_cores,
        )

    def _attack_ourselves(self) -> list[dict[str, Any]]:
        """The self-test: creates a secret file, a port and a socket outside, and lets a child try to reach them."""
        # The same mechanism with a small number: hundreds of forks of a process with torch in it take seconds.
        limits = replace(self.limits, processes=16)
        with (
            tempfile.TemporaryDirectory(prefix="kernelwright-selftest-") as folder,
            socket.socket() as listener,
        ):
            secret = Path(folder) / "secret"
            secret.write_text(secrets.token_hex(16))
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with (
                socket.socket(socket.AF_UNIX) as unix_listener,
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
                _victim() as victim,
            ):
                unix_listener.bind(f"{folder}/socket")
                unix_listener.listen()
                datagrams.bind(f"{folder}/datagrams")
                facts = {
                    "secret_file": str(secret),
                    "unix_socket": f"{folder}/socket",
                    "unix_datagram_socket": f"{folder}/datagrams",
                    "victim_pid": victim.pid,
                    "tcp_port": listener.getsockname()[1],
                    "referee_pid": os.getpid(),
                    "marker": "PATH=",
                    "process_limit": limits.processes,
                    # Without a data limit (GPU) the operating system may promise any amount of memory.
                    "skip": ["allocate_without_end"] if self.limits.memory_bytes is None else [],
                }
                process = self._servers["run"].fork(role="tool", limits=limits)
                try:
                    payload = process.request_json(protocol.PROBE, {"facts": facts}, 60.0)
                finally:
                    process.close()
                # An attack's own report is not final if its damage can be observed.
                worked = [] if victim.poll() is None else ["kill_another_process"]
                if Path(f"{secret}.planted").exists():
                    worked.append("write_outside")
        return _attack_results(payload, worked)

    # -- processes ---------------------------------------------------------------------------------------------

    def server(self, role: str) -> ForkServer:
        """The fork server for a role, restarted if it has died.

        A fork server runs nothing untrusted and holds no secret, so roles differ only in what their children may
        reach. On a GPU the compile role has no device nodes and needs a server of its own.
        """
        name = "compile" if role == "compile" and self.gpu else "run"
        with self._lock:
            server = self._servers[name]
            if not server.alive:
                server.close()
                server = self._servers[name] = self._server(name, self.tier)
            return server

    def load_compiler(self) -> None:
        """New processes have torch's compiler from now on."""
        with self._lock:
            self.has_compiler = True
            for server in self._servers.values():
                server.load_compiler()

    def candidate_process(self) -> RoleProcess:
        """A new process for a candidate that needs no folder and no environment of its own."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            try:
                spare.request(protocol.WAKE, {}, _WAKE_SECONDS)
            except RoleFailure:
                # Its fork server has died or was killed. It was not used yet.
                spare.close()
            else:
                return spare
        return self.server("candidate").fork(role="candidate", limits=self.limits)

    def make_spare(self) -> None:
        """GPU only: starts the next candidate's process early.

        Its context takes 0.15 s, which overlaps with other work.

        It has run only trusted code, and is stopped until it is taken. The caller holds the device's lock shared.
        """
        if self.gpu and self._spare is None:
            process = self.server("candidate").fork(role="candidate", limits=self.limits)
            try:
                process.request(protocol.WAKE, {}, _WAKE_SECONDS)
                process.freeze()
            except RoleFailure:
                process.close()
            else:
                self._spare = process

    def side(self, process: RoleProcess, key: int, inputs: ShapeInputs, memory: MemorySize) -> Side:
        """A process's side at one shape, on this device. On a GPU the process gets ``memory``, if it has less."""
        if self.keeper is None:
            return Side(process, key, inputs, self.chain)
        from evaluator.referee.sides.device_side import DeviceSide

        return DeviceSide(process, key, inputs, self.chain, self.keeper, memory, self.budget.usual)

    def trim(self, *, collect: bool = False) -> None:
        """On a GPU: releases memory that the referee keeps for later."""
        if self.keeper is not None:
            self.keeper.trim(collect=collect)

    def pin(self, process: RoleProcess) -> None:
        """On a GPU machine: the process shares the referee's core from now on."""
        if self.core is not None and not process.pinned:
            process.pinned = cores.pin(process.pid, self.core)

    def unpin(self, process: RoleProcess) -> None:
        """The process may run on every core again."""
        if process.pinned:
            process.pinned = not cores.unpin(process.pid, self.role_cores or os.sched_getaffinity(0))

    def tool(self, memory_bytes: int | None, *, device: bool) -> RoleProcess:
        """A disposable process for a trusted program beside untrusted files."""
        limits = Limits(memory_bytes=memory_bytes) if memory_bytes else self.limits
        server = self.server("candidate" if device else "compile")
        return server.fork(role="tool", limits=limits, may_compile=True)

    def triton_basics(self) -> bytes:
        """What Triton compiles before its first kernel, the same for every candidate without stored files."""
        with self._headers_lock:
            if self._basics is None:
                self._basics = basics(
                    self.kept_files, self.environment(), lambda: self.tool(None, device=True)
                )
            return self._basics

    def build_headers(self) -> None:
        """Precompiles Inductor's C++ headers once per torch version, see :mod:`evaluator.roles.shared_headers`.

        The caller holds the device's lock shared. Taking it here could deadlock with a referee that waits for this
        one.
        """
        complete = self.headers / "complete"
        with self._headers_lock:
            if self.gpu or self._headers_tried or complete.exists():
                return
            self._headers_tried = True
            self.load_compiler()
            make_accessible(self.headers)
            # Referees of several work folders share the result, and only one makes it.
            with file_lock(self.headers.with_name(f"{self.headers.name}.lock")):
                if complete.exists():
                    return
                # A killed build may have left half a header.
                for remains in self.headers.iterdir():
                    if remains.name == EXTENSION_HEADERS:
                        continue
                    if remains.is_dir() and not remains.is_symlink():
                        shutil.rmtree(remains)
                    else:
                        remains.unlink()
                if self._precompile():
                    complete.touch()

    def _precompile(self, *, trusting: bool = True) -> bool:
        folder = process_headers(self.tier, self.headers)
        program = (
            "from evaluator.roles import shared_headers\n"
            f"shared_headers.build({folder!r}, trusting={trusting})\n"
        )
        process = self.server("compile").fork(
            role="tool", limits=self.limits, builds_headers=True, may_compile=True
        )
        result = run_tool(process, program, {}, 180.0)
        if result.status == "ok" and any(self.headers.glob("*.gch")):
            return True
        if trusting:
            return self._precompile(trusting=False)
        # Usually a missing compiler. Inductor's C++ baselines are then unavailable, and every verdict says so.
        _log.warning(
            "Inductor's C++ headers were not precompiled: %s", f"{result.stderr}{result.stdout[-2000:]}"
        )
        return False

    def baselines(self, precision: str = DEFAULT) -> list[Baseline]:
        """Every way to run the reference of a task of this tier on this device, without times yet."""
        from evaluator.referee.sides.open_shape import Baseline

        modes = self.device.baseline_modes
        if precision in AUTOCAST_DTYPES:
            modes += self.device.autocast_modes
        counts = sorted({1, self.threads}) if not self.gpu else [self.threads]
        return [
            Baseline(f"{mode}/{count}t" if not self.gpu else mode, mode, count)
            for mode in modes
            for count in counts
        ]

    def warm_up(self) -> None:
        """Prepares what the first evaluation would otherwise wait for."""
        with self.device_lock.shared():
            self.build_headers()

    def environment(self) -> dict[str, Any]:
        """The environment part of a verdict: where it was measured."""
        return {**measured_on(self.device), "sandbox_tier": self.tier}

    def ceilings_digest(self) -> str | None:
        """Digest of this device's measured ceilings; None if they were not measured."""
        from evaluator.folders import default_work_dir
        from evaluator.profiling import ceilings

        return ceilings.digest(default_work_dir(), self.device.kind)

    def close(self) -> None:
        """Ends every fork server and with it every process that runs untrusted code."""
        with self._lock:  # a thread that warms up may be taking it
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()
        self._end_servers()
        if self._presence >= 0:
            os.close(self._presence)
            self._presence = -1

    def _end_servers(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers = {}


@contextmanager
def _victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that an attack may try to kill."""
    # It ends with this process, whose end of the pipe closes even if it is killed.
    program = "import sys; sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _attack_results(payload: Any, worked: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": str(entry["name"]),
            "blocked": entry["blocked"] is True and entry["name"] not in worked,
            "how": str(entry["how"])[:200],
        }
        for entry in payload["attacks"]
    ]
