"""The control: the reference in processes as fresh as the candidate's, where its baselines are timed.

The process that describes the task, runs the oracle and holds the compiler has a fragmented heap, and the same
module takes 1 to 2 % longer in it (measured on two cores). The candidate must not get credit for that.
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
    """The reference as a candidate."""
    source = f"{task.source}\n\nModelNew = Model\n"
    return CandidateSource(source, "reference", "the reference", delivered=True)


class Control:
    """Times the best baselines of one evaluation: one process for each number of threads.

    A baseline with another number of threads in the same process would warm it up between turns, and the candidate
    gets no such warm-up.

    Args:
        fleet: starts a process when a shape needs it.
        session: the task's.
        compiled: also load compiled baselines here, from the task's compile cache, which takes some seconds a
            process. Otherwise they are timed in the session's own process, where they were compiled.

    A failure here cannot be attributed for certain (a candidate may hold all of a GPU's memory, or use up the
    evaluation's time). It is reported under the name ``control``, and the evaluation is void.
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
        """Prepares, in the background, shapes whose best baselines are known, for this candidate and the next.

        Failures are raised by :meth:`join`.
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
        # A fork server dies with the thread that started it, so start it here, in this thread.
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
        """One step of the preparation, after which all processes are stopped. Not while it is :meth:`paused`."""
        while True:
            self._may_go.wait()
            with self._turn:
                if self._may_go.is_set():
                    yield
                    return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the preparation that :meth:`begin` started, for the duration of the body."""
        self._may_go.clear()
        try:
            with self._turn:
                yield
        finally:
            self._may_go.set()

    def join(self) -> None:
        """Waits until the preparation that :meth:`begin` started is done."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            ahead.result()

    def rivals(self, shape: OpenShape) -> list[tuple[Baseline, Side]]:
        """The shape's rivals, each with its process and slots, frozen and ready to be timed."""
        return [(baseline, self.side(shape, baseline)) for baseline in shape.rivals]

    def side(self, shape: OpenShape, baseline: Baseline) -> Side:
        """The side where a baseline is ready to be timed, frozen."""
        ready = self._sides.get((shape.key, baseline.name))
        if ready is None:
            ready = self._sides[shape.key, baseline.name] = self._ready(shape, baseline)
        ready.process.freeze()
        return ready

    def _ready(self, shape: OpenShape, baseline: Baseline) -> Side:
        compiled = baseline.mode not in _UNCOMPILED
        # Another process would need a large shape's memory again. Its calls are so long that the process's age
        # does not matter.
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
        """The process for baselines with this many threads, started if needed."""
        if threads not in self._runs:
            files_of = self._session.folder if self._compiled else ""
            run = CandidateRun(
                self._fleet, self._session, twin(self._session.task), name="control", files_of=files_of
            )
            # Large shapes are never opened in it; see :meth:`_ready`.
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
            # A failure at this point has no effect on the evaluation.
            wait([self._ahead])
        for run in self._runs.values():
            run.close()
