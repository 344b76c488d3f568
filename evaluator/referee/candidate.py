"""The candidate's life: built in the compile role, then one fresh process that never sees an answer."""

from __future__ import annotations

import hashlib
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from evaluator.errors import RoleFailure
from evaluator.referee.fleet import Fleet
from evaluator.referee.side import Side
from evaluator.referee.task_session import OpenShape, TaskSession, freeze_dims
from evaluator.roles import interpreted, runner
from evaluator.roles.arena import sealed_text
from evaluator.roles.process import RoleProcess
from evaluator.sources import CandidateSource

_LOAD_SECONDS = 60.0
_COMPILE_SECONDS = 240.0
_CALL_SECONDS = 60.0
#: Words in a source that mean a compiler will run; the first needs importing only, the others a call per shape.
_BUILDS = ("load_inline",)
_COMPILES = ("torch.compile", "torch._inductor", "torch._dynamo")


class CandidateRun:
    """One candidate under evaluation against one task session.

    Args:
        fleet: starts its processes.
        session: of the task.
        candidate: its source.
        expires_at: monotonic time at which the evaluation ends.
        name: who is to blame for what its process does.
    """

    def __init__(
        self,
        fleet: Fleet,
        session: TaskSession,
        candidate: CandidateSource,
        expires_at: float = math.inf,
        name: str = "candidate",
    ) -> None:
        self.name = name
        self.expires_at = expires_at
        self.fleet = fleet
        self.session = session
        self.candidate = candidate
        key = hashlib.sha256((candidate.sha256 + session.task.sha256).encode()).hexdigest()
        self.folder = f"candidate-{key[:32]}"
        self.sides: dict[int, Side] = {}
        self.process: RoleProcess | None = None
        self.compile_s = 0.0
        self.setup_s: float | None = None
        #: Its Triton kernels run in triton's interpreter, which says whether they are right and nothing about speed.
        self.interpreted = not fleet.gpu and interpreted.imports_triton(candidate.source)

    def build(self, shapes: list[OpenShape]) -> None:
        """Lets the compile role build what the source needs, where no clock runs.

        Raises:
            RoleFailure: with ``compile_error`` or whatever else went wrong in it.
        """
        started = time.monotonic()
        source = self.candidate.source
        if self.interpreted and find_spec("triton") is None:
            sentence = (
                "the candidate needs triton, which is not installed on this machine (pip install triton)"
            )
            raise RoleFailure("not_judged", sentence, role=self.name)
        compiles = any(word in source for word in _COMPILES)
        if not compiles and not any(word in source for word in _BUILDS):
            return
        wanted = shapes if compiles and not self.fleet.gpu else shapes[:1]
        # Outside the store: what a compile role could write, nobody believes.
        marker = self.fleet.built_folder / self.folder
        built = set(marker.read_text().split()) if marker.exists() else set()
        wanted = [shape for shape in wanted if _digest(shape) not in built]
        if not wanted:
            return
        if compiles:
            self.fleet.build_headers()
        self._build_part(wanted[:1])
        rest = wanted[1:]
        workers = min(self.fleet.compile_workers, len(rest))
        if workers:
            # A fork server dies with the thread that started it, so make sure here that it runs.
            self.fleet.server("compile")
            with ThreadPoolExecutor(workers) as pool:
                for _ in pool.map(self._build_part, [rest[index::workers] for index in range(workers)]):
                    continue
        with marker.open("a") as file:
            file.write("\n".join(_digest(shape) for shape in wanted) + "\n")
        self.compile_s = time.monotonic() - started

    def _build_part(self, shapes: list[OpenShape]) -> None:
        process = self._start("compile")
        try:
            if self.fleet.gpu:
                # The compile role has no GPU: importing is enough for load_inline; Triton compiles at first call.
                return
            for shape in shapes:
                side = self._open(process, shape)
                side.fill(1)
                process.freeze()
                side.block(1, _COMPILE_SECONDS)
                process.thaw()
                side.close()
        finally:
            process.close()

    def _start(self, server: str) -> RoleProcess:
        compiling = server == "compile"
        process = self.fleet.server(server).fork(
            role="candidate",
            folder=self.folder,
            folder_mode="share" if compiling else "copy",
            limits=self.fleet.limits,
            may_compile=compiling,
            environment={interpreted.VARIABLE: "1"} if self.interpreted else None,
        )
        process.name = self.name
        process.expires_at = self.expires_at
        texts = [
            sealed_text(source.encode("utf-8", "surrogatepass"))
            for source in (self.candidate.source, self.session.task.source)
        ]
        try:
            deadline_s = _COMPILE_SECONDS if compiling else _LOAD_SECONDS
            process.request(runner.LOAD, {}, deadline_s, (texts[0], texts[1]))
        except BaseException:
            process.close()
            raise
        finally:
            for text in texts:
                os.close(text)
        return process

    def start(self) -> None:
        """Starts the candidate's own process and imports its file."""
        self.process = self._start("candidate")

    def open(self, shape: OpenShape) -> Side:
        """Builds the candidate's module at a shape (once)."""
        assert self.process is not None
        if shape.key not in self.sides:
            started = time.perf_counter()
            side = self._open(self.process, shape)
            if self.setup_s is None:
                self.setup_s = time.perf_counter() - started
            self.sides[shape.key] = side
        return self.sides[shape.key]

    def _open(self, process: RoleProcess, shape: OpenShape) -> Side:
        # The reference, when it is timed in a process like a candidate's, may use its tier's arithmetic unasked.
        tf32 = self.name != "candidate" and self.session.precision != "fp32"
        build = {"shape": shape.key, "init": shape.inputs.init, "tf32": tf32}
        process.request(runner.BUILD, build, _CALL_SECONDS)
        side = self.fleet.side(process, shape.key, shape.inputs)
        side.open(_CALL_SECONDS)
        return side

    def close(self) -> None:
        """Ends the candidate's process."""
        if self.process is not None:
            self.process.close()
        for side in self.sides.values():
            side.release()


def _digest(shape: OpenShape) -> str:
    return hashlib.sha256(repr(freeze_dims(shape.dims)).encode()).hexdigest()[:24]
