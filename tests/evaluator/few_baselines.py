"""Fewer ways to run a reference than a referee knows, for tests that ask something else than which is fastest."""

from __future__ import annotations

from collections.abc import Callable

from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.sides.open_shape import Baseline


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
