"""Calls a rebuilt task at given sizes, on fake or real tensors, and reports whether it works and what it makes.

Runs in a disposable process that also runs the task's code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from evaluator.breaking_off import TooSlow, broken_off
from evaluator.shapes.inference.knobs import Knob

Values = dict[str, int | str]
_MOST_WORDS = 240
#: Fake tensors run a recurrent layer step by step, which takes minutes where real ones take a second. So a call on
#: them is aborted after this time, unless the task is too large to run for real.
_FAKE_SECONDS, _FAKE_ONLY_BYTES = 3.0, 1 << 28
#: The same on the meta device.
_META_SECONDS = 0.5


class TimeOver(Exception):
    """The deadline has passed: no further size is tried, so untried ones stay unknown."""


@dataclass(frozen=True)
class Outcome:
    """The result of one call.

    Attributes:
        works: whether inputs, module and output could be made.
        error: why not, in one line.
        inputs: shape and dtype of each input tensor.
        arguments: what the constructor got, as text.
        outputs: shape and dtype of each output tensor.
        state: shape and dtype of each parameter, buffer and other tensor that a module holds.
        nbytes: of inputs, state and outputs together.
        seconds: what it took.
    """

    works: bool
    error: str = ""
    inputs: tuple[tuple[tuple[int, ...], str], ...] = ()
    arguments: str = ""
    outputs: tuple[tuple[tuple[int, ...], str], ...] = ()
    state: tuple[tuple[tuple[int, ...], str], ...] = ()
    nbytes: int = 0
    seconds: float = 0.0


class Probe:
    """A loaded task.

    Args:
        module: the rebuilt file, imported.
        knobs: what it takes.
        deadline: monotonic time after which nothing new is tried.

    Attributes:
        fake: whether calls use fake tensors.
        calls: how many sizes were tried.
    """

    def __init__(self, module: ModuleType, knobs: list[Knob], deadline: float) -> None:
        self._module = module
        self._knobs = knobs
        self._deadline = deadline
        self._kept: dict[tuple[Any, ...], Outcome] = {}
        self._arguments: list[Any] = []
        #: Whether the meta device may stand in for fake tensors; None before the first call.
        self._meta: bool | None = None
        self.fake = True
        self.calls = 0

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._deadline

    def make(self, values: Values) -> tuple[nn.Module, list[Any]]:
        """The module and its inputs, on real tensors unless a fake mode is active."""
        taken = {
            function: {knob.name: values[knob.name] for knob in self._knobs if function in knob.functions}
            for function in ("get_init_inputs", "get_inputs")
        }
        arguments = list(self._module.get_init_inputs(**taken["get_init_inputs"]))
        model = self._module.Model(*arguments).train(bool(getattr(self._module, "TRAINING", False)))
        inputs = self._module.get_inputs(**taken["get_inputs"])
        if not isinstance(inputs, (list, tuple)):
            raise TypeError("get_inputs() must return a list")
        self._arguments = arguments
        return model, list(inputs)

    def __call__(self, values: Values, *, fake: bool | None = None, again: bool = False) -> Outcome:
        """Tries some sizes. Sizes that were tried before are not tried again, unless `again` is set.

        Raises:
            TimeOver: it would have to be tried, and the time is over.
        """
        fake = self.fake if fake is None else fake
        key = (fake, *sorted(values.items()))
        if again or key not in self._kept:
            if self.late:
                raise TimeOver
            self.calls += 1
            self._kept[key] = self._run_fake(values) if fake else self._run(values, nullcontext())
        return self._kept[key]

    def _run_fake(self, values: Values) -> Outcome:
        """A call on fake tensors, or on the meta device if that does the same at the sizes of the first call.

        The meta device uses the same shape functions and takes a fifth of the time. It refuses more (constants in host
        memory, reading a small tensor) and runs an LSTM step by step, so what fails on it is tried on fake tensors.
        """
        quick = None
        if self._meta is not False:
            quick = self._run(values, torch.device("meta"), _META_SECONDS)
            if self._meta and quick.works:
                return quick
        outcome = self._run(values, FakeTensorMode(allow_non_fake_inputs=True), _FAKE_SECONDS)
        if quick is not None and self._meta is None:
            self._meta = outcome.works and replace(quick, seconds=outcome.seconds) == outcome
        return outcome

    def _run(self, values: Values, mode: AbstractContextManager[Any], most_s: float = math.inf) -> Outcome:
        """A call on the tensors that ``mode`` makes, real ones without a mode, broken off after ``most_s``."""
        started = time.monotonic()
        try:
            with torch.no_grad(), mode:
                model, inputs = self.make(values)
                is_small = _bytes([*model.parameters(), *model.buffers(), *inputs]) <= _FAKE_ONLY_BYTES
                has_other_way = is_small or not isinstance(mode, FakeTensorMode)
                with broken_off(most_s) if has_other_way and most_s < math.inf else nullcontext():
                    outputs = model(*inputs)
        except TooSlow:
            words = f"they take longer than {most_s:.0f} s"
            return Outcome(False, words, seconds=time.monotonic() - started)
        except Exception as error:  # noqa: BLE001
            # An exception of user code at sizes that it was not written for is a result, not an error.
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            words = f"{type(error).__name__}: {lines[0]}"[:_MOST_WORDS]
            return Outcome(False, words, seconds=time.monotonic() - started)
        state = _held_by(model)
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        return Outcome(
            True,
            inputs=_forms(tensors),
            arguments=repr(self._arguments)[:1000],
            outputs=_forms(made),
            state=_forms(state),
            nbytes=_bytes([*state, *tensors, *made]),
            seconds=time.monotonic() - started,
        )


def _bytes(tensors: Sequence[Any]) -> int:
    return sum(
        leaf.numel() * leaf.element_size() for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)
    )


def _forms(tensors: list[torch.Tensor]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)


def _held_by(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers and tensors that are plain attributes."""
    plain = (leaf for part in model.modules() for leaf in tree_leaves(list(vars(part).values())))
    kept = (
        *model.parameters(),
        *model.buffers(),
        *(leaf for leaf in plain if isinstance(leaf, torch.Tensor)),
    )
    return list({id(tensor): tensor for tensor in kept}.values())


def moved(before: Outcome, after: Outcome) -> set[tuple[int, int]]:
    """Dimensions of the outputs, before and after."""
    pairs = zip(before.outputs, after.outputs, strict=False)
    return {pair for (old, _), (new, _) in pairs for pair in zip(old, new, strict=False)}
