"""Tool program: gets Inductor's code for a reference module without compiling or running it.

It runs as `__main__` in a disposable sandboxed process whose folder holds `reference.py` (untrusted) and `request.json`, and writes
`out/capture.json`. It is sent as text, so it imports nothing else from this project; its output is untrusted text.

One source serves all sizes: the module is constructed and traced with symbolic integers for the task's dimensions, and Inductor
takes them as arguments. If that fails, it retries with fewer symbols. A second module calls the kernel library where it can.
A task that is judged forward and backward gets two modules of each: autograd's joint graph is cut in two as torch.compile cuts it.
Every tensor is fake, so no large memory is allocated.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import math
import numbers
import operator
import os
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import sympy
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

SETTINGS = {
    "force_disable_caches": True,
    "cpp.vec_isa_ok": True,  # skip the probe, which would compile and run a program for each instruction set
    "cpp.dynamic_threads": True,  # the caller sets the number of threads; do not hard-code it in the source
    "graph_partition": False,
}
_LOOKS_FOR_NEIGHBORS = "triton.coalesce_tiling_analysis"
#: DenseNet121 takes 125 s on a core with symbols, and 45 s without.
SYMBOLS_S = 240


class NotExtractable(Exception):
    """The compiler's code is not self-contained; the message is one sentence for people."""


class CodeReady(Exception):
    """Raised to leave the compiler once the code exists, before anything is compiled or run."""


def main() -> None:
    request = json.loads(Path("request.json").read_text())
    try:
        prepare_process()
        result = capture(
            load_reference(Path("reference.py")),
            request["dims"],
            request.get("own", {}),
            torch.device(request["device"]),
        )
    except Exception as error:
        traceback.print_exc()
        result = {"error": said(error)}
    Path("out").mkdir(exist_ok=True)
    Path("out/capture.json").write_text(json.dumps(result, sort_keys=True))


def said(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0][:300]
    return first if isinstance(error, NotExtractable) else f"{type(error).__name__}: {first}"


def prepare_process() -> None:
    """Let modules be constructed with symbolic integers. The patches are permanent; the process is discarded."""
    numbers.Integral.register(
        torch.SymInt
    )  # nn.LayerNorm checks isinstance(normalized_shape, numbers.Integral)
    # Initial values do not matter here, and computing their bounds would turn sizes into floats.
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
    torch.nn.init._calculate_fan_in_and_fan_out = lambda tensor: (1, 1)
    if torch.backends.opt_einsum.is_available():
        # It compares sizes, which would fix symbols to numbers. Let it order the products by the module's own sizes.
        paths = torch.backends.opt_einsum.get_opt_einsum()
        of_sizes = paths.contract_path
        paths.contract_path = lambda equation, *operands, **how: of_sizes(
            equation, *(tuple(map(own_size, one.shape)) for one in operands), shapes=True, **how
        )
    # PyTorch 2.11 looks at the remainder when it rounds a pool's size, and the code would be for even sizes alone.
    torch._meta_registrations.div_rtn = operator.floordiv
    # It reads its weights' addresses on a GPU, and fake tensors have none.
    torch.nn.RNNBase.flatten_parameters = lambda self: None
    sqrt = math.sqrt  # attention scales: math.sqrt(head_dim) would otherwise specialize the head dimension
    math.sqrt = lambda value: (
        torch.sym_sqrt(value) if isinstance(value, torch.SymInt | torch.SymFloat) else sqrt(value)
    )


