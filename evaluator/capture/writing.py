"""Writes one recorded module as a standalone task file, and checks the file against the module first."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evaluator.capture.inputs import HELPERS, input_text
from evaluator.capture.program import call_flat, exported, forward_text, state_of
from evaluator.capture.recording import Call, Watched
from evaluator.capture.signature import (
    CaptureError,
    Leaf,
    Signature,
    Values,
    foreign_of,
    leaves_of,
    without_sizes,
)
from evaluator.capture.space import probes, restrict, space_of
from evaluator.capture.state import TABLE_HELPER, state_text
from evaluator.counting import counted

#: Most lines of the traffic table; the service accepts no more.
_MOST_SHAPES = 64
#: Recorded shapes at which the file is compared with the module.
_CHECKED_SHAPES = 32
#: Shapes between the recorded ones are tried unless they need this much more than the largest one.
_LARGER = 4


@dataclass(frozen=True)
class WrittenTask:
    """A task file that was written.

    Attributes:
        path: where.
        dims: what varies, as written in `DIMS`.
        traffic: shapes with the number of calls, most frequent first.
        share: of the module's time spent in calls of this form; others had other ranks, dtypes or plain arguments.
        notes: differences between the file and the recording, one sentence each.
    """

    path: Path
    dims: dict[str, str]
    traffic: list[tuple[dict[str, int], float]]
    share: float
    notes: tuple[str, ...]


class _Draft:
    """A task file in progress, for calls of one form."""

    def __init__(self, watched: Watched, calls: list[tuple[Signature, Call]], *, training: bool) -> None:
        self.module = watched.module
        self.training = training
        # Export treats a length of 0 or 1 as a constant, so a call without such a length represents the others.
        varying = space_of([leaves_of(found) for found, _ in calls]).places
        self.calls = sorted(calls, key=lambda item: (_has_tiny(item[0], varying), -item[1].total_s))
        self.description = self.calls[0][0]
        every = leaves_of(self.description)
        kept = [index for index, leaf in enumerate(every) if leaf.same_as == index]
        self.same_as = [kept.index(leaf.same_as) for leaf in every]
        self.leaves: list[list[Leaf]] = [
            [leaves_of(found)[index] for index in kept] for found, _ in self.calls
        ]
        self.values = _values([call for _, call in self.calls], kept)
        self.names = _names(self.module, self.description, len(kept))
        self.notes: list[str] = []
        self.space = space_of(self.leaves)

    def fix(self, places: list[tuple[int, int]]) -> None:
        """Keeps only the calls in which these lengths equal the first one's."""
        first = self.leaves[0]
        self.keep(
            [
                at
                for at, leaves in enumerate(self.leaves)
                if all(leaves[index].shape[dim] == first[index].shape[dim] for index, dim in places)
            ]
        )

    def keep(self, keep: list[int]) -> None:
        """Keeps only these calls, the first one among them."""
        self.calls = [self.calls[at] for at in keep]
        self.leaves = [self.leaves[at] for at in keep]
        self.space = space_of(self.leaves)

    @property
    def base(self) -> dict[str, int]:
        """The shape that took the most time, of those that export can vary."""
        return self.space.at(0)

    @property
    def traffic(self) -> list[tuple[dict[str, int], float]]:
        """Shapes with their numbers of calls."""
        counts: dict[tuple[tuple[str, int], ...], float] = {}
        for at, (_, call) in enumerate(self.calls):
            key = tuple(self.space.at(at).items())
            counts[key] = counts.get(key, 0.0) + call.count
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        if len(ranked) > _MOST_SHAPES:
            left = sum(count for _, count in ranked[_MOST_SHAPES:])
            self.notes.append(
                f"left out of TRAFFIC: {counted(len(ranked) - _MOST_SHAPES, 'rarer shape')} ({counted(round(left), 'call')})"
            )
        return [(dict(key), count) for key, count in ranked[:_MOST_SHAPES]]

    def inputs_text(self) -> str:
        """`get_inputs`."""
        base = self.base
        notes: list[str] = []
        parameters = ", ".join(f"{name}: int = {size}" for name, size in base.items())
        made = [
            f"        {input_text(index, leaf, self.values[index], self.space, notes)},"
            for index, leaf in enumerate(self.leaves[0])
        ]
        self.notes += [note for note in notes if note not in self.notes]
        return "\n".join(
            [f"def get_inputs({parameters}) -> list[torch.Tensor]:", "    return [", *made, "    ]"]
        )

    def text(self, title: str) -> str:
        """The whole file."""
        inputs = self.inputs_text()
        tensors = _run(inputs, "get_inputs")(**self.base)
        device = _device(self.module, self.leaves[0])
        while True:
            moved = [tensor.to(device) for tensor in tensors]
            program, fixed = exported(
                self.module,
                self.description,
                self.same_as,
                moved,
                set(self.space.places),
                training=self.training,
            )
            if not fixed:
                break
            self.notes.append("some lengths decide what the module does, so the file keeps those of one call")
            self.fix(fixed)
            inputs = self.inputs_text()
            tensors = _run(inputs, "get_inputs")(**self.base)
        parameters, body = forward_text(program, self.names)
        state = list({name: (tensor, flag) for _, name, tensor, flag in state_of(program)}.items())
        statements = [
            state_text(name, tensor, parameter=flag, notes=self.notes) for name, (tensor, flag) in state
        ]
        # In the order of the attributes' names, tied weights once.
        self.state = {name: tensor for name, (tensor, _) in state}
        model = ["class Model(nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
        model += [f"        {statement}" for statement in statements]
        typed = ", ".join(["self", *(f"{name}: torch.Tensor" for name in parameters.split(", ")[1:])])
        model += ["", f"    def forward({typed}):", body]
        return "\n".join(self._parts(title, "\n".join(model), inputs))

    def _parts(self, title: str, model: str, inputs: str) -> list[str]:
        base = self.base
        words = {name: dim.text(base[name]) for name, dim in self.space.dims.items()}
        kinds = [kind for kind in ("Choice", "Dim") if any(word.startswith(kind) for word in words.values())]
        modules = [name for name in ("math", "operator") if re.search(rf"\b{name}\.", model)]
        if "_table(" in model:
            modules = ["base64", *modules, "zlib"]
        lines = [f'"""{title}', *(["", *self.notes] if self.notes else []), '"""', ""]
        lines += [f"import {name}" for name in modules] + ([""] if modules else [])
        lines += ["import torch", "import torch.nn as nn", ""]
        if kinds:
            lines += [f"from kernelbench_tasks import {', '.join(kinds)}", ""]
        if words:
            lines += ["DIMS = {", *(f'    "{name}": {word},' for name, word in words.items()), "}"]
        if words:
            lines += ["#: Calls of each shape while it was recorded.", "TRAFFIC = ["]
            lines += [f"    ({dims!r}, {weight!r})," for dims, weight in self.traffic] + ["]"]
        if self.training:
            lines.append("TRAINING = True")
        lines += [TABLE_HELPER.rstrip()] if "_table(" in model else []
        lines += [text.rstrip() for name, text in HELPERS.items() if f"{name}(" in inputs]
        lines += [
            "",
            "",
            model,
            "",
            "",
            inputs,
            "",
            "",
            "def get_init_inputs() -> list:",
            "    return []",
            "",
        ]
        return [line for index, line in enumerate(lines) if line or index]


def write_task(
    watched: Watched, path: Path, *, keep_weights: str | Path | None, training: bool
) -> WrittenTask:
    """See :meth:`evaluator.capture.session.Recording.write`."""
    forms: dict[Any, list[tuple[Signature, Call]]] = {}
    for signature, call in watched.calls.items():
        forms.setdefault(without_sizes(signature), []).append((signature, call))
    chosen = max(forms.values(), key=lambda calls: sum(call.total_s for _, call in calls))
    foreign = foreign_of(chosen[0][0])
    if foreign:
        raise CaptureError(
            f"the module is called with a {foreign[0]}, which a task cannot make; capture a part that takes tensors"
        )
    if not leaves_of(chosen[0][0]):
        raise CaptureError("the module is called without a tensor, so there is nothing to vary or to check")
    draft = _Draft(watched, chosen, training=training)
    share = sum(call.total_s for _, call in chosen) / max(watched.total_s, 1e-12)
    if len(forms) > 1:
        draft.notes.append(
            f"It was called in {len(forms)} forms (ranks, dtypes, plain arguments); this one took {share:.0%} of the time."
        )
    title = (
        f"{type(watched.module).__name__}, captured from a running model ({counted(watched.count, 'call')})."
    )
    text = draft.text(title)
    while not _agrees(draft, text):
        text = draft.text(title)
    path.write_text(text, encoding="utf-8")
    if keep_weights is not None:
        torch.save({name: tensor.detach().cpu() for name, tensor in draft.state.items()}, keep_weights)
    words = {name: dim.text(draft.base[name]) for name, dim in draft.space.dims.items()}
    return WrittenTask(path, words, draft.traffic, share, tuple(dict.fromkeys(draft.notes)))


def _agrees(draft: _Draft, text: str) -> bool:
    """Whether the file computes what the module does, at recorded shapes and in between; narrows the draft if not.

    Raises:
        CaptureError: they differ at the shape that took the most time.
    """
    space = draft.space
    file = _Compared(draft, text)
    differences = [file.difference(space.at(at)) for at in range(min(len(draft.calls), _CHECKED_SHAPES))]
    if differences[0]:
        raise CaptureError(f"the exported program differs from the module at {space.at(0)}: {differences[0]}")
    if any(differences):
        # Its path depends on the shape, for example above a bound.
        draft.notes.append(
            "the module does something else at some of the recorded shapes; this file has the others"
        )
        draft.keep([at for at in range(len(draft.calls)) if at >= len(differences) or not differences[at]])
        return False
    most = max(sum(_elements(leaf) for leaf in leaves) for leaves in draft.leaves)
    for dims in probes(space, draft.base):
        changed = next((name for name in dims if dims[name] != draft.base[name]), None)
        if changed is None or file.elements(dims) > _LARGER * most or not file.difference(dims):
            continue
        if not restrict(space.dims[changed]):
            draft.notes.append(
                f"the module does not work at every combination of sizes, so {changed} is kept"
            )
            draft.fix([place for place, word in space.places.items() if changed in word])
        return False
    return True


class _Compared:
    """The file's model, with the weights of the module, beside a copy of the module."""

    def __init__(self, draft: _Draft, text: str) -> None:
        self._draft = draft
        self._get_inputs = _run(text, "get_inputs")
        self._device = _device(draft.module, draft.leaves[0])
        self._model = _run(text, "Model")().train(draft.training).to(self._device)
        self._model.load_state_dict({name: tensor.detach() for name, tensor in draft.state.items()})
        self._original = copy.deepcopy(draft.module).train(draft.training)

    def elements(self, dims: dict[str, int]) -> int:
        """Elements of all inputs."""
        with torch.device("meta"):
            return sum(tensor.numel() for tensor in self._get_inputs(**dims))

    def difference(self, dims: dict[str, int]) -> str:
        """How the two differ at a shape; empty if they do not."""
        torch_state = torch.get_rng_state()
        try:
            given = [tensor.to(self._device) for tensor in self._get_inputs(**dims)]
        finally:
            torch.set_rng_state(torch_state)
        with torch.no_grad():
            try:
                copies = [_again(tensor) for tensor in given]
                expected = call_flat(self._original, self._draft.description, self._draft.same_as, copies)
                results = self._model(*given)
            except (RuntimeError, ValueError, IndexError, AssertionError) as error:
                return str(error).partition("\n")[0][:200]
        found = results if isinstance(results, tuple) else (results,)
        if len(found) != len(expected):
            return f"{counted(len(found), 'result')} instead of {len(expected)}"
        for index, (result, wanted) in enumerate(zip(found, expected, strict=True)):
            if result.shape != wanted.shape or result.dtype != wanted.dtype:
                return f"result {index + 1} is {tuple(result.shape)} {result.dtype}, not {tuple(wanted.shape)} {wanted.dtype}"
            if not torch.allclose(result, wanted, rtol=1e-2, atol=_tolerance(wanted), equal_nan=True):
                return f"result {index + 1} has other values"
        return ""


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, which clone() keeps only for dense tensors."""
    return tensor.clone() if 0 not in tensor.stride() else tensor


def _tolerance(wanted: torch.Tensor) -> float:
    """Kernels may round differently; a wrong program is off by more than a hundredth of the usual magnitude."""
    if not wanted.is_floating_point() or not wanted.numel():
        return 0.0
    finite = wanted[torch.isfinite(wanted)].double()
    return 1e-3 * float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _has_tiny(signature: Signature, places: Iterable[tuple[int, int]]) -> bool:
    leaves = leaves_of(signature)
    return any(leaves[index].shape[dim] < 2 for index, dim in places)


def _elements(leaf: Leaf) -> int:
    count = 1
    for size in leaf.shape:
        count *= size
    return count


def _device(module: nn.Module, leaves: list[Leaf]) -> torch.device:
    tensors = [*module.parameters(), *module.buffers()]
    return tensors[0].device if tensors else torch.device(leaves[0].device)


def _run(text: str, name: str) -> Any:
    """What a piece of the file defines. The text is generated here and therefore trusted."""
    namespace: dict[str, Any] = {"torch": torch, "nn": nn}
    for helper in (*HELPERS.values(), TABLE_HELPER):
        exec(helper, namespace)  # noqa: S102
    exec(text, namespace)  # noqa: S102
    return namespace[name]


def _values(calls: list[Call], kept: list[int]) -> list[Values | None]:
    """Statistics of each input's values, over the inspected calls."""
    looked = [call.values for call in calls if call.values]
    if not looked:
        return [None] * len(kept)
    found: list[Values | None] = []
    for index in kept:
        seen = [values[index] for values in looked]
        first = seen[0]
        low, high = min(each.low for each in seen), max(each.high for each in seen)
        found.append(
            Values(
                low,
                high,
                first.mean,
                first.spread,
                first.zeros,
                first.infinite,
                all(each.causal for each in seen),
            )
        )
    return found


def _names(module: nn.Module, description: Any, count: int) -> list[str]:
    """Names of the inputs: the module's own parameter names if an argument is one tensor."""
    args, kwargs = description
    try:
        known = [
            name
            for name, parameter in inspect.signature(module.forward).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        known = []
    given = [(known[at] if at < len(known) else f"x{at + 1}", item) for at, item in enumerate(args[1:])]
    given += list(kwargs[1:])
    names: list[str] = []
    position = 0
    for name, item in given:
        leaves = leaves_of(item)
        for number, leaf in enumerate(leaves):
            if leaf.same_as == position:
                word = name if len(leaves) == 1 else f"{name}_{number + 1}"
                names.append(word if word.isidentifier() and word not in names else f"x{len(names) + 1}")
            position += 1
    return names if len(names) == count else [f"x{index + 1}" for index in range(count)]
