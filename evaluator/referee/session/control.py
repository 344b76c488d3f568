"""The reference once more, in processes as young as the candidate's: there its baselines are timed.

The process that describes the task, runs the oracle and holds the compiler has a heap full of remains, and the same
module takes 1 to 2 % longer in it (measured on two cores). That is no merit of the candidate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from evaluator.errors import RoleReported
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.session.task_session import TaskSession
from evaluator.referee.sides.open_shape import Baseline, OpenShape
from evaluator.referee.sides.side import Side
from evaluator.sources import CandidateSource, TaskSource

#: Modes that need no compiler, so that they are ready in milliseconds in a new process.
_UNCOMPILED = ("eager", "eager_autocast", "cuda_graph")


def twin(task: TaskSource) -> CandidateSource:
    """The reference as its own candidate."""
    source = f"{task.source}\n\nModelNew = Model\n"
    return CandidateSource(source, "reference", "the reference", delivered=True)


class Control:
    """Where the best baselines of one evaluation are timed: one process for each number of threads.

    A baseline with another number of threads that ran in the same process would warm it up between the turns of the
    first, and nobody does that for the candidate.

    Args:
        fleet: starts a process, once a shape needs it.
        session: the task's.
        compiled: whether compiled baselines are loaded here, too, from the task's compile cache: some seconds a process. Otherwise
            they are timed in the session's own process, where they were compiled.

    What goes wrong in it is nobody's fault for certain (a candidate may hold all of a GPU's memory, or use up the
    evaluation's time): it is reported under the name ``control``, and the evaluation is void.
    """

    def __init__(self, fleet: Fleet, session: TaskSession, *, compiled: bool = False) -> None:
        self._fleet = fleet
        self._session = session
        self._compiled = compiled
        self._runs: dict[int, CandidateRun] = {}
        self._sides: dict[tuple[int, str], Side] = {}
        self._ahead: Future[None] | None = None
        self._turn = threading.Lock()
        self._may_go = threading.Event()
        self._may_go.set()

    def begin(self, shapes: Sequence[OpenShape]) -> None:
        """Gets ready for shapes whose best baselines are known, and for the next candidate, beside what the caller does.

        What goes wrong in it is raised by :meth:`join`.
        """
        todo = [
            (shape, baseline)
            for shape in shapes
            if shape.ranked
            for baseline in shape.rivals
            if baseline.mode in _UNCOMPILED
        ]
        if not todo and not self._fleet.gpu:
            return
        # A fork server dies with the thread that started it, so make sure here that it runs.
        self._fleet.server("candidate")
        pool = ThreadPoolExecutor(1)
        self._ahead = pool.submit(self._make_ready, todo)
        pool.shutdown(wait=False)

    def _make_ready(self, todo: list[tuple[OpenShape, Baseline]]) -> None:
        for shape, baseline in todo:
            with self._step():
                self.side(shape, baseline)
        with self._step():
            self._fleet.make_spare()

    @contextmanager
    def _step(self) -> Iterator[None]:
        """A part of getting ready, after which all processes are stopped; not while it is :meth:`paused`."""
        while True:
            self._may_go.wait()
            with self._turn:
                if self._may_go.is_set():
                    yield
                    return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile nothing of it runs, and what :meth:`begin` has begun goes on afterwards."""
        self._may_go.clear()
        try:
            with self._turn:
                yield
        finally:
            self._may_go.set()

    def join(self) -> None:
        """Waits until what :meth:`begin` has begun is done."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            ahead.result()

    def rivals(self, shape: OpenShape) -> list[tuple[Baseline, Side]]:
        """The shape's rivals, each with the process and slots where it is ready to be timed, frozen."""
        return [(baseline, self.side(shape, baseline)) for baseline in shape.rivals]

    def side(self, shape: OpenShape, baseline: Baseline) -> Side:
        """Where a baseline is ready to be timed; frozen."""
        ready = self._sides.get((shape.key, baseline.name))
        if ready is None:
            ready = self._sides[shape.key, baseline.name] = self._ready(shape, baseline)
        ready.process.freeze()
        return ready

    def _ready(self, shape: OpenShape, baseline: Baseline) -> Side:
        compiled = baseline.mode not in _UNCOMPILED
        # A process more would need the memory of a large shape once more; its calls take so long that the process's age does not matter.
        if shape.large or (compiled and not self._compiled):
            return shape.side
        side = self.start(baseline.threads).open(shape)
        side.fill(1)
        try:
            self._session.prepare(side, baseline)
        except RoleReported:
            if not compiled:
                raise
            # It works in the session's process, and without it the candidate would look better.
            return shape.side
        return side

    def start(self, threads: int) -> CandidateRun:
        """The process for baselines with so many threads, started if there is none."""
        if threads not in self._runs:
            files_of = self._session.folder if self._compiled else ""
            run = CandidateRun(
                self._fleet, self._session, twin(self._session.task), name="control", files_of=files_of
            )
            # Large shapes are never opened in it, see :meth:`_ready`.
            run.expects = [shape for shape in self._session.shapes.values() if not shape.large]
            self._runs[threads] = run
            run.start()
        return self._runs[threads]

    def close(self) -> None:
        """Ends the processes."""
        if self._ahead is not None:
            for run in list(self._runs.values()):
                if run.process is not None:
                    run.process.kill()
            # That it fails now has nobody to tell any more.
            wait([self._ahead])
        for run in self._runs.values():
            run.close()
