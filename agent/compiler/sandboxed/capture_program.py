"""Tool program: asks Inductor for the kernels of a reference module, without compiling or running them.

It runs as `__main__` in a disposable sandboxed process whose folder holds `reference.py` (untrusted), `request.json` and
`symbolic_trace.py`, and writes `out/capture.json`. It imports nothing else of this project, because it travels as text,
and what it writes is untrusted text: the reference shares its process.

How one source comes to serve all shapes: the reference module is *constructed* and traced with symbolic integers in
place of the task's dimensions. Sizes of parameters, attributes such as `normalized_shape` and sizes of inputs then are
expressions of the same few symbols, and Inductor emits kernels that take them as arguments. Where a module branches on a
size or turns it into a plain `int`, a guard limits the capture; the other side of a limit is captured again, and where
tracing fails the attempt is repeated with fewer symbols. The guards travel along and become the candidate's domain.

Nothing of size is ever allocated: no compiler runs, no kernel runs, and every tensor is fake.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, os.getcwd())

import sympy
import torch
import torch._inductor.config as inductor_config
from symbolic_trace import (
    NotExtractable,
    Symbols,
    Traced,
    accepted,
    log,
    mode_matters,
    prepare_process,
    trace,
)
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx, ir, lowering
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

MAX_VARIANTS = 4
"""How many pieces (dtypes, ranges of sizes) one candidate may be made of: each adds about a second of C++ compile."""

MAX_PROOF_POINTS = 50_000
"""A guard that holds at every point of its symbols' ranges is dropped; larger ranges are not enumerated."""

SETTINGS = {
    "force_disable_caches": True,
    "cpp.vec_isa_ok": True,  # believe /proc/cpuinfo: the probe would compile and run a program for each instruction set
    "cpp.dynamic_threads": True,  # the number of threads is the caller's business, not a constant of the source
    "size_asserts": False,
    "alignment_asserts": False,
    "memory_planning": False,
    "graph_partition": False,
}


class CodeReady(Exception):
    """Leaves the compiler as soon as the code exists, before anything is compiled or run."""


def main() -> None:
    request = json.loads(Path("request.json").read_text())
    result: dict[str, Any] = {
        "schema": "kernelwright.capture/1",
        "torch": torch.__version__,
        "variants": [],
        "notes": [],
    }
    try:
        prepare_process()
        reference = load_reference(Path("reference.py"))
        result["variants"] = capture_variants(reference, request, result["notes"])
        result["capability"] = torch.backends.cpu.get_cpu_capability()
    except NotExtractable as error:
        result["error"] = str(error)
    except Exception as error:
        result["error"] = describe_error(error)
        traceback.print_exc()
    Path("out").mkdir(exist_ok=True)
    Path("out/capture.json").write_text(json.dumps(result, sort_keys=True))


def describe_error(error: BaseException) -> str:
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line[:300]}"


