"""The reference once more, in a process as young as the candidate's: there its uncompiled baselines are timed.

The process that describes the task, runs the oracle and holds the compiler has a heap full of remains, and the same
module takes 1 to 2 % longer in it (measured on two cores). That is no merit of the candidate.
"""

from __future__ import annotations

from evaluator.referee.candidate import CandidateRun
from evaluator.referee.fleet import Fleet
from evaluator.referee.open_shape import Baseline, OpenShape
from evaluator.referee.side import Side
from evaluator.referee.task_session import TaskSession
from evaluator.sources import CandidateSource, TaskSource

#: Modes that need no compiler, so that they are ready in milliseconds in a new process.
_UNCOMPILED = ("eager", "eager_autocast", "cuda_graph")


def twin(task: TaskSource) -> CandidateSource:
    """The reference as its own candidate."""
    return CandidateSource(f"{task.source}\n\nModelNew = Model\n", "reference", "the reference")


class Control:
    """Where the best baselines of one evaluation are timed.

    Args:
        fleet: starts the process, once a shape needs it.
        session: the task's.

    What goes wrong in it is nobody's fault for certain (a candidate may hold all of a GPU's memory, or use up the
    evaluation's time): it is reported under the name ``control``, and the evaluation is void.
    """

    def __init__(self, fleet: Fleet, session: TaskSession) -> None:
        self._session = session
        self._run = CandidateRun(fleet, session, twin(session.task), name="control")
        self._prepared: set[tuple[int, str]] = set()

    def rivals(self, shape: OpenShape) -> list[tuple[Baseline, Side]]:
        """The shape's rivals, each with the process and slots where it is ready to be timed, frozen."""
        return [(baseline, self.side(shape, baseline)) for baseline in shape.rivals]

    def side(self, shape: OpenShape, baseline: Baseline) -> Side:
        """Where a baseline is ready to be timed; frozen."""
        if baseline.mode not in _UNCOMPILED:
            shape.side.process.freeze()
            return shape.side
        if self._run.process is None:
            self._run.start()
        side = self._run.open(shape)
        if (shape.key, baseline.name) not in self._prepared:
            side.fill(1)
            self._session.prepare(side, baseline)
            self._prepared.add((shape.key, baseline.name))
        side.process.freeze()
        return side

    def close(self) -> None:
        """Ends the process."""
        self._run.close()
