"""Runs small shapes and every dtype for real: fake tensors accept what a kernel may refuse."""

from __future__ import annotations

from evaluator.shapes.inference.found import MOST_BYTES, Found
from evaluator.shapes.inference.knobs import DTYPES, Knob
from evaluator.shapes.inference.probing import Probe, Values


class RealRuns:
    """The last step of a search.

    Args:
        probe: of the task.
        base: the sizes of its file.
        found: what is to be confirmed; narrowed if it does not hold.
        dtypes: knobs that are dtypes.
    """

    def __init__(self, probe: Probe, base: Values, found: Found, dtypes: list[Knob]) -> None:
        self._probe = probe
        self._base = base
        self._found = found
        self._dtypes = dtypes

    def confirm(self) -> None:
        """Runs the smallest shapes, then each dtype."""
        self._confirm_sizes()
        self._confirm_dtypes()

    def _confirm_sizes(self) -> None:
        """Runs the smallest shapes for real: fake tensors accept what a kernel may refuse."""
        if not self._probe.fake:
            return
        axes = self._found.axes
        for steps in (0, 1, 3):
            values = self._found.corner(
                self._base,
                {
                    i: min(axis.low + steps * axis.step, max(axis.high, axis.low))
                    for i, axis in enumerate(axes)
                },
            )
            if self._probe(values).nbytes > MOST_BYTES // 8:
                self._found.sentences.append("it was too large to run for real here")
                return
            outcome = self._probe(values, fake=False)
            if not outcome.works:
                sizes = ", ".join(f"{axis.names[0]}={values[axis.names[0]]}" for axis in axes)
                if not self._raise_low(values):
                    self._found.sentences.append(f"run for real at {sizes} it fails: {outcome.error}")
                    return

    def _confirm_dtypes(self) -> None:
        """Keeps the dtypes that run for real at small sizes: fake products accept operands of two dtypes."""
        small = self._found.corner(
            self._base, {i: min(axis.low + axis.step, axis.high) for i, axis in enumerate(self._found.axes)}
        )
        if self._probe(small).nbytes > MOST_BYTES // 8:
            return
        for knob in self._dtypes:
            refused = {}
            for name in self._found.choices[knob.name]:
                outcome = self._probe({**small, knob.name: name}, fake=False)
                if not outcome.works and name != knob.default:
                    refused[name] = outcome.error
            tried = self._probe(
                {**self._base, knob.name: next(name for name in DTYPES if name != knob.default)}
            )
            left = tuple(name for name in self._found.choices[knob.name] if name not in refused)
            self._found.choices[knob.name] = left
            if len(left) < 2:
                del self._found.choices[knob.name]
                error = next(iter(refused.values()), tried.error)
                self._found.fixed[knob.name] = f"as another dtype than {knob.default} the task fails: {error}"

    def _raise_low(self, values: Values) -> bool:
        """If a real run fails at the smallest shape, raises the bound of the first axis that fixes it."""
        # First the one that loses the least of its range.
        for axis in sorted(self._found.axes, key=lambda axis: -axis.default / max(axis.low, 1)):
            for factor in (2, 3, 4, 8):
                value = factor * max(axis.low, axis.step)
                raised = {**values, **dict.fromkeys(axis.names, value)}
                if value <= axis.default and self._probe(raised, fake=False).works:
                    axis.low = value
                    return True
        return False