def load_reference(path: Path) -> types.ModuleType:
    if importlib.util.find_spec("kernelbench_tasks") is None:
        # The ranges come with the request, so that any Dim and Choice will do.
        stand_in = types.ModuleType("kernelbench_tasks")
        stand_in.Dim = stand_in.Choice = lambda *args, **kwargs: None  # type: ignore[attr-defined]
        sys.modules["kernelbench_tasks"] = stand_in
    spec = importlib.util.spec_from_file_location("reference", path)
    if spec is None or spec.loader is None:
        raise NotExtractable("the reference could not be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise NotExtractable(f"the reference has no {name}")
    return module


def capture_variants(
    reference: types.ModuleType, request: Mapping[str, Any], notes: list[str]
) -> list[dict[str, Any]]:
    """Capture every combination of choices, and for each as many ranges of sizes as there is room for."""
    variants: list[dict[str, Any]] = []
    # Dimensions that the referee inferred cannot be asked for by name; then the inputs' own sizes become symbols.
    taken = accepted(reference.get_inputs, request["dims"]) | accepted(
        reference.get_init_inputs, request["dims"]
    )
    numeric = {name: dim for name, dim in taken.items() if "choices" not in dim}
    for choices in choice_combinations(taken):
        mine: list[dict[str, Any]] = []
        defaults = {name: dim["default"] for name, dim in numeric.items()}
        while defaults is not None and len(variants) + len(mine) < MAX_VARIANTS:
            try:
                variant = capture(reference, request, numeric, defaults, choices, notes)
            except NotExtractable:
                if not mine:
                    raise
                break
            mine.append(variant)
            defaults = uncovered_point(mine, numeric)
        variants += merged(mine)
    return variants


def merged(variants: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put variants whose code is the same into one, for the sizes that any of them was made for."""
    found: list[dict[str, Any]] = []
    for variant in variants:
        code = essence(variant["module"])
        twin = next((one for one in found if essence(one["module"]) == code), None)
        if twin is None or twin["init"] != variant["init"] or twin["state"] != variant["state"]:
            found.append(dict(variant))
            continue
        sides = [" and ".join(f"({guard})" for guard in one["guards"]) or "True" for one in (twin, variant)]
        ranges = {entry["symbol"]: entry for entry in twin["symbols"].values()}
        either = f"({sides[0]}) or ({sides[1]})"
        twin["guards"] = [] if always_holds(either, ranges_of(either, ranges)) else [either]
    return found


def essence(module: str) -> str:
    """The part of a module that computes: sizes that only choose launch settings left out."""
    return "\n".join(line for line in module.splitlines() if "size_hints=" not in line)


def ranges_of(text: str, ranges: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The ranges of the symbols that a guard mentions."""
    return {symbol: entry for symbol, entry in ranges.items() if re.search(rf"\b{symbol}\b", text)}


def choice_combinations(dims: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Values of the dimensions that are choices, the default combination first."""
    named = [(name, dim["choices"], dim.get("default")) for name, dim in dims.items() if "choices" in dim]
    options = [sorted(choices, key=lambda value: value != default) for _, choices, default in named]
    combinations = itertools.islice(itertools.product(*options), MAX_VARIANTS)
    return [dict(zip((name for name, _, _ in named), values, strict=True)) for values in combinations]


def uncovered_point(
    variants: Sequence[Mapping[str, Any]], numeric: Mapping[str, Mapping[str, Any]]
) -> dict[str, int] | None:
    """Sizes outside every captured range, found by moving one dimension away from its default.

    Dimensions that a capture fixed at one value are left alone: a variant for each value would be needed.
    """
    first = variants[0]
    fixed = {name for name, entry in first["symbols"].items() if pinned(first, entry["symbol"])}
    for name in numeric:
        entry = first["symbols"].get(name)
        if entry is None or name in fixed:
            continue
        least, most = entry["declared_min"], entry["max"]
        for units in [most, *(2**power for power in range(most.bit_length(), -1, -1)), least]:
            if not max(least, 2) <= units <= most:
                continue
            point = {n: d["default"] for n, d in numeric.items()} | {name: units * entry["multiple"]}
            if not any(holds(variant, point) for variant in variants):
                return point
    return None


def pinned(variant: Mapping[str, Any], symbol: str) -> bool:
    return any(guard.replace(" ", "").startswith(f"{symbol}==") for guard in variant["guards"])


def holds(variant: Mapping[str, Any], point: Mapping[str, int]) -> bool:
    """Whether a variant's guards accept these sizes."""
    values = {entry["symbol"]: point[name] // entry["multiple"] for name, entry in variant["symbols"].items()}
    return all(evaluate(guard, values) for guard in variant["guards"])


def evaluate(guard: str, values: Mapping[str, int]) -> bool:
    return bool(eval(guard, {"__builtins__": {}, "math": math, "min": min, "max": max}, dict(values)))


def capture(
    reference: types.ModuleType,
    request: Mapping[str, Any],
    numeric: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, int],
    choices: Mapping[str, Any],
    notes: list[str],
) -> dict[str, Any]:
    """Capture with as many symbolic dimensions as the module bears; raise NotExtractable when nothing works."""
    model_dims = set(accepted(reference.get_init_inputs, numeric))
    attempts = [("all dimensions symbolic", set(numeric))]
    if model_dims:
        attempts.append(("dimensions of the inputs symbolic", set(numeric) - model_dims))
    attempts.append(("every size fixed", set()))
    said = ""
    for position, (label, symbolic) in enumerate(attempts):
        own_sizes = not numeric and position == 0
        try:
            return attempt(reference, request, numeric, defaults, choices, symbolic, own_sizes)
        except NotExtractable:
            raise
        except Exception as error:
            said = describe_error(error)
            notes.append(f"{label}: {said}")
            traceback.print_exc()
    raise NotExtractable(f"the compiler could not trace it: {said}")


def attempt(
    reference: types.ModuleType,
    request: Mapping[str, Any],
    numeric: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, int],
    choices: Mapping[str, Any],
    symbolic: set[str],
    own_sizes: bool,
) -> dict[str, Any]:
    device = torch.device(request["device"])
    env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=env, static_shapes=False, allow_non_fake_inputs=True)
    symbols = Symbols(env)
    dims: dict[str, Any] = {}
    for name, dim in numeric.items():
        if name in symbolic:
            dims[name] = symbols.add(
                name, defaults[name], dim["min"], dim["max"], dim.get("multiple_of") or 1
            )
        else:
            dims[name] = defaults[name]
    traced = trace(reference, dims | dict(choices), symbols, fake_mode, device, own_sizes)
    reject_unsupported(traced)
    if device.type == "cpu" and symbols.described:
        keep_convolution_sizes_symbolic()
    if request.get("variance_by_row"):
        compute_variance_by_row()
    module, metadata = lower(traced, fake_mode, request["settings"])
    reject_aliases(metadata)
    for name, entry in symbols.described.items():
        if entry["declared_min"] == 1 and same_at_one(
            reference, numeric, defaults, choices, name, traced, device
        ):
            entry["min"] = 1
    return {
        "choices": dict(choices),
        "symbols": symbols.described,
        "init": traced.init,
        "arguments": traced.arguments,
        "state": traced.state,
        "placeholders": traced.placeholders,
        "outputs": traced.output_structure,
        "guards": collect_guards(env, symbols),
        "operators": traced.operators,
        "module": module,
        "mode_matters": mode_matters(traced.model),
    }


def same_at_one(
    reference: types.ModuleType,
    numeric: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, int],
    choices: Mapping[str, Any],
    name: str,
    traced: Traced,
    device: torch.device,
) -> bool:
    """Whether the same operators run when a dimension is 1, which symbolic tracing assumes it never is."""
    env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=env, static_shapes=True, allow_non_fake_inputs=True)
    dims = dict(defaults) | {name: numeric[name].get("multiple_of") or 1} | dict(choices)
    try:
        other = trace(reference, dims, Symbols(env), fake_mode, device, own_sizes=False)
    except Exception as error:
        log(f"{name} = 1: {describe_error(error)}")
        return False
    return other.operators == traced.operators and other.output_structure == traced.output_structure


