"""Joules per call from a counter that is brought up to date a few times a second.

One kernel uses millijoules, the counter tells of what happened in the last tenth of a second: so calls go on without a
pause for seconds, and windows begin and end at the very instants at which the counter moves. The first moment is left out,
since power is measured late and clocks settle.

The caller gives a *step*: a function that keeps the device busy for a moment and says how many calls ended meanwhile.
It must return within a few milliseconds, or the window's ends are known no better than it lasts.

Power is never set, and the device is never asked to slow down.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.devices.base import EnergyCounter
from evaluator.errors import EvaluatorError

Step = Callable[[], int]

WINDOW_S, LEAD_S, IDLE_S = 5.0, 1.0, 2.0
#: A counter that has not moved for so long will not.
_STANDSTILL_S = 3.0


@dataclass(frozen=True)
class Window:
    """Between two movements of the counter.

    Attributes:
        seconds: how long.
        millijoules: how much.
        calls: how many ended.
    """

    seconds: float
    millijoules: float
    calls: int

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.millijoules / 1000 / self.seconds


@dataclass(frozen=True)
class Energy:
    """Energy of a call.

    Attributes:
        joules: per call, idle power included: what the bill says. Over all windows.
        joules_above_idle: without what the device would have used anyway.
        power_w: meanwhile.
        idle_w: before.
        call_us: what a call takes: the windows' time over their calls, or what was measured apart.
        spread: largest over smallest joules per call of the windows, less 1.
        windows: how many.
        seconds: all windows together.
        counter: what was read.
    """

    joules: float
    joules_above_idle: float
    power_w: float
    idle_w: float
    call_us: float
    spread: float
    windows: int
    seconds: float
    counter: str

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class EnergyRatio:
    """Joules of the baseline over those of the candidate, by quads of windows in turn.

    Attributes:
        baseline, candidate: what each needs.
        ratio: median over quads.
        low, high: least and largest quad; with so few of them no interval would mean anything.
        quads: how many.
    """

    baseline: Energy
    candidate: Energy
    ratio: float
    low: float
    high: float
    quads: int

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def idle_w(counter: EnergyCounter, seconds: float = IDLE_S) -> float:
    """Mean power while nothing is asked of the device, after a moment in which what ran before fades away.

    Raises:
        EvaluatorError: the counter does not move.
    """

    def rest() -> int:
        time.sleep(0.002)
        return 0

    return _window(counter, rest, seconds, min(seconds / 2, LEAD_S)).power_w


def energy_of(
    counter: EnergyCounter,
    step: Step,
    idle: float,
    *,
    seconds: float = WINDOW_S,
    lead_s: float = LEAD_S,
) -> Energy:
    """What a call needs, over one window.

    Args:
        counter: of the device.
        step: keeps it busy.
        idle: power of the idle device, in watts.
        seconds: of the window, at least.
        lead_s: busy before it.

    Raises:
        EvaluatorError: the counter does not move, or no call ended.
    """
    return summarized([_window(counter, step, seconds, lead_s)], idle, counter.name)


def compare(
    counter: EnergyCounter,
    baseline: Step,
    candidate: Step,
    idle: float,
    *,
    quads: int = 2,
    seconds: float = WINDOW_S,
    lead_s: float = LEAD_S,
    harness_joules: float = 0.0,
    calls_us: tuple[float, float] | None = None,
) -> EnergyRatio:
    """Two sides in turns of ABBA; which one begins is drawn anew: a device that warms up treats both alike.

    Args:
        counter: of the device.
        baseline, candidate: keep it busy.
        idle: power of the idle device, in watts.
        quads: how many.
        seconds: of each window, at least.
        lead_s: busy before each.
        harness_joules, calls_us: see :func:`summarized`; times of the baseline and of the candidate.

    Raises:
        EvaluatorError: the counter does not move, or no call ended.
    """
    times_us = calls_us or (None, None)
    steps = (baseline, candidate)
    found: tuple[list[Window], list[Window]] = ([], [])

    def energy(side: int, windows: Sequence[Window]) -> Energy:
        return summarized(windows, idle, counter.name, harness_joules=harness_joules, call_us=times_us[side])

    ratios: list[float] = []
    for _ in range(quads):
        first = random.SystemRandom().randrange(2)
        quad: tuple[list[Window], list[Window]] = ([], [])
        for side in (first, 1 - first, 1 - first, first):
            quad[side].append(_window(counter, steps[side], seconds, lead_s))
        ratios.append(_mean_joules(energy, 0, quad[0]) / _mean_joules(energy, 1, quad[1]))
        for side in (0, 1):
            found[side].extend(quad[side])
    return EnergyRatio(
        baseline=energy(0, found[0]),
        candidate=energy(1, found[1]),
        ratio=math.exp(statistics.median(math.log(ratio) for ratio in ratios)),
        low=min(ratios),
        high=max(ratios),
        quads=quads,
    )


def _mean_joules(
    energy: Callable[[int, Sequence[Window]], Energy], side: int, windows: list[Window]
) -> float:
    return statistics.fmean(energy(side, [window]).joules for window in windows)


def summarized(
    windows: Sequence[Window],
    idle: float,
    counter: str,
    *,
    harness_joules: float = 0.0,
    call_us: float | None = None,
) -> Energy:
    """One figure of several windows of the same calls.

    Args:
        windows: at least one.
        idle: power of the idle device, in watts.
        counter: what was read.
        harness_joules: above idle, what the measuring process uses for each call; taken off.
        call_us: what a call really takes, where the device also waited between calls; idle power counts for so long then.

    Raises:
        EvaluatorError: in one of the windows no call ended.
    """
    if any(not window.calls for window in windows):
        raise EvaluatorError("no call ended while the energy was measured: calls are longer than the windows")
    each = [_of_call(window, idle, harness_joules, call_us) for window in windows]
    # Windows that follow each other share their ends: what one of them counts too much the next counts too little.
    whole = Window(
        math.fsum(window.seconds for window in windows),
        math.fsum(window.millijoules for window in windows),
        sum(window.calls for window in windows),
    )
    joules, above = _of_call(whole, idle, harness_joules, call_us)
    if min(one for one, _ in each) <= 0:
        raise EvaluatorError("the counter says that calls need no energy: it does not count this device's")
    return Energy(
        joules=joules,
        joules_above_idle=above,
        power_w=whole.power_w,
        idle_w=idle,
        call_us=call_us or whole.seconds / whole.calls * 1e6,
        spread=max(one for one, _ in each) / min(one for one, _ in each) - 1.0,
        windows=len(windows),
        seconds=whole.seconds,
        counter=counter,
    )


def _of_call(
    window: Window, idle: float, harness_joules: float, call_us: float | None
) -> tuple[float, float]:
    """Joules of a call with and without idle power, see :func:`summarized`."""
    above = max((window.power_w - idle) * window.seconds / window.calls - harness_joules, 0.0)
    return (above + idle * call_us / 1e6 if call_us else window.millijoules / 1000 / window.calls), above


def _window(counter: EnergyCounter, step: Step, seconds: float, lead_s: float) -> Window:
    until = time.perf_counter() + lead_s
    while time.perf_counter() < until:
        step()
    begin_s, begin_mj, _ = _edge(counter, step)
    calls = 0
    while time.perf_counter() - begin_s < seconds:
        calls += step()
    end_s, end_mj, more = _edge(counter, step)
    return Window(end_s - begin_s, end_mj - begin_mj, calls + more)


def _edge(counter: EnergyCounter, step: Step) -> tuple[float, float, int]:
    """When the counter next moves, what it says then, and the calls that ended meanwhile."""
    before, calls = counter.read_mj(), 0
    gives_up_s = time.perf_counter() + _STANDSTILL_S
    while True:
        calls += step()
        now_mj, now_s = counter.read_mj(), time.perf_counter()
        if now_mj != before:
            return now_s, now_mj, calls
        if now_s > gives_up_s:
            raise EvaluatorError(f"the counter ({counter.name}) has not moved for {_STANDSTILL_S:.0f} s")