def own_size(size: Any) -> int:
    """A size, of a symbol the module's own."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def load_reference(path: Path) -> types.ModuleType:
    if importlib.util.find_spec("kernelbench_tasks") is None:
        # The request holds the ranges, so stubs suffice for Dim and Choice.
        stand_in = types.ModuleType("kernelbench_tasks")
        stand_in.Dim = stand_in.Choice = lambda *args, **kwargs: None
        sys.modules["kernelbench_tasks"] = stand_in
    return load(path)


def load(path: Path) -> types.ModuleType:
    """Import a file of the working folder, once."""
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def capture(
    reference: types.ModuleType, dims: Mapping[str, Any], own: Mapping[str, Any], device: torch.device
) -> dict[str, Any]:
    """Capture with symbols for the sizes that vary at run time, or without if the module does not support them.

    Where the library has kernels, a further capture, ``own``, is for the module's own sizes alone: code with symbols divides
    and masks more, and was up to 3.5 times slower on an H100.
    """
    values = {name: own.get(name, dim["default"]) for name, dim in dims.items()}
    sizes = {name for name, dim in dims.items() if "choices" not in dim}
    of_model = set(accepted(reference.get_init_inputs, dims)) - set(getattr(reference, "VARIES", ()))
    varying = sizes - of_model or sizes
    alone = attempt(reference, dims, values, set(), device) if Path("rewriting.py").exists() else None
    if alone is not None and not varying:
        return alone
    found = None
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SYMBOLS_S)
    try:
        # First with 1 as an ordinary size, so that the code serves a batch of one; if the tracer or Inductor fails, with 1 excluded.
        for one_is_ordinary in (True, False):
            torch.fx.experimental._config.backed_size_oblivious = one_is_ordinary
            try:
                found = attempt(reference, dims, values, varying, device)
            except NotExtractable:
                if alone is None:
                    raise
            except Exception:
                traceback.print_exc()
                continue
            break
    except TooLong:
        traceback.print_exc()
    finally:
        signal.alarm(0)
    if found is None:
        return alone or attempt(reference, dims, values, set(), device)
    return found if alone is None else {**found, "own": alone}


class TooLong(BaseException):
    """Of a kind that no handler on the way takes for a fault of its own."""


def too_long(*_: object) -> None:
    raise TooLong(f"more than {SYMBOLS_S} s with symbols")


def accepted(function: Callable[..., Any], dims: Mapping[str, Any]) -> dict[str, Any]:
    """The dimensions that a function takes as keyword arguments."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(dims)
    return {name: dims[name] for name in parameters if name in dims}