def reject_unsupported(traced: Traced) -> None:
    for node in traced.graph.graph.nodes:
        if node.op == "get_attr":
            raise NotExtractable(
                "forward makes a constant tensor from Python data, which generated code cannot carry"
            )
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise NotExtractable(
                f"it draws random numbers ({node.target}), and generated code would draw different ones"
            )
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            raise NotExtractable(
                f"the result of {node.target} depends on data, so sizes are not known in advance"
            )


def keep_convolution_sizes_symbolic() -> None:
    """Leave convolutions to torch: Inductor's lowering would fix the number of channels to choose a memory format."""
    aten = torch.ops.aten
    handler = lowering.fallback_handler(aten.convolution.default, add_to_fallback_set=False)
    for key in (aten.convolution, aten.convolution.default):
        lowering.lowerings[key] = handler


def compute_variance_by_row() -> None:
    """Mean and variance as plain sums that stay in the loop over rows, in place of Welford's update for each element.

    Inductor has such a form for short reductions of known length, but stores the mean in between, which splits the loop
    over rows in four, and leaves the mean's rounding error in the result. Here nothing is stored, so that all passes
    over a row follow each other while the row is in the cache, and the sum of the deviations, zero for the true mean,
    corrects both mean and variance: constant rows give exactly zero.
    """

    def two_passes(
        x: Any, axis: Any, *, correction: Any, keepdim: bool, return_mean: bool
    ) -> tuple[Any, ...]:
        correction = 1 if correction is None else correction
        axis = lowering._validate_reduction_axis(x, axis)
        size = x.get_size()
        count = math.prod(size[index] for index in axis)

        def divided(value: Any, by: Any) -> Any:
            constant = ir.IndexingConstant(index=by, dtype=x.get_dtype(), device=x.get_device())
            return lowering.div(value, ir.ExpandView.create(constant, list(value.get_size())))

        first = lowering.mean(x, axis, keepdim=True)
        deviation = lowering.sub(x, first)
        rest = lowering.sum_(deviation, axis, True)
        squares = lowering.sum_(lowering.square(deviation), axis, True)
        shift = divided(rest, count)
        # Rounding may leave a tiny negative number where all elements are equal.
        squares = lowering.relu(lowering.sub(squares, lowering.mul(rest, shift)))
        variance = divided(squares, sympy.Max(count - correction, 0) if correction else count)
        results = [variance, lowering.add(first, shift)] if return_mean else [variance]
        return tuple(result if keepdim else lowering.squeeze(result, axis) for result in results)

    lowering.var_mean_sum_ = two_passes  # type: ignore[assignment]
    lowering.use_two_step_variance = lambda *args, **kwargs: True  # type: ignore[assignment]


