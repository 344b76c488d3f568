"""Fewer ways to run a reference than a referee knows, for tests that ask something else than which is fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.sides.open_shape import Baseline
from evaluator.request import Request
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict


def _keep(core: RefereeCore, kept: Callable[[Baseline], bool]) -> None:
    every = core.fleet.baselines

    def few(precision: str = "default") -> list[Baseline]:
        return [baseline for baseline in every(precision) if kept(baseline)]

    core.fleet.baselines = few  # type: ignore[method-assign]


def without_autotune(core: RefereeCore) -> None:
    """Leave out max-autotune from now on: on a CPU it compiles for half a minute what is hardly ever the fastest."""
    _keep(core, lambda baseline: "max_autotune" not in baseline.name)


def one_compiled(core: RefereeCore) -> None:
    """Leave only eager and one compiled baseline, which takes one run of the compiler."""
    _keep(core, lambda baseline: baseline.mode == "eager" or baseline.name == "compile_default/1t")


def eager_alone(core: RefereeCore) -> None:
    """Leave only eager: nothing is compiled."""
    _keep(core, lambda baseline: baseline.mode == "eager")


class QuickReferee:
    """Asked as `evaluator.client.Referee` is: a referee of this process."""

    def __init__(self, core: RefereeCore) -> None:
        self._core = core

    def evaluate(
        self,
        task: TaskSource,
        candidate: CandidateSource,
        *,
        splits: Sequence[str] = ("visible", "adversarial"),
        shapes: Mapping[str, list[dict[str, Any]]] | None = None,
        deadline_s: float = 240.0,
    ) -> Verdict:
        """The verdict of a screen."""
        request = Request(task, candidate, "screen", tuple(splits), shapes, deadline_s)
        return self._core.evaluate(request, lambda *_: None)
