"""Inspects a reference's operations: values that no result depends on, and operands that were broadcast silently.

Runs in the reference's process and decides nothing: the task lint (:mod:`evaluator.referee.lint`) reads it as a
description.

Values are disturbed only on the host. Disturbed numbers may be used as indices (a count for a gather, a table's
row). An invalid index raises an exception on the host, but on a GPU it is an assertion that breaks the process.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from evaluator.roles import calls, frames
from evaluator.roles.blocks import flatten, tensors_in
from evaluator.roles.open_shape import Shape

_MOST_STEPS, _MOST_NAMES = 64, 96
_TRIES = 2
#: Operations that compute nothing: they use an argument only for its form, or move values. The last step of a loop
#: often pads or copies something that is not needed.
_NO_WORK = (
    "empty", "new_", "zeros", "ones", "full", "rand", "constant_pad", "reflection_pad", "replication_pad", "cat", "stack",
    "copy", "_to_copy", "clone", "index", "gather", "slice", "select", "roll", "flip", "repeat", "unfold", "im2col",
)  # fmt: skip


class Trace(TorchDispatchMode):
    """Follows the arguments of a call through its operations, by the memory that holds values.

    Args:
        arguments: the tensors of the call, in order.
        disturb: number of the operation whose result is changed, -1 for none.
        state: weights and buffers by name, to be followed as well.
    """

    def __init__(
        self,
        arguments: list[torch.Tensor],
        disturb: int = -1,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Address of a storage -> positions of the arguments that its contents derive from.
        self._sources: dict[int, frozenset[int]] = {}
        # Freed memory would be reused for other values, so keep it.
        self._alive: list[torch.Tensor] = []
        for position, tensor in enumerate(arguments):
            self._note(tensor, frozenset([position]))
        #: The same for entries of the state (names) and operations (numbers), if the state is followed.
        self._follows = state is not None
        self._uses: dict[int, frozenset[str | int]] = {}
        for name, tensor in (state or {}).items():
            self._use(tensor, frozenset([name]))
        self._disturb = disturb
        self._count = 0
        #: (number, name) of operations with a result that could be disturbed.
        self.steps: list[tuple[int, str]] = []
        self.spread: list[dict[str, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [value for value in _leaves((args, kwargs or {})) if isinstance(value, torch.Tensor)]
        sources = frozenset().union(*(self._of(tensor) for tensor in given))
        pointwise = torch.Tag.pointwise in func.tags
        if pointwise:
            self._look_for_spread(func, given)
        before = {tensor.untyped_storage().data_ptr() for tensor in given}
        result = func(*args, **(kwargs or {}))
        made = [value for value in _leaves(result) if isinstance(value, torch.Tensor)]
        for tensor in made:
            self._note(tensor, sources | self._of(tensor))
        number, self._count = self._count, self._count + 1
        fresh = [
            tensor
            for tensor in made
            if tensor.is_floating_point()
            and tensor.numel() > 1
            and tensor.untyped_storage().data_ptr() not in before
        ]
        name = func._schema.name.removeprefix("aten::")
        # For a sort or a maximum, only the indices may be wanted.
        whole = len(fresh) == len(made)
        if fresh and whole and sources and not pointwise and not name.startswith(_NO_WORK):
            self.steps.append((number, name))
            if number == self._disturb:
                for tensor in fresh:
                    disturb(tensor)
        if self._follows:
            used = self.used_by(given) | {number}
            for tensor in made:
                self._use(tensor, used)
        return result

    def used_by(self, tensors: Iterable[torch.Tensor]) -> frozenset[str | int]:
        """The entries of the state (names) and the operations (numbers) whose values some tensors derive from."""
        kept = (self._uses.get(tensor.untyped_storage().data_ptr()) for tensor in tensors)
        return frozenset().union(*(uses for uses in kept if uses))

    def _use(self, tensor: torch.Tensor, used: frozenset[str | int]) -> None:
        self._uses[tensor.untyped_storage().data_ptr()] = used | self.used_by([tensor])

    def _of(self, tensor: torch.Tensor) -> frozenset[int]:
        return self._sources.get(tensor.untyped_storage().data_ptr(), frozenset())

    def _note(self, tensor: torch.Tensor, sources: frozenset[int]) -> None:
        self._sources[tensor.untyped_storage().data_ptr()] = sources
        self._alive.append(tensor)

    def _look_for_spread(self, func: Any, given: list[torch.Tensor]) -> None:
        """Two operands from different arguments, where a vector is broadcast along the columns of as many rows."""
        for vector, other in itertools.permutations(given[:3], 2):
            if vector.dim() != 1 or other.dim() < 2 or vector.numel() < 2:
                continue
            rows, columns = other.shape[-2:]
            if rows != vector.numel() or columns not in (1, rows):
                continue
            mine, others = self._of(vector), self._of(other)
            if mine and others and not mine & others:
                self.spread.append(
                    {
                        "operation": func._schema.name.removeprefix("aten::"),
                        "vector": sorted(mine),
                        "other": sorted(others),
                        "shapes": [list(vector.shape), list(other.shape)],
                    }
                )


def disturb(tensor: torch.Tensor) -> None:
    """Changes every element, in place."""
    wide = tensor.detach().double()
    size = torch.where(torch.isfinite(wide), wide, 0.0).square().mean().sqrt().item() or 1.0
    factors = torch.empty(wide.shape, dtype=torch.float64).uniform_(0.5, 1.5).to(wide.device)
    offsets = torch.empty(wide.shape, dtype=torch.float64).uniform_(0.25, 0.75).to(wide.device)
    tensor.copy_((wide * factors + offsets * size).to(tensor.dtype))


@dataclass(frozen=True)
class _Subject:
    """What is called: a model, how, and with what."""

    model: nn.Module
    spec: frames.CallSpec
    initial: list[torch.Tensor]
    arguments: list[Any]

    def on_host(self) -> _Subject:
        """A copy in host memory.

        Raises:
            Exception: whatever a module raises that cannot be copied.
        """
        return _Subject(
            copy.deepcopy(self.model).cpu(),
            self.spec,
            [tensor.cpu() for tensor in self.initial],
            tree_map(lambda value: _copy(value, "cpu"), self.arguments),
        )


def inspect(shape: Shape, arguments: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """Inspects calls of an open shape's module on given arguments.

    Args:
        shape: its model is changed and restored.
        arguments: of the call; they are copied.
        seconds: no new test starts afterwards.

    Returns:
        ``steady``: whether two calls gave the same bits (otherwise nothing can be said about what matters);
        ``changed_state``: names of weights and buffers that a call changes; ``random``: whether calls that begin
            with the same seed agree; ``idle_state``: names of weights, and ``idle_steps``: operations, that may
            change without a bit of the result changing, both empty for a module that runs only on a GPU;
            ``untested``: how many weights and operations there was no time for;
            ``spread``: see :class:`Trace`;
        ``sequence_first``: submodules that use their first dimension as the sequence.
    """
    assert shape.model is not None
    until = time.monotonic() + seconds
    subject = _Subject(shape.model, shape.spec, shape.initial, list(arguments))
    before = _versions(shape)
    base, trace, used = _call(subject, follow=True)
    changed = [name for name, version in _versions(shape).items() if version != before.get(name)]
    again = _call(subject)[0]
    steady = _same(base, again)
    answer: dict[str, Any] = {
        "steady": steady,
        # A call in train mode ends with its buffers restored.
        "changed_state": [] if subject.spec.buffers else changed[:8],
        "random": not steady and _same(*(_seeded_call(subject) for _ in range(2))),
        "spread": trace.spread[:8],
        "sequence_first": _sequence_first(shape.model)[:8],
        "idle_state": [],
        "idle_steps": [],
        "untested": 0,
    }
    if any(tensor.is_cuda for tensor in base):
        try:
            subject = subject.on_host()
            base, trace, used = _call(subject, follow=True)
            steady = steady and _same(base, _call(subject)[0])
        except Exception:
            # GPU kernels, or constants that stay there.
            return answer
    if steady:
        answer |= _idle(subject, base, trace.steps, used, until)
    return answer


def _versions(shape: Shape) -> dict[str, tuple[int, int]]:
    """For weights and buffers: their identities, and their version counters."""
    assert shape.model is not None
    state = shape.model.state_dict(keep_vars=True)
    return {name: (id(tensor), tensor._version) for name, tensor in state.items()}


def _seeded_call(subject: _Subject) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return _call(subject)[0]


def _idle(
    subject: _Subject,
    base: list[torch.Tensor],
    traced: list[tuple[int, str]],
    used: frozenset[str | int],
    until: float,
) -> dict[str, Any]:
    """The fields of :func:`inspect` about what may change without a bit of the result changing.

    Each test is a call, and time may run out. Values that no result derives from come first: the effect of others can
    only be rounded away or multiplied by zero.
    """
    kept = set(subject.spec.buffers)
    state = {
        name: tensor
        for name, tensor in subject.model.state_dict().items()
        if name not in kept and tensor.is_floating_point() and tensor.numel()
    }
    names = sorted(state, key=lambda name: name in used)
    steps = sorted(traced, key=lambda step: step[0] in used)
    found: dict[str, Any] = {"idle_state": [], "idle_steps": [], "untested": len(names) + len(steps)}
    for name, step in itertools.zip_longest(names[:_MOST_NAMES], steps[:_MOST_STEPS]):
        if time.monotonic() > until:
            break
        if name is not None and _is_idle(subject, base, state[name]):
            found["idle_state"].append(name)
        if step is not None and all(_stays(subject, base, step[0]) for _ in range(_TRIES)):
            found["idle_steps"].append(step[1])
        found["untested"] -= (name is not None) + (step is not None)
    return found


def _is_idle(subject: _Subject, base: list[torch.Tensor], tensor: torch.Tensor) -> bool:
    with torch.no_grad():
        before = tensor.clone()
        try:
            disturb(tensor)
            return _stays(subject, base)
        finally:
            tensor.copy_(before)


def _stays(subject: _Subject, base: list[torch.Tensor], disturbed: int = -1) -> bool:
    """Whether a call gives the same bits although something was disturbed."""
    try:
        return _same(base, _call(subject, disturbed)[0])
    except Exception:
        # A value that the module refuses does matter.
        return False


def _call(
    subject: _Subject, disturbed: int = -1, *, follow: bool = False
) -> tuple[list[torch.Tensor], Trace, frozenset[str | int]]:
    """The results of one call, its trace, and with ``follow`` what the results derive from."""
    copies = list(tree_map(_copy, subject.arguments))
    trace = Trace(tensors_in(copies), disturbed, subject.model.state_dict() if follow else None)
    call = calls.make(subject.model, subject.model, subject.spec, subject.initial)
    with torch.no_grad(), trace:
        outputs = flatten(call(*copies))
    return [output.detach().clone() for output in outputs], trace, trace.used_by(outputs)


def _copy(value: Any, device: str | None = None) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(device or value.device, copy=True).requires_grad_(value.requires_grad)


def _same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(_bits(a), _bits(b)) for a, b in zip(first, second, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, so that NaN equals NaN."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _sequence_first(model: nn.Module) -> list[str]:
    """Names of attention and recurrent modules that were made without ``batch_first``."""
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    return [
        f"{type(module).__name__} {name!r}"
        for name, module in model.named_modules()
        if isinstance(module, kinds) and not module.batch_first
    ]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value
