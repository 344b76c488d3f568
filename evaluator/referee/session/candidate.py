"""Runs a candidate: the compile role builds it, then one fresh process runs it and never sees an expected answer."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evaluator.building.extension_call import CallRefused, ExtensionCall, parse
from evaluator.errors import ProtocolViolation, RoleFailure, RoleReported
from evaluator.referee.processes.compiled_for_candidates import take
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.build_record import BuildRecord, digest, read_record, write_record
from evaluator.referee.session.landmarks import Landmarks
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.roles import interpreted, protocol, torch_cpp
from evaluator.roles.arena import sealed_text
from evaluator.roles.process import RoleProcess
from evaluator.sources import CandidateSource

_log = logging.getLogger(__name__)
_LOAD_SECONDS = 60.0
#: Limit for a process that only compiles ahead. The judged process compiles what is missing.
_REHEARSAL_SECONDS = 30.0
_MOST_REHEARSED_BYTES = 64 << 20
_COMPILE_SECONDS = 240.0
#: Words in a source that imply a compiler: the first group acts at import, the others need a call at each shape.
_BUILDS = ("load_inline",)
_COMPILES = ("torch.compile", "torch._inductor", "torch._dynamo")
#: Words for compilers that run in the calling process, so that the next process would compile again.
_COMPILES_IN_PROCESS = ("triton", "_compile_kernel")
#: How often a candidate is started to collect its extensions, and how many it may have.
_MAX_ROUNDS, _MAX_EXTENSIONS = 8, 16


class CandidateRun:
    """One candidate, evaluated against one task session.

    Args:
        fleet: starts its processes.
        session: of the task.
        candidate: its source.
        expires_at: monotonic time at which the evaluation ends.
        name: the role name used in failures of its process.
        watched: its process watches the candidate's own kernels (see :mod:`evaluator.roles.watch`); never timed.
        files_of: folder of the store whose files are copied to its process, which may then run torch.compile.
    """

    def __init__(
        self,
        fleet: Fleet,
        session: TaskSession,
        candidate: CandidateSource,
        expires_at: float = math.inf,
        name: str = "candidate",
        *,
        watched: bool = False,
        files_of: str = "",
    ) -> None:
        self.watched = watched
        self._files_of = files_of
        self.name = name
        self.expires_at = expires_at
        self.fleet = fleet
        self.session = session
        self.candidate = candidate
        key = hashlib.sha256((candidate.sha256 + session.task.sha256).encode()).hexdigest()
        self.folder = f"candidate-{key[:32]}"
        #: What has been built, by digest of the call: a library, or the compiler's error message.
        self._built: dict[str, bytes | str] = {}
        #: Shapes to open in its process; None for all of the session's.
        self.expects: list[OpenShape] | None = None
        self.sides: dict[int, Side] = {}
        self.process: RoleProcess | None = None
        self.compile_s = 0.0
        self.setup_s: float | None = None
        #: What is known about its extensions without a device.
        self._ahead: BuildRecord | None = None
        #: Whether its process was given compiled files of an earlier process.
        self.given_files = False
        #: See :attr:`evaluator.roles.process.RoleProcess.meanwhile`; applies to processes started from now on.
        self.meanwhile: Callable[[RoleProcess], float] | None = None
        #: Its Triton kernels run in Triton's interpreter, which shows correctness but nothing about speed.
        self.interpreted = not fleet.gpu and interpreted.imports_triton(candidate.source)

    def watched_twin(self, expires_at: float) -> CandidateRun:
        """The same candidate with its built extensions, to be watched in a separate process."""
        twin = CandidateRun(self.fleet, self.session, self.candidate, expires_at, self.name, watched=True)
        twin._built = self._built
        return twin

    def again(self) -> CandidateRun:
        """The same candidate with its built extensions, for one more new process.

        The current process has ended.
        """
        assert self.process is None
        run = CandidateRun(self.fleet, self.session, self.candidate, self.expires_at, self.name)
        run._built, run.expects = self._built, self.expects
        return run

    def build(self, shapes: list[OpenShape]) -> None:
        """Has the compile role build what the source needs, while nothing is timed.

        Raises:
            RoleFailure: with ``compile_error`` or whatever else went wrong in it.
        """
        if self._ahead is None:
            self.build_ahead()
        started = time.monotonic()
        source = self.candidate.source
        if self.interpreted and find_spec("triton") is None:
            sentence = "the candidate needs triton, which is not installed here (pip install triton)"
            raise RoleFailure("not_judged", sentence, role=self.name)
        try:
            if any(word in source for word in _BUILDS):
                self._build_extensions(shapes)
            if any(word in source for word in _COMPILES) and not self.fleet.gpu:
                self._compile_shapes(shapes)
        finally:
            self.compile_s += time.monotonic() - started

    # -- extensions --------------------------------------------------------------------------------------------

    def build_ahead(self) -> None:
        """On a GPU machine: builds what needs no device, without the device's lock, so that others can time
        meanwhile.

        On a CPU, compilers would need the cores that others time on.
        """
        if not self.fleet.gpu or not any(word in self.candidate.source for word in _BUILDS):
            return
        started = time.monotonic()
        self._ahead = read_record(self._record_path)
        if self._ahead is not None:
            self._add(self._ahead.calls)
        else:
            calls, _, failure = self._rounds("compile", [], [])
            if failure is None and calls:
                write_record(self._record_path, calls, None)
            # A candidate that needs a device at import, or asks for extensions later, is started again with the
            # device.
            self._ahead = BuildRecord(calls, None if failure is None and calls else [])
        self.compile_s += time.monotonic() - started

    @property
    def _record_path(self) -> Path:
        return self.fleet.built_folder / f"{self.folder}.json"

    def _build_extensions(self, shapes: list[OpenShape]) -> None:
        """Starts the candidate until it asks for no extension that is not built.

        The list of its calls is stored, so that its next evaluation can skip this.
        """
        digests = [digest(shape) for shape in shapes]
        known = self._ahead or read_record(self._record_path)
        calls: list[ExtensionCall] = known.calls if known else []
        if self._ahead is None:
            self._add(calls)
        if known and known.covers(digests):
            return
        server = "candidate" if self.fleet.gpu else "compile"
        calls, late, failure = self._rounds(server, shapes, calls)
        if failure is not None:
            raise failure
        write_record(self._record_path, calls, digests if late else None)

    def _rounds(
        self, server: str, shapes: list[OpenShape], calls: list[ExtensionCall]
    ) -> tuple[list[ExtensionCall], bool, RoleFailure | None]:
        """Starts the candidate and builds what it asks for, repeatedly.

        Returns:
            All its calls, whether it calls `load_inline` later than at import, and how the last start failed.
        """
        for _ in range(_MAX_ROUNDS):
            asked, late, failure = self._record(server, shapes)
            if not asked:
                return calls, late, failure
            calls = [*calls, *asked]
            if len(self._built) + len(asked) > _MAX_EXTENSIONS:
                raise RoleFailure(
                    "contract_violation",
                    f"it asks for more than {_MAX_EXTENSIONS} extensions: put several kernels into one load_inline",
                    role=self.name,
                )
            self._add(asked)
        raise RoleFailure(
            "contract_violation",
            f"it still asks for new extensions after {_MAX_ROUNDS} rounds of building: give load_inline the same sources each time",
            role=self.name,
        )

    def _add(self, calls: Sequence[ExtensionCall]) -> None:
        if calls:
            self._built.update(self.fleet.extensions.build_all(calls, self.name, self.expires_at))

    def _record(
        self, server: str, shapes: list[OpenShape]
    ) -> tuple[list[ExtensionCall], bool, RoleFailure | None]:
        failure: RoleFailure | None = None
        process = self._fork(server, records=True)
        try:
            late = False
            try:
                self._load(process, compiling=True)
                if server == "candidate" or not self.fleet.gpu:
                    self._call_once(process, shapes[:1])
                    late = self._asked(process)[1]
                    if late:
                        self._call_once(process, shapes[1:])
            except RoleFailure as raised:
                failure = raised
            if process.dead:
                assert failure is not None
                raise failure
            asked, late = self._asked(process)
        finally:
            process.close()
        return asked, late, failure

    def _asked(self, process: RoleProcess) -> tuple[list[ExtensionCall], bool]:
        """The extensions that a process asked for and was not given. Untrusted, so validated."""
        answer = process.request_json(protocol.ASKED, {}, CALL_SECONDS)
        claims = answer.get("calls")
        if not isinstance(claims, list) or len(claims) > _MAX_EXTENSIONS:
            raise ProtocolViolation(
                "contract_violation", f"it asks for more than {_MAX_EXTENSIONS} extensions", role=self.name
            )
        try:
            calls = {call.digest: call for call in map(parse, claims)}
        except CallRefused as refused:
            raise ProtocolViolation("contract_violation", f"load_inline: {refused}", role=self.name) from None
        return [call for digest, call in calls.items() if digest not in self._built], bool(answer.get("late"))

    # -- torch.compile -----------------------------------------------------------------------------------------

    def _compile_shapes(self, shapes: list[OpenShape]) -> None:
        """Fills the candidate's own Inductor cache, shape by shape, in parallel."""
        # Outside the store: files that a compile role could write are not trusted.
        marker = self.fleet.built_folder / self.folder
        built = set(marker.read_text().split()) if marker.exists() else set()
        wanted = [shape for shape in shapes if digest(shape) not in built]
        if not wanted:
            return
        self.fleet.build_headers()
        self._build_part(wanted[:1])
        rest = wanted[1:]
        workers = min(self.fleet.compile_workers, len(rest))
        if workers:
            # A fork server dies with the thread that started it, so start it here, in this thread.
            self.fleet.server("compile")
            with ThreadPoolExecutor(workers) as pool:
                for _ in pool.map(self._build_part, [rest[index::workers] for index in range(workers)]):
                    continue
        with marker.open("a") as file:
            file.write("\n".join(digest(shape) for shape in wanted) + "\n")

    def _build_part(self, shapes: list[OpenShape]) -> None:
        process = self._fork("compile")
        try:
            self._load(process, compiling=True)
            self._call_once(process, shapes)
        finally:
            process.close()

    def _call_once(self, process: RoleProcess, shapes: list[OpenShape]) -> None:
        """Constructs the module and calls it once at each shape."""
        for shape in shapes:
            side = self._open(process, shape)
            try:
                side.fill(1)
                process.freeze()
                side.block(1, _COMPILE_SECONDS)
                process.thaw()
            except BaseException:
                side.release()
                raise
            side.close()

    # -- processes ---------------------------------------------------------------------------------------------

    def _fork(self, server: str, *, records: bool = False) -> RoleProcess:
        """A process for the candidate's Python.

        Args:
            server: ``compile`` or ``candidate``.
            records: it only reports which extensions it wants.
        """
        # Only Inductor leaves files worth keeping.
        own_files = any(word in self.candidate.source for word in _COMPILES)
        folder = self._files_of or (self.folder if own_files else "")
        if own_files or "compile" in self.candidate.source:  # a module may be compiled under other names
            self.fleet.load_compiler()
        if server == "candidate" and not (folder or records or self.interpreted):
            process = self.fleet.candidate_process()
        else:
            process = self.fleet.server(server).fork(
                role="candidate",
                folder=folder,
                folder_mode="share" if server == "compile" else "copy",
                limits=self.fleet.limits,
                may_compile=records,
                environment={interpreted.VARIABLE: "1"} if self.interpreted else None,
            )
        process.name = self.name
        process.expires_at = self.expires_at
        process.meanwhile = self.meanwhile
        return process

    def _load(
        self, process: RoleProcess, *, compiling: bool = False, files: bytes = b"", rehearses: str = ""
    ) -> None:
        """Imports the candidate's file in a process, with the task's file, built extensions and compiled
        ``files``.
        """
        libraries = {digest: item for digest, item in self._built.items() if isinstance(item, bytes)}
        failures = {digest: item for digest, item in self._built.items() if isinstance(item, str)}
        texts = [
            sealed_text(content)
            for content in (
                self.candidate.source.encode("utf-8", "surrogatepass"),
                self.session.task.source.encode("utf-8", "surrogatepass"),
                torch_cpp.pack(libraries, failures),
                files,
            )
        ]
        try:
            deadline_s = _COMPILE_SECONDS if compiling else _LOAD_SECONDS
            request = {"watch": self.watched, "compiles": bool(self._files_of), "rehearses": rehearses}
            request["delivered"] = self.candidate.delivered
            process.request(protocol.LOAD, request, deadline_s, tuple(texts))
        finally:
            for text in texts:
                os.close(text)

    def rehearse(self, shapes: Sequence[OpenShape], architecture: str) -> None:
        """Has a process without a device compile its Triton kernels for these shapes, and stores the result.

        This holds no device lock, so others can time meanwhile. Failures here show again on the device, which is
        of the ``architecture``.
        """
        source = self.candidate.source
        needs = [(shape, shape.inputs.needs) for shape in shapes]
        # Outside its kernels, the module computes on the host there.
        shapes = [at for at, need in needs if need.slot_bytes + need.peak_bytes <= _MOST_REHEARSED_BYTES]
        if not shapes or not interpreted.imports_triton(source) or any(word in source for word in _COMPILES):
            return
        if self.fleet.kept_files.get(self._files_key):
            return
        started = time.monotonic()
        process = self._fork("compile")
        process.expires_at = min(self.expires_at, started + _REHEARSAL_SECONDS)
        try:
            with suppress(RoleReported):  # what compiled before the failure is still useful
                self._load(process, files=self.fleet.triton_basics(), rehearses=architecture)
                for shape in shapes:
                    self.call_on_host(process, shape)
            self._keep_files_of(process)
        except RoleFailure as failure:
            _log.info("a rehearsal failed: %s", failure)
        finally:
            process.close()
            self.compile_s += time.monotonic() - started

    def call_on_host(self, process: RoleProcess, shape: OpenShape) -> None:
        """Constructs the module in a process without a device and calls it once, with inputs in host memory."""
        process.request(protocol.BUILD, self._build_request(shape), CALL_SECONDS)
        side = Side(process, shape.key, shape.inputs.on_host(), self.fleet.chain)
        try:
            side.open(CALL_SECONDS)
            side.fill(1)
            side.block(1)
            process.thaw()
        finally:
            side.release()

    def start(self) -> None:
        """Starts the candidate's own process and imports its file."""
        files = b""
        if self._compiles_here:
            files = self.fleet.kept_files.get(self._files_key)
            self.given_files = bool(files) and self._keeps_files
            files = files or (self.fleet.triton_basics() if self.fleet.gpu else b"")
        self.process = self._fork("candidate")
        if not self.watched:
            # For a control too: both sides of a pair are treated alike.
            self.process.landmarks = Landmarks(self.process)
        started = time.perf_counter()
        self._load(self.process, files=files)
        self.setup_s = time.perf_counter() - started

    @property
    def _keeps_files(self) -> bool:
        return self._compiles_here and not self.watched  # a watched process may compile something else

    @property
    def _compiles_here(self) -> bool:
        """Whether its source runs compilers in its process."""
        source = self.candidate.source if self.name == "candidate" else ""
        compiles = any(word in source for word in _COMPILES)
        # Without a GPU, the compile role fills its folder, which persists (see _compile_shapes).
        return self.fleet.gpu if compiles else any(word in source for word in _COMPILES_IN_PROCESS)

    @property
    def _files_key(self) -> str:
        task_sha256, environment = self.session.task.sha256, self.fleet.environment()
        return self.fleet.kept_files.key(self.candidate.sha256, task_sha256, environment)

    def keep_files(self) -> None:
        """Stores what compilers made in its process, for its next process, before anything is timed in this one."""
        if self.process is not None and self._keeps_files:
            self._keep_files_of(self.process)
            self.process.freeze()

    def _keep_files_of(self, process: RoleProcess) -> None:
        files = take(process)
        if files:
            self.fleet.kept_files.put(self._files_key, files)

    def open(self, shape: OpenShape) -> Side:
        """Builds the candidate's module at a shape (once)."""
        assert self.process is not None
        if shape.key not in self.sides:
            started, is_first = time.perf_counter(), not self.sides
            self.sides[shape.key] = self._open(self.process, shape)
            if is_first:
                self.setup_s = (self.setup_s or 0.0) + time.perf_counter() - started
        return self.sides[shape.key]

    def _open(self, process: RoleProcess, shape: OpenShape) -> Side:
        process.request(protocol.BUILD, self._build_request(shape), CALL_SECONDS)
        memory = self.session.memory_of_others(self.expects)
        side = self.fleet.side(process, shape.key, shape.inputs, memory)
        try:
            side.open(CALL_SECONDS)
        except BaseException:
            side.release()
            raise
        return side

    def _build_request(self, shape: OpenShape) -> dict[str, Any]:
        return {"shape": shape.key, "init": shape.inputs.init, "precision": self.session.precision}

    def close(self) -> None:
        """Ends the candidate's process. It can be started :meth:`again`."""
        if self.process is not None:
            self.process.close()
            self.process = None
        for side in self.sides.values():
            side.release()
        self.sides = {}
