"""Splices a bundle into the user's model, in a separate process in the user's Python, outside any sandbox.

Reads a request (JSON on standard input), writes splice.py beside optimized.py in the request's folder, compares results and
times steps. Writes its report as JSON to a file, since the model may print to standard output.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import json
import keyword
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from agent.errors import CannotApply

TEMPLATES = Path(__file__).parent / "templates"
_BLOCK_S = 0.03
_MOST_ARGUMENTS = 400


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Run one process's share: the first process finds, writes and checks the splice; every process times it."""
    folder = Path(request["folder"])
    report: dict[str, Any] = {}
    if request["first"]:
        task, optimized = _imported("task", folder / "task.py"), _imported("bundled", folder / "optimized.py")
        if getattr(optimized, "WITH_GRADIENTS", False):
            raise CannotApply(
                "this bundle's kernels run forward and backward, and a splice is compared and timed without gradients: put "
                "optimized.ModelNew in the submodule's place in the model's own code"
            )
        write_test(request, folder)
        write_splice(
            request, folder, nn.Module(), {}, [], (), direct=True
        )  # test_splice.py imports splice.py, so a placeholder must exist before its functions can be used
        check = _imported("check_0", folder / "test_splice.py")
        model = _made(check, request)
        report = find_splice(request, folder, task, optimized, check, model)
        if report["differences"]:
            return report
    check = _imported("check", folder / "test_splice.py")
    report["quads"] = time_steps(check, _made(check, request), request["seconds"])
    return report


def _made(check: ModuleType, request: dict[str, Any]) -> Any:
    for name in (request["model"], request["inputs"]):
        if not callable(getattr(check.user, name, None)):
            raise CannotApply(f"{request['file']} defines no {name} that can be called without arguments")
    model = check.made()
    if not isinstance(model, nn.Module):
        raise CannotApply(f"{request['model']} makes a {type(model).__name__}, not a torch.nn.Module")
    try:
        model.get_submodule(request["module"])
    except AttributeError:
        names = ", ".join(repr(name) for name, _ in list(model.named_modules())[1:12])
        raise CannotApply(
            f"the model has no submodule {request['module']!r}; it has {names or 'none'}"
        ) from None
    return model


def find_splice(
    request: dict[str, Any],
    folder: Path,
    task: ModuleType,
    optimized: ModuleType,
    check: ModuleType,
    model: Any,
) -> dict[str, Any]:
    """Try the direct and the adapted splice, and keep the first that runs; return its differences from the original results."""
    module = model.get_submodule(request["module"])
    args, kwargs = check.drawn(0)
    calls = check.seen_calls(model, args, kwargs)
    if not calls:
        raise CannotApply(
            f"{request['module']!r} is not called when the model is called with {request['inputs']}()"
        )
    forms = list(dict.fromkeys(check.patch.describe(call, []) for call in calls))
    arguments, state = fitting(request, task, optimized, module)
    failures: list[str] = []
    for direct in (True, False):
        write_splice(request, folder, module, state, arguments, forms, direct=direct)
        trial = _imported(f"check_{1 + direct}", folder / "test_splice.py")
        try:
            if direct and not _same_structure(trial, model, calls):
                continue
            differences = trial.every_difference(model)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {str(error)[:300]}")
            trial.patch.unsplice(model)
            continue
        trial.patch.splice(model)
        runs = [module.kernelwright_explain(*call[0], **call[1]) for call in calls[:8]]
        trial.patch.unsplice(model)
        return {"differences": differences, "runs": sorted(set(runs)), "calls": len(calls), "direct": direct}
    raise CannotApply(
        f"optimized.py does not take what {request['module']!r} is called with ({'; '.join(failures) or 'other results'}): "
        "was its task written from this submodule?"
    )


def _same_structure(trial: ModuleType, model: Any, calls: Sequence[Any]) -> bool:
    """Whether ModelNew accepts the call and its result has the same containers."""
    module = model.get_submodule(trial.patch.MODULE)

    def structure(call: Any) -> Any:
        with torch.no_grad():
            return _pytree.tree_structure(module(*call[0], **call[1]))

    before = structure(calls[0])
    trial.patch.splice(model)
    try:
        return bool(structure(calls[0]) == before)
    except Exception:  # generated code may raise anything for a call that it was not made for
        return False
    finally:
        trial.patch.unsplice(model)


def fitting(
    request: dict[str, Any], task: ModuleType, optimized: ModuleType, module: nn.Module
) -> tuple[list[Any], dict[str, str]]:
    """Find constructor arguments that give ModelNew tensors of the submodule's shapes, and match the tensors' names."""
    why = "its constructor takes what could not be found out; give --arguments as a JSON list"
    for arguments in itertools.islice(_arguments(request, task, module), _MOST_ARGUMENTS):
        try:
            made = _without_memory(optimized, arguments)
        except Exception as error:
            why = f"ModelNew{tuple(arguments)!r} ends in {type(error).__name__}: {str(error)[:200]}"
            continue
        found, problem = _matched(made, module)
        if not problem:
            return arguments, found
        why = problem
    raise CannotApply(f"optimized.py does not fit {request['module']!r}: {why}")


def _without_memory(optimized: ModuleType, arguments: list[Any]) -> nn.Module:
    """Make a ModelNew to inspect, on the meta device if possible: sizes to try may exceed the machine's memory."""
    try:
        with torch.device("meta"):
            made: nn.Module = optimized.ModelNew(*arguments)
    except (
        RuntimeError,
        NotImplementedError,
    ):  # constant tables, for example, cannot be made on the meta device
        made = optimized.ModelNew(*arguments)
    return made


