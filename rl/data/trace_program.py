"""Traces a task's module and writes its graph as JSON. Runs in the sandbox, beside the untrusted file `task.py`.

The program is sent as text: it imports nothing of the project. It writes `out/graphs.json`:

    {"traces": [{"dims": {...}, "nodes": [...], "output": node, "inputs": [...], "method": "export"}],
     "arguments": ["x", ...], "open_ended": false}

A node is {"op": "aten.add.Tensor", "args": [...], "kwargs": {...}, "shape": [...], "dtype": "float32"}; an argument is a
number, string, boolean or null, a list of arguments, or {"node": index}. Placeholders have the op "input", "parameter",
"buffer" or "constant" and a "name". Two traces at different sizes show which constants depend on sizes.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import types

import torch

FIRST_SIZES = (13, 29, 53, 97, 37, 61)
SECOND_SIZES = (11, 47, 31, 71, 89, 59)


def main() -> None:
    module = load_task()
    dims = getattr(module, "DIMS", None) or {}
    points = [sizes_for(dims, FIRST_SIZES), sizes_for(dims, SECOND_SIZES)] if dims else [{}]
    traces = []
    for point in points:
        try:
            traces.append(trace_at(module, point))
        except Exception:
            if not dims:
                raise
    if not traces:  # odd sizes do not suit this module: take its defaults
        traces = [trace_at(module, {name: dim.default for name, dim in dims.items()})]
    arguments, open_ended = forward_arguments(module.Model, traces[0]["given"])
    os.makedirs("out", exist_ok=True)
    with open("out/graphs.json", "w") as sink:
        json.dump({"traces": traces, "arguments": arguments, "open_ended": open_ended}, sink)


def load_task():
    if importlib.util.find_spec("kernelbench_tasks") is None:
        sys.modules["kernelbench_tasks"] = stub_of_dims()
    spec = importlib.util.spec_from_file_location("task", "task.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["task"] = module
    spec.loader.exec_module(module)
    return module


def stub_of_dims():
    """`Dim` and `Choice` for a sandbox that does not show the project."""

    class Dim:
        def __init__(self, *bounds, multiple_of=1, default=None, **named):
            self.min, self.max = bounds or (named["min"], named["max"])
            self.multiple_of = multiple_of
            self.default = self.min if default is None else default

    class Choice:
        def __init__(self, *values, default=None):
            self.values, self.default = values, values[0] if default is None else default

    stub = types.ModuleType("kernelbench_tasks")
    stub.Dim, stub.Choice = Dim, Choice
    return stub


def sizes_for(dims, sizes):
    """One legal size for each dimension: small, and no two alike, so that a shape tells which dimension is which."""
    point = {}
    for (name, dim), size in zip(dims.items(), sizes * (1 + len(dims) // len(sizes)), strict=False):
        if hasattr(dim, "min"):
            step = dim.multiple_of
            point[name] = max(-(-dim.min // step), min(dim.max // step, size)) * step
        else:
            point[name] = dim.default
    return point


def accepted(function, point):
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return point
    return {name: value for name, value in point.items() if name in parameters}


def forward_arguments(model, given):
    """Names of the arguments that `get_inputs` fills, and whether forward takes more than these."""
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    if len(plain) < given:
        raise ValueError("forward takes *args")
    return [p.name for p in plain[:given]], len(parameters) > given


def trace_at(module, point):
    model = module.Model(*module.get_init_inputs(**accepted(module.get_init_inputs, point))).eval()
    inputs = tuple(module.get_inputs(**accepted(module.get_inputs, point)))
    with torch.no_grad():
        try:
            trace = from_export(model, inputs)
        except Exception:
            trace = from_proxies(model, inputs)
    return {"dims": point, "given": len(inputs), **trace}


def from_export(model, inputs):
    """The exported graph, broken down into core operations without side effects.

    Not by `run_decompositions`: it overrides every composite operator of torch, 0.7 s for graphs of ten nodes; tracing the
    exported graph again takes 0.1 s.
    """
    program = torch.export.export(model, inputs, strict=False)
    signature = program.graph_signature
    if len(signature.user_outputs) != 1 or len(signature.user_inputs) != len(inputs):
        raise ValueError("one output and plain tensor inputs are needed")
    names, constants = {}, {}
    for position, name in enumerate(signature.user_inputs):
        names[name] = ("input", str(position))
    for kind, table in (
        ("parameter", signature.inputs_to_parameters),
        ("buffer", signature.inputs_to_buffers),
    ):
        for name, target in table.items():
            names[name] = (kind, target)
    for name, target in signature.inputs_to_lifted_tensor_constants.items():
        value = program.constants.get(target)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            constants[target] = float(value)
        names[name] = ("constant", target)
    leaves = [node for node in program.graph.nodes if node.op == "placeholder"]
    values = [empty_like(node.meta["val"]) for node in leaves]
    origins = [names.get(node.name, ("constant", node.name)) for node in leaves]
    return {"method": "export", **dump(core_graph(program.graph_module, values), origins, constants)}


def from_proxies(model, inputs):
    """For modules that export refuses: the operations as they are dispatched, with parameters passed in."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    state = [*parameters, *buffers]

    def call(*values):
        return torch.func.functional_call(model, dict(zip(state, values, strict=False)), values[len(state) :])

    origins = [("parameter", name) for name in parameters] + [("buffer", name) for name in buffers]
    origins += [("input", str(position)) for position in range(len(inputs))]
    graph = core_graph(call, [*parameters.values(), *buffers.values(), *inputs])
    return {"method": "make_fx", **dump(graph, origins, {})}


def core_graph(call, values):
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    # the one for RMSNorm works in place; the reader of the graph knows the operator itself
    table = {op: rule for op, rule in core_aten_decompositions().items() if "rms_norm" not in str(op)}
    graph = make_fx(torch.func.functionalize(call), decomposition_table=table, tracing_mode="fake")(
        *values
    ).graph
    graph.eliminate_dead_code()
    if any(str(node.target).startswith("aten.copy_.") for node in graph.nodes):
        raise ValueError("forward changes its inputs or buffers")
    return graph


def empty_like(value):
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def dump(graph, origins, constants):
    nodes, index, output, leaves = [], {}, None, iter(origins)
    for node in graph.nodes:
        if node.op == "output":
            result = node.args[0]
            if isinstance(result, (list, tuple)):
                if len(result) != 1:
                    raise ValueError("the module returns more than one tensor")
                result = result[0]
            output = index[result]
            continue
        index[node] = len(nodes)
        if node.op in ("placeholder", "get_attr"):
            kind, name = next(leaves) if node.op == "placeholder" else ("constant", str(node.target))
            entry = {"op": kind, "name": name, "args": [], "kwargs": {}}
            if kind == "constant" and name in constants:
                entry["value"] = constants[name]
        else:
            target = node.target
            name = "getitem" if getattr(target, "__name__", "") == "getitem" else str(target)
            entry = {
                "op": name,
                "args": [encode(value, index) for value in node.args],
                "kwargs": {key: encode(value, index) for key, value in node.kwargs.items()},
            }
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            entry["shape"] = [int(size) for size in value.shape]
            entry["dtype"] = str(value.dtype).removeprefix("torch.")
        nodes.append(entry)
    return {"nodes": nodes, "output": output}


def encode(value, index):
    if isinstance(value, torch.fx.Node):
        return {"node": index[value]}
    if isinstance(value, (list, tuple)):
        return [encode(item, index) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    return str(value)


main()
