"""Bounds that were found separately must work together: tests the corners of the box, and narrows it where they
fail.
"""

from __future__ import annotations

import itertools

from evaluator.shapes.inference.found import Axis, Found
from evaluator.shapes.inference.probing import Probe, Values, moved

#: What a call on real tensors may take at a corner.
_REAL_SECONDS = 1.0


def lowest(probe: Probe, axis: Axis, base: Values) -> int:
    """The smallest multiple that works, provided that all above it do."""
    bad, good = 0, axis.default // axis.step
    while good - bad > 1:
        # Try the smallest first: it is legal more often than not.
        least = bad == 0 and good == axis.default // axis.step
        middle = 1 if least else (bad + good) // 2
        # A size of 1 may work alone, because it is broadcast.
        between = {min(2, good), (1 + good) // 2} if least else set()
        if all(
            probe({**base, **dict.fromkeys(axis.names, size * axis.step)}).works
            for size in (middle, *between)
        ):
            good = middle
            if middle == 1:
                break
        else:
            bad = middle
    return good * axis.step


class Corners:
    """The corners of a search's result.

    Args:
        probe: of the task.
        base: the sizes of its file.
        found: whose axes are narrowed.
        of_inputs: names of the sizes that shape inputs; the others only shape weights, such as a window.
    """

    def __init__(self, probe: Probe, base: Values, found: Found, of_inputs: set[str]) -> None:
        self._probe = probe
        self._base = base
        self._found = found
        self._of_inputs = of_inputs
        #: Pairs of axes where one at its smallest forbids the other at its largest.
        self._limiting: list[tuple[Axis, Axis]] = []

    def _corner(self, axes: dict[int, int]) -> Values:
        return self._found.corner(self._base, axes)

    def check(self) -> None:
        """Narrows bounds and steps until the corners work, and reports which sizes limit each other.

        Raises:
            TimeOver: the time ran out first.
        """
        try:
            self._narrow()
            self._check_choices()
        finally:
            self._tell_limits()

    def _narrow(self) -> None:
        axes = self._found.axes
        for _ in range(2 * len(axes)):
            lows = {index: axis.low for index, axis in enumerate(axes)}
            highs = {index: self._moderate(axis) for index, axis in enumerate(axes)}
            mixed = [highs, *({**highs, index: lows[index]} for index in lows)]
            mixed += [lows, *({**lows, index: highs[index]} for index in lows)]
            wrong = [corner for corner in mixed if not self._probe(self._corner(corner)).works]
            if not wrong:
                break
            pairs = [(low, high) for low in lows for high in highs if low != high]
            settled = any(self._part(*pair) for pair in itertools.combinations(lows, 2))
            settled = settled or any(
                self._settle(*pair, at_low) for at_low in (False, True) for pair in pairs
            )
            if not settled:
                self._shrink(wrong[0])

    def _moderate(self, axis: Axis) -> int:
        """With all sizes at their largest, a call would only overflow, or take minutes on real tensors."""
        if (
            not self._probe.fake
            and self._probe(self._base).seconds * 4 ** len(self._found.axes) > _REAL_SECONDS
        ):
            return axis.default
        return min(axis.high, max(4 * axis.default, 4 * axis.step))

    def _part(self, first: int, second: int) -> bool:
        """Raises one of two axes that fail when both are at their smallest; false if they do not.

        An input keeps its range if the other only shapes weights, such as a window.
        """
        axes = self._found.axes
        raised, kept = (
            (axes[second], axes[first]) if self._window(axes[second]) else (axes[first], axes[second])
        )
        both = {first: axes[first].low, second: axes[second].low}
        if self._probe(self._corner(both)).works:
            return False
        before = raised.low
        raised.low = lowest(self._probe, raised, self._corner(both))
        self._found.sentences.append(
            f"{raised.names[0]} starts at {raised.low}, since a smaller one fails where {kept.names[0]} is {kept.low}"
        )
        return raised.low != before

    def _window(self, axis: Axis) -> bool:
        """Whether an axis shapes only weights: no input, and no dimension of an output, such as k in a top-k."""
        if axis.names[0] in self._of_inputs:
            return False
        value = axis.default + axis.step
        changed = self._probe(self._base | dict.fromkeys(axis.names, value))
        if not changed.works:
            value = axis.default - axis.step
            changed = self._probe(self._base | dict.fromkeys(axis.names, value))
        return (axis.default, value) not in moved(self._probe(self._base), changed)

    def _settle(self, low: int, high: int, at_low: bool) -> bool:
        """Separates two axes where one at its smallest forbids the other at its largest; false if there is no such
        conflict.

        The other axes are as in the file, or at their smallest.
        """
        small, large = self._found.axes[low], self._found.axes[high]
        others = [index for index in range(len(self._found.axes)) if index not in (low, high)]
        base = {index: self._found.axes[index].low for index in others} if at_low else {}
        if self._probe(self._corner({**base, low: small.low, high: self._moderate(large)})).works:
            return False
        # Each must work alone beside the others' values; otherwise those are the cause.
        alone = ({low: small.low, high: large.default}, {low: small.default, high: self._moderate(large)})
        if at_low and not all(self._probe(self._corner({**base, **pair})).works for pair in alone):
            return False
        # Both keep some range: the large one up to four times the file's size if the small one allows that at its
        # own size. A size that only shapes weights, such as a window, leaves the range to the inputs.
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
        small.low = lowest(self._probe, small, self._corner({**base, high: top}))
        if (small, large) not in self._limiting:
            self._limiting.append((small, large))
        return before != (small.low, large.high)

    def _tell_limits(self) -> None:
        """Reports which axes limit each other, with their final bounds."""
        for small, large in self._limiting:
            self._found.sentences.append(
                f"{small.names[0]} and {large.names[0]} limit each other: {small.names[0]} starts at {small.low} and "
                f"{large.names[0]} ends at {large.high}, so that every pair works"
            )

    def _shrink(self, corner: dict[int, int]) -> None:
        """No pair explains a failing corner: moves back to the file's size the bound that fixes it."""
        for index, axis in enumerate(self._found.axes):
            if self._probe(self._corner({**corner, index: axis.default})).works:
                if corner[index] <= axis.default:
                    axis.low = lowest(self._probe, axis, self._corner(corner))
                else:
                    axis.high = axis.default
                return
        for axis in self._found.axes:
            axis.low, axis.high = max(axis.low, axis.default // 2 // axis.step * axis.step), axis.default

    def _check_choices(self) -> None:
        """A size that divides another one at the file's value must divide every size: the others use it as their
        step.
        """
        for name, values in self._found.choices.items():
            for axis in self._found.axes:
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