def _arguments(request: dict[str, Any], task: ModuleType, module: nn.Module) -> Iterator[list[Any]]:
    """Constructor arguments to try: the given ones, else the task's at its default sizes, recorded sizes and tensor sizes."""
    if request["arguments"] is not None:
        yield request["arguments"]
        return
    make = getattr(task, "get_init_inputs", None)
    if make is None:
        yield []
        return
    names = list(inspect.signature(make).parameters)
    sizes = sorted({size for tensor in _tensors(module).values() for size in tensor.shape}, reverse=True)
    grids = itertools.product(sizes, repeat=len(names))
    tried = set()
    for dims in ({}, *request["dims"], *(dict(zip(names, row, strict=True)) for row in grids)):
        try:
            arguments = list(make(**{name: value for name, value in dims.items() if name in names}))
            key = repr(arguments)
            ast.literal_eval(key)  # splice.py can hold only literals
        except Exception:  # the task refuses these sizes, or its arguments are no literals
            continue
        if key not in tried:
            tried.add(key)
            yield arguments


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _matched(made: nn.Module, module: nn.Module) -> tuple[dict[str, str], str]:
    """Map each tensor name of ModelNew to the submodule's; the second value says what does not fit, if anything."""
    ours = _tensors(module)
    flat = {_flat(name): name for name in reversed(ours)}
    found: dict[str, str] = {}
    for name, tensor in _tensors(made).items():
        own = name if name in ours else flat.get(name) or flat.get(name.rstrip("_"))
        if own is None:
            if isinstance(tensor, nn.Parameter):
                return (
                    {},
                    f"the submodule has no weight {name!r}; it has {', '.join(list(ours)[:12]) or 'none'}",
                )
            continue  # a table of constants that capture wrote into the task
        if ours[own].shape != tensor.shape:
            return (
                {},
                f"{own} is {tuple(ours[own].shape)} and {name} of optimized.py is {tuple(tensor.shape)}",
            )
        if isinstance(tensor, nn.Parameter) != isinstance(ours[own], nn.Parameter):
            return {}, f"{own} is a parameter on one side and a buffer on the other"
        found[name] = own
    return found, ""


def _flat(name: str) -> str:
    """The name that capture gives to an attribute of a captured module."""
    plain = name.replace(".", "_")
    usual = plain.isidentifier() and not hasattr(nn.Module, plain) and not keyword.iskeyword(plain)
    return plain if usual else f"state_{plain}"


def write_splice(
    request: dict[str, Any],
    folder: Path,
    module: nn.Module,
    state: Mapping[str, str],
    arguments: Sequence[Any],
    forms: Sequence[Any],
    *,
    direct: bool,
) -> None:
    """Write splice.py; every value inserted into its text is a literal or is sanitized."""
    training = bool(re.search(r"^TRAINING = True$", request["task"], re.M))
    text = Template((TEMPLATES / "splice.py.template").read_text()).substitute(
        shown=re.sub(r"[^\w.]", "_", request["module"]) or "the model",
        mode="training" if training else "eval",
        module=repr(request["module"]),
        training=training,
        arguments=repr(list(arguments)),
        state=repr(dict(state)),
        parts=repr({path: type(part).__name__ for path, part in module.named_modules() if path}),
        calls="{" + ", ".join(map(repr, forms)) + "}" if forms else "set()",
        direct=direct,
        digest=repr(request["digest"]),
    )
    (folder / "splice.py").write_text(text, encoding="utf-8")


def write_test(request: dict[str, Any], folder: Path) -> None:
    """Write test_splice.py."""
    values = {name: repr(request[name]) for name in ("file", "model", "inputs", "device")}
    text = Template((TEMPLATES / "test_splice.py.template").read_text()).substitute(values)
    (folder / "test_splice.py").write_text(text, encoding="utf-8")


def time_steps(check: ModuleType, model: Any, seconds: float) -> list[list[float]]:
    """Time blocks of whole steps in the order ABBA or BAAB; each quad gives seconds of a step [before, after].

    Both sides use the same model with the same weights at the same addresses; only the submodule's class changes.
    """
    args, kwargs = check.drawn(0)
    wait: Callable[[], None] = torch.cuda.synchronize if check.DEVICE == "cuda" else lambda: None
    switch = {"before": check.patch.unsplice, "after": check.patch.splice}

    def block(which: str, count: int) -> float:
        switch[which](model)
        model(*args, **kwargs)  # warm up: exclude lazy construction and compilation
        model(*args, **kwargs)
        wait()
        began = time.perf_counter()
        for _ in range(count):
            model(*args, **kwargs)
        wait()
        return (time.perf_counter() - began) / count

    quads: list[list[float]] = []
    with torch.inference_mode():
        slower_s = max(block("before", 2), block("after", 2))
        count = max(1, math.ceil(_BLOCK_S / slower_s))
        ends = time.monotonic() + seconds
        while len(quads) < 5 or (time.monotonic() < ends and len(quads) < 200):
            order = random.choice(
                (("before", "after", "after", "before"), ("after", "before", "before", "after"))
            )
            spent = {"before": 0.0, "after": 0.0}
            for which in order:
                spent[which] += block(which, count) / 2
            quads.append([spent["before"], spent["after"]])
    check.patch.unsplice(model)
    return quads


def _imported(name: str, path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"kernelwright_apply_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    try:
        answer = main(asked)
    except CannotApply as error:
        answer = {"error": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    Path(asked["report"]).write_text(json.dumps(answer), encoding="utf-8")
