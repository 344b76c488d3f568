"""Runs beside an untrusted task file in a disposable process: reads it, finds its space, writes JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import types
import warnings
from contextlib import suppress
from typing import Any

from evaluator.shapes.inference.knobs import FUNCTIONS, Knob, Rebuilt, Unreadable, rebuild

#: Export costs more than all probes together. It is skipped if they were slow.
_EXPORT_UNTIL_SECONDS = 6.0
#: It unrolls recurrent layers step by step, for minutes.
_EXPORT_SECONDS = 5.0


def main(path: str, target: str, deadline_s: float) -> None:
    """Infers the space of a task file and writes it as JSON."""
    started = time.monotonic()
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    answer = infer(text, started + deadline_s)
    answer["elapsed_s"] = round(time.monotonic() - started, 3)
    with open(target, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def infer(text: str, deadline: float) -> dict[str, Any]:
    """The space of a task file as plain values; executes the file."""
    import torch

    from evaluator.breaking_off import TooSlow, broken_off
    from evaluator.shapes.inference import exporting
    from evaluator.shapes.inference.probing import Probe, TimeOver
    from evaluator.shapes.inference.search import Search, Unusable

    # Fake tensors log a traceback for each size that an operator refuses. Here refusals are expected.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        rebuilt = rebuild(text)
        module = _load(rebuilt)
        problem = _differs(text, module, rebuilt.knobs)
    except Unreadable as error:
        return {"ok": False, "reason": str(error)}
    if problem:
        return {"ok": False, "reason": problem}
    if not rebuilt.knobs:
        return {
            "ok": False,
            "reason": "the file has no size that could be varied",
            "fixed": rebuilt.fixed,
        }
    started = time.monotonic()
    probe = Probe(module, rebuilt.knobs, deadline)
    search = Search(probe, rebuilt.knobs)
    try:
        found = search.run()
    except Unusable as error:
        return {"ok": False, "reason": str(error), "fixed": rebuilt.fixed}
    base = {knob.name: knob.default for knob in rebuilt.knobs}
    sentences = list(found.sentences)
    if probe.late:
        sentences.append("the time for inference ran out: bounds may be tighter than necessary")
    exported = exporting.Exported("not exported")
    if found.axes and time.monotonic() - started < min(_EXPORT_UNTIL_SECONDS, deadline - started):
        try:
            with broken_off(_EXPORT_SECONDS), suppress(TimeOver):
                exported = exporting.confirm(probe, base, found)
        except TooSlow:
            words = f"torch.export takes longer than {_EXPORT_SECONDS:.0f} s, so the probes alone decide"
            exported = exporting.Exported("not exported", [words])
    return {
        "ok": True,
        "reason": "",
        "axes": [
            {
                "names": list(axis.names),
                "min": axis.low,
                "max": axis.high,
                "multiple_of": axis.step,
                "default": axis.default,
            }
            for axis in found.axes
        ],
        "choices": {name: list(values) for name, values in found.choices.items()},
        "fixed": {**rebuilt.fixed, **found.fixed},
        "sentences": [*sentences, *exported.sentences],
        "regimes": exported.regimes,
        "export": exported.status,
        "source": rebuilt.source + _tied(rebuilt.knobs, [axis.names for axis in found.axes]),
        "probes": probe.calls,
    }


def _tied(knobs: list[Knob], axes: list[tuple[str, ...]]) -> str:
    """For sizes that move together: wraps the file's two functions so that they take one name for each group."""
    first = {name: names[0] for names in axes for name in names}
    if all(name == one for name, one in first.items()):
        return ""
    text = f"\n\n_untied = ({', '.join(FUNCTIONS)})\n"
    for index, function in enumerate(FUNCTIONS):
        taken = [knob for knob in knobs if function in knob.functions]
        defaults = {first.get(knob.name, knob.name): knob.default for knob in taken}
        parameters = "".join(f", {name}={value!r}" for name, value in defaults.items())
        passed = ", ".join(f"{knob.name}={first.get(knob.name, knob.name)}" for knob in taken)
        text += f"\n\ndef {function}({'*' if parameters else ''}{parameters}):\n    return _untied[{index}]({passed})\n"
    return text


def _load(rebuilt: Rebuilt) -> types.ModuleType:
    # From a real file, because inspect and torch.jit read the source.
    path = os.path.abspath("rebuilt_task.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(rebuilt.source)
    module = types.ModuleType("rebuilt_task")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(rebuilt.source, path, "exec"), module.__dict__)  # noqa: S102
    except Exception as error:  # noqa: BLE001
        raise Unreadable(f"the file cannot be imported: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(getattr(module, "Model", None), type):
        raise Unreadable("the file defines no class Model")
    return module


def _differs(text: str, module: types.ModuleType, knobs: list[Knob]) -> str:
    """Why the rebuilt file differs from the original: at its own sizes it must make the same inputs and arguments."""
    if all(knob.origin == "parameter" for knob in knobs):
        return ""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves

    original = types.ModuleType("original_task")
    sys.modules[original.__name__] = original
    made = []
    try:
        exec(compile(text, "original_task.py", "exec"), original.__dict__)  # noqa: S102
        for one in (original, module):
            values = {
                function: {
                    knob.name: knob.default for knob in knobs if one is module and function in knob.functions
                }
                for function in ("get_inputs", "get_init_inputs")
            }
            with FakeTensorMode(allow_non_fake_inputs=True):
                inputs = one.get_inputs(**values["get_inputs"])
                arguments = one.get_init_inputs(**values["get_init_inputs"])
            forms = [
                (tuple(leaf.shape), str(leaf.dtype)) if hasattr(leaf, "shape") else repr(leaf)
                for leaf in tree_leaves([list(inputs), list(arguments)])
            ]
            made.append(forms)
    except Exception as error:  # noqa: BLE001
        return f"the task does not run at the sizes in its file ({type(error).__name__}: {str(error)[:200]})"
    return "" if made[0] == made[1] else "the file makes other inputs when its sizes are parameters"


#: Run beside the task's source in a disposable process.
PROGRAM = (
    "from evaluator.shapes.inference.program import main\nmain('task.py', 'out/space.json', {deadline_s!r})\n"
)