def attempt(
    reference: types.ModuleType,
    dims: Mapping[str, Any],
    own: Mapping[str, Any],
    symbolic: set[str],
    device: torch.device,
) -> dict[str, Any]:
    """Capture with symbols for some dimensions; the others have their own sizes."""
    env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    values = {name: symbol(env, name, dim) if name in symbolic else own[name] for name, dim in dims.items()}
    init = reference.get_init_inputs(**accepted(reference.get_init_inputs, values))
    training = bool(getattr(reference, "TRAINING", False))
    backward = getattr(reference, "DIRECTION", "forward") == "forward_backward"
    with torch.no_grad(), device, fake_mode:
        model = reference.Model(*init).train(training)
        inputs = apart(reference.get_inputs(**accepted(reference.get_inputs, values)))
        for one in tree_leaves([inputs, list(model.parameters())]):
            if isinstance(one, torch.Tensor) and has_gradient(one):
                one.requires_grad_(backward)
    made_with = inspect.signature(reference.Model).bind(*init)
    given = inspect.signature(model.forward).bind(*inputs)
    made_with.apply_defaults()
    given.apply_defaults()
    tensors = {name: value for name, value in given.arguments.items() if holds_tensors(value)}
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad(), device, fake_mode:
        written = written_buffers(model, given.arguments) if training else []

    def trace() -> tuple[torch.fx.GraphModule, str]:
        return traced(model, given.arguments, tensors, state, written, fake_mode, device, backward)

    graph, result = trace()
    check_graph(graph)
    guard_sizes(graph)
    code = graph.code
    # Inductor's choice of layouts for convolutions is made for TF32; in float32, cuDNN is up to three times slower with it.
    settings = {**SETTINGS, **({"layout_optimization": False} if device.type == "cuda" else {})}
    every = tree_leaves([*tensors.values(), *state.values()])
    saved: dict[str, Any] = {}
    parts = [graph]
    if backward:
        *parts, saved = halves(graph, len(every), len(written))
    # agent/kernels/rewriting/ as one text, where the library has kernels for the device.
    rewritten = copy.deepcopy(parts) if Path("rewriting.py").exists() else None
    # The compiler alone cannot compute what was traced as an operation of the library.
    is_library = any("kernelwright." in str(node.target) for node in graph.graph.nodes)
    modules = [""] if is_library else lowered(parts, every, fake_mode, settings)
    library, fault = [""], ""
    if rewritten is not None:
        try:
            if sum([load(Path("rewriting.py")).rewrite(part) for part in rewritten]) or is_library:
                library = lowered(rewritten, every, fake_mode, settings)
        except Exception as error:  # the compiler's own code stands; the fault is told
            if is_library:
                raise
            traceback.print_exc()
            fault = said(error)
    rows = None
    if Path("row_program.py").exists():  # agent/kernels/cpu/row_program.py
        try:
            if backward:
                raise NotExtractable("NotRows: the task is judged forward and backward")
            rows = load(Path("row_program.py")).row_program(graph.graph, len(every) - len(state))
        except Exception as error:
            traceback.print_exc()
            fault = said(error)
    try:
        model.train(not training)
        other = trace()[0].code
    except Exception:  # the other mode cannot be traced: then the code is for this one alone
        other = None
    sizes: dict[str, str] = {}  # the expression that yields each symbol
    for place, tensor in enumerate(every):
        for axis, size in enumerate(tensor.shape):
            sizes.setdefault(expression(size), f"shapes[{place}][{axis}]")
    # A branch or the compiler may have fixed a symbol to one number. The code then serves that size only, and any of the other sizes.
    ranges = {name: bound for name, bound in env.var_to_range.items() if env.replace(name) == name}
    guards = [one for guard in env.guards if (one := env.replace(guard.expr)) is not sympy.true]
    mentioned = {str(name) for name in [*ranges, *(name for one in guards for name in one.free_symbols)]}
    if not mentioned <= set(sizes):
        raise ValueError(f"the size {min(mentioned - set(sizes))} cannot be read off the inputs")
    conditions = [f"made_with == {text(dict(made_with.arguments))}"]
    others = {name: text(value) for name, value in given.arguments.items() if name not in tensors}
    lists = {name: value for name, value in tensors.items() if not isinstance(value, torch.Tensor)}
    others |= {
        f"_kw_kind({name})": f"({type(value).__name__!r}, {len(value)})" for name, value in lists.items()
    }
    kinds = [plain_type(value) for name, value in given.arguments.items() if name not in tensors]
    kinds += ["tuple"] * len(lists)
    if others:  # 2 == 2.0, but code for whole numbers is no code for floats
        conditions.append(f"[*map(type, others)] == [{', '.join(kinds)}]")
        conditions.append(f"others == ({', '.join(others.values())},)")
    conditions += ["training" if training else "not training"] * (code != other)
    conditions += [f"{bound.lower} <= {name} <= {bound.upper}" for name, bound in ranges.items()]
    conditions += [PythonPrinter().doprint(one) for one in guards]
    return {
        "torch": torch.__version__,
        "module": modules[0],
        "library": library[0],
        "library_fault": fault,
        "backward": {
            **saved,
            "wanted": [one.requires_grad for one in every],
            "module": modules[1],
            "library": library[-1],
        }
        if backward
        else None,
        "rows": rows,
        "tensors": [f"*_kw_items({name})" if name in lists else name for name in tensors],
        "others": list(others),
        "state": list(state),
        "written": written,
        "dimensions": [tensor.dim() for tensor in every],
        "sizes": [f"{name} = {sizes[name]}" for name in sorted(mentioned)],
        "shapes": [text(tuple(one.shape)) for one in every],
        "strides": [text(tuple(one.stride())) for one in every],
        "dtypes": [str(one.dtype) for one in every],
        "devices": [one.device.type for one in every],
        "conditions": list(dict.fromkeys(conditions)),
        "result": result,
    }


def holds_tensors(value: Any) -> bool:
    """Whether an argument is a tensor, or a list of nothing else."""
    is_list = type(value) in (list, tuple) and len(value) > 0
    return isinstance(value, torch.Tensor) or (
        is_list and all(isinstance(one, torch.Tensor) for one in value)
    )