def lower(traced: Traced, fake_mode: FakeTensorMode, settings: Mapping[str, Any]) -> tuple[str, Any]:
    """Inductor's Python module for a graph, and what AOTAutograd found about its inputs and outputs."""
    codes: list[str] = []

    def stop_after_codegen(self: GraphLowering) -> None:
        code, _ = self.codegen()
        codes.append(getattr(code, "value", code))
        raise CodeReady

    GraphLowering.compile_to_module = stop_after_codegen  # type: ignore[assignment, method-assign]
    context = TracingContext(fake_mode)
    known = inductor_config.get_config_copy()
    patches = {key: value for key, value in {**SETTINGS, **settings}.items() if key in known}
    try:
        with torch.no_grad(), tracing(context), inductor_config.patch(patches):
            compile_fx.compile_fx(traced.graph, list(traced.values))
    except Exception:
        if not codes:
            raise
    if len(codes) != 1:
        raise NotExtractable(f"the compiler made {len(codes)} separate graphs of it")
    return without_comments(codes[0]), context.fw_metadata


def without_comments(module: str) -> str:
    """A module without its top-level comments and sample inputs: paths and hashes that vary stand there."""
    for end in ("\ndef get_args(", "\ndef benchmark_compiled_module("):
        module = module.partition(end)[0]
    return "\n".join(line for line in module.splitlines() if not line.startswith("# ")) + "\n"


def reject_aliases(metadata: Any) -> None:
    """Views of inputs are rebuilt outside the generated code, by a wrapper that a standalone source does not have."""
    for info in getattr(metadata, "output_info", ()):
        if info.output_type.name not in ("non_alias", "unsafe_view_alias"):
            raise NotExtractable(f"an output shares memory with something else ({info.output_type.name})")


def collect_guards(env: ShapeEnv, symbols: Symbols) -> list[str]:
    """Conditions on the symbols under which the code is right, as Python expressions, provable ones left out."""
    printer = PythonPrinter()
    ranges = {entry["symbol"]: entry for entry in symbols.described.values()}
    texts: dict[str, None] = {}
    for guard in env.guards:
        free = sorted(str(symbol) for symbol in guard.expr.free_symbols)
        if not set(free) <= set(ranges):
            raise NotExtractable("sizes depend on data")
        text = str(printer.doprint(guard.expr))
        if not always_holds(text, {name: ranges[name] for name in free}):
            texts[text] = None
    return list(texts)


def always_holds(text: str, ranges: Mapping[str, Mapping[str, Any]]) -> bool:
    if any(entry["max"] is None for entry in ranges.values()):
        return False
    spans = [range(entry["min"], entry["max"] + 1) for entry in ranges.values()]
    if math.prod(len(span) for span in spans) > MAX_PROOF_POINTS:
        return False
    points: Iterator[tuple[int, ...]] = itertools.product(*spans)
    return all(evaluate(text, dict(zip(ranges, point, strict=True))) for point in points)


if __name__ == "__main__":
    main()
