"""The search: each size alone, ties between equal sizes, divisibility, bounds, and the corners of the box."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

from evaluator.shapes.inference.corners import Corners, lowest
from evaluator.shapes.inference.found import MOST_BYTES, Axis, Found
from evaluator.shapes.inference.knobs import DTYPES, Knob
from evaluator.shapes.inference.probing import Outcome, Probe, TimeOver, Values, moved
from evaluator.shapes.inference.real_runs import RealRuns

#: Largest proposed size, as a multiple of the one in the file. The sampler caps memory itself.
_GROWTHS = (4, 16)
#: A call that takes longer is not tried at larger sizes: a loop over the size would only take longer.
_SLOW_SECONDS = 0.15
_MOST_STEP = 4096
#: Steps above the file's size that are tried to recognize a size that divides another one.
_LOOKED_AT = (1, 2, 3, 4, 5, 6, 7)
_SETTING = (
    "a setting, not a size, since inputs and weights keep their shapes at every value (as a keyword parameter of "
    "get_init_inputs() it would be varied)"
)
_NOT_TRIED = "the time for inference ran out before its sizes were tried"
#: Fake tensors run some modules step by step (recurrent ones call by call). Above this time and this ratio, switch
#: to real ones.
_FAKE_SLOW_SECONDS, _REAL_QUICKER = 0.08, 4


class Unusable(Exception):
    """The task does not run at the sizes in its file."""


class Search:
    """One search over the knobs of a task."""

    def __init__(self, probe: Probe, knobs: list[Knob]) -> None:
        self._probe = probe
        self._base: Values = {knob.name: knob.default for knob in knobs}
        self._sizes = [knob for knob in knobs if isinstance(knob.default, int)]
        self._dtypes = [knob for knob in knobs if isinstance(knob.default, str)]
        self._of_inputs = {knob.name for knob in knobs if "get_inputs" in knob.functions}
        self.found = Found()

    # -- one call ----------------------------------------------------------------------------------------------

    def _at(self, names: tuple[str, ...], value: int | str) -> Outcome:
        return self._probe({**self._base, **dict.fromkeys(names, value)})

    def _works(self, names: tuple[str, ...], value: int) -> bool:
        return self._at(names, value).works

    def _start(self) -> Outcome:
        outcome = self._probe(self._base)
        if outcome.works:
            return self._quicker(outcome)
        words = outcome.error
        self._probe.fake = False
        outcome = self._probe(self._base)
        if not outcome.works:
            raise Unusable(f"the task does not run at the sizes in its file ({outcome.error})")
        self.found.sentences.append(
            f"fake tensors cannot run it ({words}), so it was probed with real ones at fewer sizes"
        )
        return outcome

    def _quicker(self, fake: Outcome) -> Outcome:
        """Switches to real tensors if fake ones take much longer."""
        if fake.seconds < _FAKE_SLOW_SECONDS or fake.nbytes > MOST_BYTES // 8:
            return fake
        # The first call of a process includes imports.
        fake = self._probe(self._base, again=True)
        if fake.seconds < _FAKE_SLOW_SECONDS:
            return fake
        real = self._probe(self._base, fake=False)
        if not real.works or real.seconds * _REAL_QUICKER > fake.seconds:
            return fake
        self._probe.fake = False
        self.found.sentences.append(
            "fake tensors are slower than real ones here, so it was probed with real ones"
        )
        return real

    # -- the whole ---------------------------------------------------------------------------------------------

    def run(self) -> Found:
        """The free sizes with their bounds.

        Raises:
            Unusable: the task does not run as it is, or not in time.
        """
        try:
            start = self._start()
        except TimeOver:
            raise Unusable("the task does not run in time at the sizes in its file") from None
        with suppress(TimeOver):
            self._find(start)
            for axis in self.found.axes:
                self._bound(axis)
            Corners(self._probe, self._base, self.found, self._of_inputs).check()
            RealRuns(self._probe, self._base, self.found, self._dtypes).confirm()
        if self._probe.late:
            self._give_up_rest()
        return self.found

    def _give_up_rest(self) -> None:
        """After the deadline: untried sizes stay fixed."""
        for axis in [axis for axis in self.found.axes if axis.low == axis.high]:
            self.found.axes.remove(axis)
            self.found.fixed |= dict.fromkeys(axis.names, _NOT_TRIED)
        free = {name for axis in self.found.axes for name in axis.names}
        known = free | self.found.choices.keys() | self.found.fixed.keys()
        self.found.fixed |= {name: _NOT_TRIED for name in self._base if name not in known}

    def _find(self, start: Outcome) -> None:
        """Which sizes are free, which move together, and which take one of a few values."""
        waiting: list[Knob] = []
        for knob in self._sizes:
            if self._changes_nothing(knob, start):
                self.found.fixed[knob.name] = "it changes values only, no shape and no constructor argument"
            elif self._is_setting(knob, start):
                self.found.fixed[knob.name] = _SETTING
            elif not self._free((knob.name,), int(knob.default), most_step=1):
                waiting.append(knob)
        # Ties before divisibility: one half of a tie may run by itself at a few lucky sizes.
        for knob in self._tie(waiting):
            if not self._free((knob.name,), int(knob.default)):
                self._choose(knob)
        for knob in self._dtypes:
            works = tuple(name for name in DTYPES[:2] if self._at((knob.name,), name).works)
            self.found.choices[knob.name] = tuple(dict.fromkeys((knob.default, *works)))

    def _changes_nothing(self, knob: Knob, start: Outcome) -> bool:
        default = int(knob.default)
        return all(
            self._same(self._at((knob.name,), value), start) for value in (default + 1, 2 * default + 2)
        )

    def _is_setting(self, knob: Knob, start: Outcome) -> bool:
        """Whether a constant goes only to the constructor and shapes neither inputs nor weights: a stride, an
        axis.

        A size that must divide another one, such as heads, is not a setting (other values work beyond one that
        fails). Neither is a dimension of the output itself, such as k in a top-k.
        """
        if knob.origin == "parameter" or knob.name in self._of_inputs:
            return False
        default = int(knob.default)
        value = default + 1
        if not self._works((knob.name,), value):
            above = (*(default + 1 + count for count in _LOOKED_AT), 2 * default)
            if any(self._works((knob.name,), further) for further in above):
                return False
            value = max(default - 1, 0)
        other = self._at((knob.name,), value)
        return (
            other.works
            and (other.inputs, other.state) == (start.inputs, start.state)
            and (default, value) not in moved(start, other)
        )

    @staticmethod
    def _same(after: Outcome, start: Outcome) -> bool:
        """Whether only values changed: then a size was rounded to the one before, or it is not a size."""
        made = (after.inputs, after.arguments, after.outputs)
        return after.works and made == (start.inputs, start.arguments, start.outputs)

    def _free(self, names: tuple[str, ...], default: int, most_step: int = _MOST_STEP) -> bool:
        """Adds an axis if sizes above the default work, or otherwise below: the smallest working step must divide
        them.
        """
        steps = _divisors(default, most_step)
        for step in steps:
            if self._moves(names, default, default + step) and (
                self._works(names, default + 3 * step)
                or (default > step and self._works(names, default - step))
            ):
                return self._unless_divisor(Axis(names, default, step))
        for step in steps if most_step > 1 else ():
            further = max(default - 2 * step, 1)
            if default > step and self._moves(names, default, default - step) and self._works(names, further):
                return self._unless_divisor(Axis(names, default, step))
        return False

    def _unless_divisor(self, axis: Axis) -> bool:
        """Adds an axis, unless larger sizes work beyond one that fails: then it must divide another size, as heads
        do.
        """
        start, after = self._at(axis.names, axis.default), self._at(axis.names, axis.default + axis.step)
        if not after.works or after.inputs == start.inputs:
            above = [self._works(axis.names, axis.default + count * axis.step) for count in _LOOKED_AT]
            if any(later and not earlier for earlier, later in itertools.pairwise(above)):
                return False
        self.found.axes.append(axis)
        return True

    def _moves(self, names: tuple[str, ...], default: int, value: int) -> bool:
        """Whether a size works and is not rounded to the default's."""
        outcome = self._at(names, value)
        return outcome.works and not self._same(outcome, self._at(names, default))

    def _tie(self, waiting: list[Knob]) -> list[Knob]:
        """Equal sizes that only work when they move together become one axis, under the first one's name."""
        left = list(waiting)
        for knob in waiting:
            equal = [other for other in left if other.default == knob.default]
            if knob not in left or len(equal) < 2:
                continue
            members = self._partners(equal)
            names = tuple(member.name for member in members)
            if len(members) > 1 and self._free(names, int(knob.default)):
                self.found.sentences.append(f"{' and '.join(names)} are one size: they only work together")
                left = [other for other in left if other not in members]
        return left

    def _partners(self, equal: list[Knob]) -> list[Knob]:
        """The smallest group of equal sizes, including the first, that works together although each alone fails."""
        default = int(equal[0].default)
        for step in _divisors(default, _MOST_STEP):
            value = default + step
            alone = [knob for knob in equal if not self._works((knob.name,), value)]
            if equal[0] not in alone or not self._works(tuple(knob.name for knob in alone), value):
                continue
            members = alone
            for knob in alone[1:]:
                fewer = [member for member in members if member is not knob]
                if self._works(tuple(member.name for member in fewer), value):
                    members = fewer
            return members
        return []

    def _choose(self, knob: Knob) -> None:
        """A size that must divide another one takes some of the default's own divisors and doubles."""
        default = int(knob.default)
        candidates = sorted({*(value for value in range(1, 2 * default + 1) if _kin(value, default))})
        works = tuple(value for value in candidates[:24] if self._works((knob.name,), value))
        if len(works) > 1:
            self.found.choices[knob.name] = (default, *(value for value in works if value != default))
            self.found.sentences.append(
                f"{knob.name} takes few values, because it must divide another size: of its own divisors and doubles "
                f"{', '.join(map(str, works))} work"
            )
        else:
            error = self._at((knob.name,), default + 1).error
            self.found.fixed[knob.name] = f"at {default + 1} instead of {default} the task fails: {error}"

    # -- bounds ------------------------------------------------------------------------------------------------

    def _bound(self, axis: Axis) -> None:
        axis.low = axis.high = axis.default
        axis.low = lowest(self._probe, axis, self._base)
        start = self._at(axis.names, axis.default)
        for growth in _GROWTHS:
            top = max(_power_of_two(growth * axis.default), 2 * axis.step) // axis.step * axis.step
            outcome = self._at(axis.names, top)
            if outcome.works and outcome.nbytes <= max(MOST_BYTES, 2 * start.nbytes):
                axis.high = top
                if outcome.seconds > _SLOW_SECONDS:
                    return
                continue
            axis.high = self._highest(axis, top, max(MOST_BYTES, 2 * start.nbytes))
            if not outcome.works and axis.high < top - axis.step:
                words = f"above {axis.high} the task fails with the other sizes unchanged ({outcome.error})"
                self.found.sentences.append(f"{axis.names[0]}: {words}")
            return

    def _highest(self, axis: Axis, top: int, most_bytes: int) -> int:
        good, bad = axis.high // axis.step, top // axis.step
        while bad - good > max(1, good // 16):
            middle = (good + bad) // 2
            outcome = self._at(axis.names, middle * axis.step)
            if outcome.works and outcome.nbytes <= most_bytes:
                good = middle
            else:
                bad = middle
        return good * axis.step


def _divisors(size: int, most: int) -> list[int]:
    return [step for step in range(1, min(size, most) + 1) if size % step == 0] or [1]


def _kin(value: int, default: int) -> bool:
    return value > 0 and (default % value == 0 or value % max(default, 1) == 0)


def _power_of_two(value: int) -> int:
    return 1 << max(0, math.ceil(math.log2(max(value, 1))))
