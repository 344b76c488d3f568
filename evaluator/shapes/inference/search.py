"""The search: each size alone, ties between equal sizes, what must divide them, bounds, and the corners of the box."""

from __future__ import annotations

import itertools
import math

from evaluator.shapes.inference.found import MOST_BYTES, Axis, Found
from evaluator.shapes.inference.knobs import DTYPES, Knob
from evaluator.shapes.inference.probing import Outcome, Probe, Values
from evaluator.shapes.inference.real_runs import RealRuns

#: Largest legal size that is proposed, as a multiple of the one in the file. The sampler caps memory by itself.
_GROWTHS = (4, 16)
#: A call that takes longer is not tried at larger sizes: a loop over the size would only take longer.
_SLOW_SECONDS = 0.15
_MOST_STEP = 4096
#: Steps above the file's size at which one that divides another size gives itself away.
_LOOKED_AT = (1, 2, 3, 4, 5, 6, 7)
_SETTING = (
    "it is a setting, no size: inputs and weights keep their shapes whatever it is (as a keyword parameter of "
    "get_init_inputs() it would be varied)"
)
#: Fake tensors take some modules apart (recurrent ones call by call); from here on real ones may be quicker, so many times.
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
        #: Names of two axes of which one at its smallest forbids the other at its largest.
        self._limiting: list[tuple[Axis, Axis]] = []
        self.found = Found()

    # -- one call ----------------------------------------------------------------------------------------------

    def _at(self, names: tuple[str, ...], value: int | str, base: Values | None = None) -> Outcome:
        return self._probe({**(base or self._base), **dict.fromkeys(names, value)})

    def _works(self, names: tuple[str, ...], value: int, base: Values | None = None) -> bool:
        return self._at(names, value, base).works

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
        """Goes over to real tensors where fake ones take much longer."""
        if fake.seconds < _FAKE_SLOW_SECONDS or fake.nbytes > MOST_BYTES // 8:
            return fake
        # The first call of a process pays for what it imports.
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
            Unusable: the task does not run as it is.
        """
        start = self._start()
        waiting: list[Knob] = []
        for knob in self._sizes:
            if self._changes_nothing(knob, start):
                self.found.fixed[knob.name] = "it changes values only, no shape and no constructor argument"
            elif self._is_setting(knob, start):
                self.found.fixed[knob.name] = _SETTING
            elif not self._free((knob.name,), int(knob.default), most_step=1):
                waiting.append(knob)
        # Ties before rules of divisibility: one half of a tie may run by itself at a few lucky sizes.
        for knob in self._tie(waiting):
            if not self._free((knob.name,), int(knob.default)):
                self._choose(knob)
        for knob in self._dtypes:
            works = tuple(name for name in DTYPES[:2] if self._at((knob.name,), name).works)
            self.found.choices[knob.name] = tuple(dict.fromkeys((knob.default, *works)))
        for axis in self.found.axes:
            self._bound(axis)
        self._corners()
        self._tell_limits()
        RealRuns(self._probe, self._base, self.found, self._dtypes).confirm()
        return self.found

    def _changes_nothing(self, knob: Knob, start: Outcome) -> bool:
        default = int(knob.default)
        return all(
            self._same(self._at((knob.name,), value), start) for value in (default + 1, 2 * default + 2)
        )

    def _is_setting(self, knob: Knob, start: Outcome) -> bool:
        """Whether a constant goes to the constructor alone and shapes neither inputs nor weights: a stride, an axis.

        What has to divide a size, as heads do, is none: beyond a value that fails others work.
        """
        if knob.origin == "parameter" or knob.name in self._of_inputs:
            return False
        default = int(knob.default)
        other = self._at((knob.name,), default + 1)
        if not other.works:
            above = (*(default + 1 + count for count in _LOOKED_AT), 2 * default)
            if any(self._works((knob.name,), value) for value in above):
                return False
            other = self._at((knob.name,), max(default - 1, 0))
        return other.works and (other.inputs, other.state) == (start.inputs, start.state)

    @staticmethod
    def _same(after: Outcome, start: Outcome) -> bool:
        """Whether nothing but values changed: then a size was rounded to the one before, or it is none."""
        made = (after.inputs, after.arguments, after.outputs)
        return after.works and made == (start.inputs, start.arguments, start.outputs)

    def _free(self, names: tuple[str, ...], default: int, most_step: int = _MOST_STEP) -> bool:
        """Adds an axis if sizes above the default work, or else below: the least step that does must divide them."""
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
        """Adds an axis, unless larger sizes work beyond one that does not: it has to divide another size, as heads do."""
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
        """Equal sizes that only work when they move together become one axis under the first one's name."""
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
        """The fewest of some equal sizes, the first among them, that work together where each alone fails."""
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
        """A size that has to divide another one takes some of the default's own divisors and doubles."""
        default = int(knob.default)
        candidates = sorted({*(value for value in range(1, 2 * default + 1) if _kin(value, default))})
        works = tuple(value for value in candidates[:24] if self._works((knob.name,), value))
        if len(works) > 1:
            self.found.choices[knob.name] = (default, *(value for value in works if value != default))
            self.found.sentences.append(
                f"{knob.name} takes few values, as what divides another size does: of its own divisors and doubles "
                f"{', '.join(map(str, works))} work"
            )
        else:
            error = self._at((knob.name,), default + 1).error
            self.found.fixed[knob.name] = f"at {default + 1} instead of {default} the task fails: {error}"

    # -- bounds ------------------------------------------------------------------------------------------------

    def _bound(self, axis: Axis) -> None:
        axis.low = self._lowest(axis)
        axis.high = axis.default
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
                words = f"above {axis.high} the task fails with the other sizes as they are ({outcome.error})"
                self.found.sentences.append(f"{axis.names[0]}: {words}")
            return

    def _lowest(self, axis: Axis, base: Values | None = None) -> int:
        """The least multiple that works, if all above it do."""
        bad, good = 0, axis.default // axis.step
        while good - bad > 1:
            # The least of all is tried first: it is legal more often than not.
            least = bad == 0 and good == axis.default // axis.step
            middle = 1 if least else (bad + good) // 2
            # A size of 1 may work alone, since it is spread over whatever it meets.
            between = {min(2, good), (1 + good) // 2} if least else set()
            if all(self._works(axis.names, size * axis.step, base) for size in (middle, *between)):
                good = middle
                if middle == 1:
                    break
            else:
                bad = middle
        return good * axis.step

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

    # -- corners -----------------------------------------------------------------------------------------------

    def _corner(self, axes: dict[int, int]) -> Values:
        return self.found.corner(self._base, axes)

    def _corners(self) -> None:
        """Bounds found alone must hold together: a size that another one limits gets a bound for both."""
        axes = self.found.axes
        for _ in range(2 * len(axes)):
            lows = {index: axis.low for index, axis in enumerate(axes)}
            highs = {index: self._moderate(axis) for index, axis in enumerate(axes)}
            mixed = [highs, *({**highs, index: lows[index]} for index in lows)]
            mixed += [lows, *({**lows, index: highs[index]} for index in lows)]
            wrong = [corner for corner in mixed if not self._probe(self._corner(corner)).works]
            if not wrong or self._probe.late:
                break
            pairs = [(low, high) for low in lows for high in highs if low != high]
            settled = any(self._part(*pair) for pair in itertools.combinations(lows, 2))
            settled = settled or any(
                self._settle(*pair, at_low) for at_low in (False, True) for pair in pairs
            )
            if not settled:
                self._shrink(wrong[0])
        self._check_choices()

    def _moderate(self, axis: Axis) -> int:
        """All sizes at their largest at once would only overflow."""
        return min(axis.high, max(4 * axis.default, 4 * axis.step))

    def _part(self, first: int, second: int) -> bool:
        """Raises one of two axes that fail where both are at their smallest; false if these do not.

        An input keeps its range where the other shapes weights only, such as a window.
        """
        axes = self.found.axes
        raised, kept = (axes[second], axes[first]) if self._window(axes[second]) else (axes[first], axes[second])
        both = {first: axes[first].low, second: axes[second].low}
        if self._probe(self._corner(both)).works:
            return False
        before = raised.low
        raised.low = self._lowest(raised, self._corner(both))
        self.found.sentences.append(
            f"{raised.names[0]} starts at {raised.low}, since a smaller one fails where {kept.names[0]} is {kept.low}"
        )
        return raised.low != before

    def _window(self, axis: Axis) -> bool:
        """Whether an axis shapes weights and no input."""
        return axis.names[0] not in self._of_inputs

    def _settle(self, low: int, high: int, at_low: bool) -> bool:
        """Parts two axes of which one at its smallest forbids the other at its largest; false if these do not.

        The other axes are as in the file, or at their smallest.
        """
        small, large = self.found.axes[low], self.found.axes[high]
        others = [index for index in range(len(self.found.axes)) if index not in (low, high)]
        base = {index: self.found.axes[index].low for index in others} if at_low else {}
        if self._probe(self._corner({**base, low: small.low, high: self._moderate(large)})).works:
            return False
        # Each alone must work beside these others, or they are to blame.
        alone = ({low: small.low, high: large.default}, {low: small.default, high: self._moderate(large)})
        if not all(self._probe(self._corner({**base, **pair})).works for pair in alone[: 2 if at_low else 0]):
            return False
        # Both keep some room: the large one up to four times the file's size where the small one at its own allows it. What
        # shapes weights only, such as a window, leaves the room to the inputs.
        top = large.default
        roomy = not self._window(large) or self._window(small)
        for value in (4 * large.default, 2 * large.default) if roomy else ():
            if (
                value <= large.high
                and self._probe(self._corner({**base, low: small.default, high: value})).works
            ):
                top = value
                break
        before = (small.low, large.high)
        large.high = top
        small.low = self._lowest(small, self._corner({**base, high: top}))
        if (small, large) not in self._limiting:
            self._limiting.append((small, large))
        return before != (small.low, large.high)

    def _tell_limits(self) -> None:
        """Says which axes limit each other, with the bounds that they have in the end."""
        for small, large in self._limiting:
            self.found.sentences.append(
                f"{small.names[0]} and {large.names[0]} limit each other: {small.names[0]} starts at {small.low} and "
                f"{large.names[0]} ends at {large.high}, so that every pair works"
            )

    def _shrink(self, corner: dict[int, int]) -> None:
        """No pair explains a corner that fails: the bound whose retreat to the file's size mends it does so."""
        for index, axis in enumerate(self.found.axes):
            if self._probe(self._corner({**corner, index: axis.default})).works:
                if corner[index] <= axis.default:
                    axis.low = self._lowest(axis, self._corner(corner))
                else:
                    axis.high = axis.default
                return
        for axis in self.found.axes:
            axis.low, axis.high = max(axis.low, axis.default // 2 // axis.step * axis.step), axis.default

    def _check_choices(self) -> None:
        """What divides another size at the file's value must divide every size: the others step by all of them."""
        for name, values in self.found.choices.items():
            for axis in self.found.axes:
                step = axis.step
                for value in values:
                    while (
                        isinstance(value, int)
                        and step < axis.default
                        and not self._probe(
                            {**self._corner({}), name: value} | dict.fromkeys(axis.names, axis.default + step)
                        ).works
                    ):
                        step = next(
                            (s for s in range(step + 1, axis.default + 1) if s % step == 0 and axis.default % s == 0),
                            axis.default,
                        )  # fmt: skip
                if step != axis.step:
                    axis.step = step
                    axis.low = -(-axis.low // step) * step
                    axis.high = axis.high // step * step


def _divisors(size: int, most: int) -> list[int]:
    return [step for step in range(1, min(size, most) + 1) if size % step == 0] or [1]


def _kin(value: int, default: int) -> bool:
    return value > 0 and (default % value == 0 or value % max(default, 1) == 0)


def _power_of_two(value: int) -> int:
    return 1 << max(0, math.ceil(math.log2(max(value, 1))))