def apart(inputs: Any) -> Any:
    """The inputs with a tensor of its own in each place: one in two places would be one input of the code."""
    seen: list[torch.Tensor] = []

    def own(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.clone() if any(value is one for one in seen) else value
            seen.append(value)
        return value

    return tree_map(own, inputs)


def has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def symbol(env: ShapeEnv, name: str, dim: Mapping[str, int]) -> Any:
    """A symbolic dimension, at least 1 since the tracer specializes 0; a plain int if only one value is possible."""
    low, high, source = max(1, dim["min"]), dim["max"], ConstantSource(name)
    if high <= low:
        return dim["default"]
    made = env.create_symbol(
        max(2, dim["default"]), source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
    )
    env.var_to_range[made] = ValueRanges(low, high)
    return env.create_symintnode(made, hint=max(2, dim["default"]), source=source)


class RunningStatistics(TorchDispatchMode):
    """Sees the running statistics that batch norms update: their versions do not tell of it."""

    def __init__(self) -> None:
        super().__init__()
        self.updated: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = (one.name for one in func._schema.arguments)
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        if given.get("training", given.get("train")):
            self.updated += [given.get("running_mean"), given.get("running_var")]
        return func(*args, **(kwargs or {}))


def written_buffers(model: torch.nn.Module, arguments: Mapping[str, Any]) -> list[str]:
    """The buffers that a call writes to, such as the running statistics of a batch norm in training."""
    before = {name: buffer._version for name, buffer in model.named_buffers()}
    with RunningStatistics() as seen:
        model(*arguments.values())
    return [
        name
        for name, buffer in model.named_buffers()
        if buffer._version != before[name] or any(buffer is one for one in seen.updated)
    ]


def traced(
    model: torch.nn.Module,
    arguments: Mapping[str, Any],
    tensors: Mapping[str, Any],
    state: Mapping[str, Any],
    written: list[str],
    fake_mode: FakeTensorMode,
    device: torch.device,
    backward: bool,
) -> tuple[torch.fx.GraphModule, str]:
    """The graph of one call, or with `backward` autograd's joint graph, and Python text of its result in terms of the list `out`.

    What the buffers in `written` hold afterwards comes last in the graph's outputs.
    """
    result = ""

    def flat(*values: Any) -> list[torch.Tensor]:
        nonlocal result
        inputs = tree_unflatten(values[: len(values) - len(state)], layout)
        call = {**arguments, **dict(zip(tensors, inputs, strict=True))}
        swapped = dict(zip(state, values[len(values) - len(state) :], strict=True))
        swapped |= {name: swapped[name].clone() for name in written}
        with layers():
            output = torch.func.functional_call(model, swapped, tuple(call.values()))
        if list(map(id, tree_leaves(inputs))) != list(map(id, values[: len(values) - len(state)])):
            raise NotExtractable("forward changes a list that it is given")
        outputs: list[torch.Tensor] = []
        result = text(output, outputs)
        # Autograd would return the base of a view, too; the compiler drops the copy where layouts agree.
        outputs = [one.clone() if backward and one._is_view() else one for one in outputs]
        return [*outputs, *(swapped[name].detach() for name in written)]

    has_library = Path("rewriting.py").exists() and not backward
    layers = load(Path("rewriting.py")).recurrent_layers if has_library else nullcontext
    before = attributes(model)
    leaves, layout = tree_flatten(list(tensors.values()))
    values = (*leaves, *state.values())
    if backward:
        with device:
            graph = aot_export_joint_simple(
                flat, values, trace_joint=True, decompositions=select_decomp_table()
            )
    else:
        with torch.no_grad(), fake_mode, device:
            graph = make_fx(flat, pre_dispatch=True)(*values)
    if attributes(model) != before:
        raise NotExtractable("forward changes attributes of the module, which generated code would not do")
    return graph, result


def attributes(model: torch.nn.Module) -> list[tuple[str, str, int]]:
    """The identity of each attribute in the modules' dictionaries; parameters and buffers, which the call swaps, are not in them."""
    return [
        (path, name, id(value)) for path, part in model.named_modules() for name, value in vars(part).items()
    ]


def draws(node: torch.fx.Node) -> bool:
    """Whether an operation draws random numbers: not dropout outside training, nor attention without dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = {one.name: one.default_value for one in node.target._schema.arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    return given.get("train") is not False and given.get("dropout_p") != 0.0


def check_graph(graph: torch.fx.GraphModule) -> None:
    """Refuse graphs that generated code would compute differently."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            raise NotExtractable("forward uses a tensor that is no input, parameter or buffer")
        if draws(node):
            raise NotExtractable(
                f"it draws random numbers ({node.target}), and generated code would draw others"
            )


def guard_sizes(graph: torch.fx.GraphModule) -> None:
    """Add the guards that a tracer with 1 as an ordinary size leaves out: no size that a squeeze tests is 1, and no tensor is empty.

    A maximum over an empty dimension raises an error, and generated code would not.
    """
    guarded = set()

    def guard(size: Any, other: int) -> None:
        # A size without a hint depends on values; `attempt` refuses it.
        if isinstance(size, torch.SymInt) and size.node.has_hint() and (str(size), other) not in guarded:
            guarded.add((str(size), other))
            bool(size == other)

    for node in graph.graph.nodes:
        if str(node.target).startswith("aten.squeeze"):
            squeezed, *dims = (*node.args, *node.kwargs.values())
            sizes = squeezed.meta["val"].shape
            for dim in tree_leaves(dims) if dims and sizes else range(len(sizes)):
                guard(sizes[dim], 1)
        for one in tree_leaves(node.meta.get("val")):
            for size in one.shape if isinstance(one, torch.Tensor) else ():
                guard(size, 0)


def halves(
    joint: torch.fx.GraphModule, inputs: int, written: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, dict[str, Any]]:
    """The forward and the backward of a joint graph, and what passes between them.

    Args:
        joint: autograd's joint graph.
        inputs: how many it has, besides the gradients of outputs.
        written: how many of its outputs, the last ones, are buffers.

    Returns:
        The forward, which yields the results and what is saved; the backward; and a dictionary with ``results``, how many
        there are, and Python text: ``sizes`` and ``tensors``, what is saved, in terms of the lists `given` and `out`, and ``takes``,
        the arguments of the backward, in terms of `sizes`, `tensors` and `gradients`.
    """
    results = joint.graph.output_node().args[0][:-inputs]  # the others are gradients, one per input
    joint_graph_passes(joint)
    forward, backward = min_cut_rematerialization_partition(joint, None, num_fwd_outputs=len(results))
    given = [node.name for node in forward.graph.find_nodes(op="placeholder")]
    end = forward.graph.output_node()
    kept = [*end.args[0][: len(results)]]
    where = {node.name: f"out[{place}]" for place, node in enumerate(kept)}
    for node in end.args[0][len(results) :]:
        if node.name not in given and node.name not in where:
            where[node.name] = f"out[{len(kept)}]"
            kept.append(node)
    end.args = (tuple(kept),)
    # The backward was traced for these strides; Inductor is free to choose others for what is not visible to the user.
    end.meta["user_visible_output_idxs"] = list(range(len(kept)))
    forward.recompile()
    where |= {name: f"given[{place}]" for place, name in enumerate(given)}
    sizes: list[str] = []
    tensors: list[str] = []
    takes = []
    outputs = results[: len(results) - written]
    floating = [place for place, node in enumerate(outputs) if has_gradient(node.meta["val"])]
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in where:
            is_tensor = isinstance(node.meta["val"], torch.Tensor)
            name, group = ("tensors", tensors) if is_tensor else ("sizes", sizes)
            takes.append(f"{name}[{len(group)}]")
            group.append(where[node.name])
        else:
            takes.append(f"gradients[{floating.pop(0)}].contiguous({layout_of(node.meta['val'])})")
    if floating:
        raise NotExtractable("an output carries no gradient")
    return forward, backward, {"results": len(results), "sizes": sizes, "tensors": tensors, "takes": takes}


def layout_of(gradient: torch.Tensor) -> str:
    """The layout that autograd's tracer gives an upstream gradient, as an argument of `contiguous`."""
    for name in ("contiguous_format", "channels_last", "channels_last_3d"):
        dimensions = {"channels_last": 4, "channels_last_3d": 5}.get(name, gradient.dim())
        if gradient.dim() == dimensions and gradient.is_contiguous(memory_format=getattr(torch, name)):
            return f"memory_format=torch.{name}" if name != "contiguous_format" else ""
    raise NotExtractable("the gradient of an output has another layout")


def lowered(
    parts: list[torch.fx.GraphModule],
    values: list[Any],
    fake_mode: FakeTensorMode,
    settings: Mapping[str, Any],
) -> list[str]:
    """Inductor's Python modules for a graph or for the halves of a joint graph, as Inductor would write them to its cache."""
    if len(parts) == 1:
        return [of_inference(parts[0], values, fake_mode, settings)]
    texts = []
    for is_backward, part in zip((False, True), parts, strict=True):
        given = [node.meta["val"] for node in part.graph.find_nodes(op="placeholder")]
        compiler = partial(compile_fx.compile_fx_inner, part, given, is_backward=is_backward)
        with V.set_fake_mode(fake_mode):
            texts.append(generated(compiler, TracingContext(fake_mode), settings))
    return texts


def of_inference(
    graph: torch.fx.GraphModule, values: list[Any], fake_mode: FakeTensorMode, settings: Mapping[str, Any]
) -> str:
    """The module of a call without gradients. Its results must not share memory with the inputs, and nothing is written to."""
    context = TracingContext(fake_mode)
    code = generated(lambda: compile_fx.compile_fx(graph, values), context, settings)
    metadata = context.fw_metadata
    aliases = [
        info
        for info in metadata.output_info
        if info.output_type.name not in ("non_alias", "unsafe_view_alias")
    ]
    if aliases or metadata.num_mutated_inp_runtime_indices:
        # Inductor's caller handles aliases and input mutations outside the generated code.
        raise NotExtractable("an output shares memory with something else, or an input is written to")
    return code


def generated(compiler: Callable[[], Any], context: TracingContext, settings: Mapping[str, Any]) -> str:
    """The one module that a call of the compiler writes."""
    codes: list[str] = []

    def stop_after_codegen(self: GraphLowering) -> None:
        code, _ = self.codegen()
        codes.append(getattr(code, "value", code))
        raise CodeReady

    GraphLowering.compile_to_module = stop_after_codegen
    try:
        with torch.no_grad(), tracing(context), inductor_config.patch(dict(settings)):
            compiler()
    except Exception:
        if not codes:
            # Where sizes are symbols, Inductor 2.11 may fail when it looks for the axis whose neighbors lie together.
            if settings.get(_LOOKS_FOR_NEIGHBORS) is False:
                raise
            return generated(compiler, context, {**settings, _LOOKS_FOR_NEIGHBORS: False})
    if len(codes) != 1:
        raise NotExtractable(f"the compiler made {len(codes)} separate graphs of it")
    return with_long_numbers(without_comments(codes[0]))


def without_comments(module: str) -> str:
    """Drop top-level comments and sample inputs, which hold varying paths and hashes."""
    for end in ("\ndef get_args(", "\ndef benchmark_compiled_module("):
        module = module.partition(end)[0]
    return "\n".join(line for line in module.splitlines() if not line.startswith("# ")) + "\n"


def with_long_numbers(module: str) -> str:
    """Index expressions of kernels with numbers beyond 32 bits in 64 bits: Triton does not compile what Inductor writes."""

    def longer(match: re.Match[str]) -> str:
        return f"tl.full([], {match[0]}, tl.int64)" if int(match[0]) >= 1 << 31 else match[0]

    def line(match: re.Match[str]) -> str:
        return re.sub(r"(?<![\w.])\d{10,}(?=\*| \+ )", longer, match[0])

    return re.sub(r"^ +tmp\d+ = .*$", line, module, flags=re.MULTILINE)


def plain_type(value: Any) -> str:
    """The class of plain data as Python text."""
    return {type(None): "type(None)", torch.dtype: "torch.dtype"}.get(type(value), type(value).__name__)


def expression(size: Any) -> str:
    """A size as Python text in terms of the symbols."""
    return PythonPrinter().doprint(size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size))


def text(value: Any, leaves: list[torch.Tensor] | None = None) -> str:
    """Python text of plain data; tensors are appended to `leaves`, named `out` in the text."""
    if isinstance(value, torch.Tensor) and leaves is not None:
        leaves.append(value)
        return f"out[{len(leaves) - 1}]"
    if isinstance(value, torch.SymInt):
        if leaves is not None:  # generated code has no value for a symbol when it makes its results
            raise NotExtractable("forward returns a size of its inputs")
        return expression(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | str | float | torch.dtype):
        return repr(value)
    if type(value) in (list, tuple):
        items = ", ".join(text(item, leaves) for item in value)
        return f"[{items}]" if type(value) is list else f"({items},)" if value else "()"
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{key!r}: {text(item, leaves)}" for key, item in value.items()) + "}"
    raise NotExtractable(f"a {type(value).__name__} is no plain data")


if __name__ == "__main__":
    main()
