"""Generates modules as graphs of a few row operations, as a pure function of a seed, and writes them as task files.

A graph is an ordered list of nodes; a node reads earlier values. Values are numbered: the module's inputs first, then the nodes. All
values have the same leading sizes and differ only in the last one: all columns, one (after a reduction), or the output columns of a
product. The operations are numerically safe in float32 for any input: no logarithm or root of values that may be negative, no
exponential of values that may be large.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evaluator.sources import TaskSource
from kernelbench_tasks.dims import Dim

#: Incremented whenever the same seed gives other modules.
VERSION = 2

Width = Literal["cols", "one", "out"]
Kind = Literal["pointwise", "number", "pair", "parameter", "reduction", "normalization", "product"]


@dataclass(frozen=True)
class Operation:
    """An operation for nodes; `text` is Python with `{a}` and `{b}` for its operands, `{n}` for its number, `{w}` for its weights."""

    name: str
    kind: Kind
    text: str
    numbers: tuple[float, ...] = ()
    #: The result's rows have a fixed sum or mean: another reduction over them would give a constant.
    fixed_sum: bool = False
    #: Constant where its argument is small, large or negative, so values of one sign or size give a constant result.
    flat: bool = False


_LIST = (
    Operation("relu", "pointwise", "torch.relu({a})", flat=True),
    Operation("gelu", "pointwise", "F.gelu({a})"),
    Operation("gelu_tanh", "pointwise", 'F.gelu({a}, approximate="tanh")'),
    Operation("silu", "pointwise", "F.silu({a})"),
    Operation("sigmoid", "pointwise", "torch.sigmoid({a})"),
    Operation("tanh", "pointwise", "torch.tanh({a})"),
    Operation("softplus", "pointwise", "F.softplus({a})"),
    Operation("elu", "pointwise", "F.elu({a})"),
    Operation("mish", "pointwise", "F.mish({a})"),
    Operation("hardswish", "pointwise", "F.hardswish({a})", flat=True),
    Operation("absolute", "pointwise", "{a}.abs()"),
    Operation("sine", "pointwise", "torch.sin({a})"),
    Operation("leaky_relu", "number", "F.leaky_relu({a}, {n})", (0.01, 0.1, 0.2)),
    Operation("scale", "number", "{a} * {n}", (0.5, 0.125, 1.7, -2.0)),
    Operation("shift", "number", "{a} + {n}", (1.0, -0.5, 3.0)),
    Operation("clamp", "number", "{a}.clamp(-{n}, {n})", (1.0, 2.5, 6.0), flat=True),
    Operation("add", "pair", "{a} + {b}"),
    Operation("subtract", "pair", "{a} - {b}"),
    Operation("multiply", "pair", "{a} * {b}"),
    Operation("maximum", "pair", "torch.maximum({a}, {b})"),
    Operation("gate", "pair", "{a} * torch.sigmoid({b})"),
    Operation("bias", "parameter", "{a} + self.{w}"),
    Operation("gain", "parameter", "{a} * self.{w}"),
    Operation("row_sum", "reduction", "{a}.sum(dim=-1, keepdim=True)"),
    Operation("row_mean", "reduction", "{a}.mean(dim=-1, keepdim=True)"),
    Operation("row_max", "reduction", "{a}.amax(dim=-1, keepdim=True)"),
    Operation("row_min", "reduction", "{a}.amin(dim=-1, keepdim=True)"),
    Operation("row_logsumexp", "reduction", "torch.logsumexp({a}, dim=-1, keepdim=True)"),
    Operation("row_rms", "reduction", "torch.sqrt(({a} * {a}).mean(dim=-1, keepdim=True) + 1e-6)"),
    Operation("softmax", "normalization", "torch.softmax({a}, dim=-1)", fixed_sum=True),
    Operation("log_softmax", "normalization", "torch.log_softmax({a}, dim=-1)"),
    Operation("layer_norm", "normalization", "self.{w}({a})", fixed_sum=True),
    Operation(
        "rms_norm",
        "normalization",
        "{a} * torch.rsqrt(({a} * {a}).mean(dim=-1, keepdim=True) + 1e-6)",
        fixed_sum=True,
    ),
    Operation("center", "normalization", "{a} - {a}.mean(dim=-1, keepdim=True)", fixed_sum=True),
    Operation("over_largest", "normalization", "{a} / (1.0 + {a}.abs().amax(dim=-1, keepdim=True))"),
    Operation("linear", "product", "F.linear({a}, self.{w})"),
)
_ONE_SIDED = frozenset({"absolute", "clamp", "log_softmax", "relu", "sigmoid", "softmax", "softplus"})
OPERATIONS = {one.name: one for one in _LIST}
BY_KIND: dict[str, list[str]] = {}
for _one in _LIST:
    BY_KIND.setdefault(_one.kind, []).append(_one.name)


@dataclass(frozen=True)
class Node:
    """One operation: its name, the numbers of the values that it reads, and its numeric constant if it has one."""

    operation: str
    reads: tuple[int, ...]
    number: float | None = None


@dataclass(frozen=True)
class Module:
    """A generated module.

    Attributes:
        inputs: number of tensors that forward takes.
        nodes: the nodes in order; the last one is the result.
        leading: names of the sizes before the columns.
        dims: its dimensions by name, including `cols`, and `out` if there is a product.
    """

    inputs: int
    nodes: tuple[Node, ...]
    leading: tuple[str, ...]
    dims: tuple[tuple[str, Dim], ...]

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of its operations, in order."""
        return tuple(node.operation for node in self.nodes)

    def widths(self) -> list[Width]:
        """The last size of each value.

        Raises:
            ValueError: the graph is invalid: a node reads a value that does not exist or does not fit.
        """
        found: list[Width] = ["cols"] * self.inputs
        for node in self.nodes:
            if not all(0 <= place < len(found) for place in node.reads):
                raise ValueError(f"{node.operation} reads a value that is not there")
            found.append(_width(OPERATIONS[node.operation], [found[place] for place in node.reads]))
        return found


def _width(operation: Operation, reads: Sequence[Width]) -> Width:
    if len(reads) != (2 if operation.kind == "pair" else 1):
        raise ValueError(f"{operation.name} reads {len(reads)} values")
    wide = [width for width in reads if width != "one"]
    if operation.kind == "pair" and len(set(wide)) > 1:
        raise ValueError(f"{operation.name} reads values of different widths")
    if operation.kind in ("reduction", "normalization", "parameter", "product") and not wide:
        raise ValueError(f"{operation.name} reads a single column")
    if operation.kind == "product":
        if "out" in wide:
            raise ValueError("a second product would need a third width")
        return "out"
    return "one" if operation.kind == "reduction" or not wide else wide[0]


def sound(module: Module) -> bool:
    """Whether the graph is valid, uses every input and value, and has no evidently constant result."""
    try:
        widths = module.widths()
    except ValueError:
        return False
    read = {place for node in module.nodes for place in node.reads}
    last = len(widths) - 1
    if read != set(range(last)) or last < module.inputs + 1:
        return False
    for node in module.nodes:
        # Refuse graphs with a constant result, since a candidate that returns a constant would pass.
        source = node.reads[0] - module.inputs
        before = OPERATIONS[module.nodes[source].operation] if source >= 0 else None
        kind = OPERATIONS[node.operation].kind
        if before is not None and before.fixed_sum and kind in ("reduction", "normalization"):
            return False
        one_sided = before is not None and (widths[node.reads[0]] == "one" or before.name in _ONE_SIDED)
        if one_sided and OPERATIONS[node.operation].flat:
            return False
        if node.operation in ("subtract", "maximum") and node.reads[0] == node.reads[1]:
            return False
    return (
        len({one.operation for one in module.nodes}) > 1
        and sum(one == "linear" for one in module.operations) <= 1
    )


def generate(seed: int, index: int) -> Module:
    """Generate the module of a seed and an index, deterministically.

    It has two to six operations. More than half of the draws take several inputs, and a fifth may contain a product.
    """
    generator = random.Random(f"kernelwright.modules/{VERSION}/{seed}/{index}")  # noqa: S311
    while True:
        module = _drawn(generator)
        if sound(module):
            return module


def _drawn(generator: random.Random) -> Module:
    inputs = generator.choice((1, 1, 2, 2, 3))
    count = generator.randint(max(2, inputs), 6)
    nodes: list[Node] = []
    used: set[int] = set()
    product = generator.random() < 0.2
    place = 0
    for step in range(count):
        kind = generator.choices(
            ("pointwise", "number", "pair", "parameter", "reduction", "normalization", "product"),
            (6, 2, 5, 3, 2 if step else 0, 3, 3 if product else 0),
        )[0]
        reads: tuple[int, ...] = (place,)
        if kind == "pair":
            others = [one for one in range(inputs + len(nodes)) if one != place]
            if not others:
                continue
            fresh = [one for one in others if one < inputs and one not in used]
            reads = (place, generator.choice(fresh or others))
        name = generator.choice(BY_KIND[kind])
        nodes.append(_node_of(name, reads, generator))
        used.update(reads)
        place = inputs + len(nodes) - 1
    return Module(inputs, tuple(nodes), *_space_of(generator, nodes))


def _node_of(name: str, reads: tuple[int, ...], generator: random.Random) -> Node:
    """A node, with a drawn constant if its operation takes one."""
    numbers = OPERATIONS[name].numbers
    return Node(name, reads, generator.choice(numbers) if numbers else None)


def _space_of(
    generator: random.Random, nodes: Sequence[Node]
) -> tuple[tuple[str, ...], tuple[tuple[str, Dim], ...]]:
    """Leading sizes and dimensions: rows always vary; columns vary or are fixed, like a model's width."""
    leading = ("rows",) if generator.random() < 0.7 else ("batch", "rows")
    dims = {"batch": Dim(1, 16, default=4)} if len(leading) == 2 else {}
    dims["rows"] = Dim(1, generator.choice((512, 2048)), default=generator.choice((64, 128, 200)))
    step = generator.choice((1, 1, 8, 16))
    dims["cols"] = Dim(8, generator.choice((1024, 2048)), step, default=generator.choice((128, 256, 512)))
    if generator.random() < 0.3:
        width = generator.choice((96, 128, 256, 384, 768, 1000))
        dims["cols"] = Dim(width, width, default=width)
    if any(OPERATIONS[node.operation].kind == "product" for node in nodes):
        dims["out"] = Dim(8, 512, 8, default=generator.choice((64, 128, 192)))
    return leading, tuple(dims.items())


def weights_of(module: Module) -> list[tuple[str, str]]:
    """Names of a module's weights, by node, and the text that makes each."""
    widths, made = module.widths(), list[tuple[str, str]]()
    for number, node in enumerate(module.nodes, 1):
        operation, width = OPERATIONS[node.operation], widths[node.reads[0]]
        text = {
            "bias": f"nn.Parameter(torch.zeros({width}))",
            "gain": f"nn.Parameter(torch.ones({width}))",
            "linear": f"nn.Parameter(torch.randn(out, {width}) * {width}**-0.5)",
            "layer_norm": f"nn.LayerNorm({width})",
        }.get(operation.name)
        if text is not None:
            made.append((f"{operation.name}_{number}", text))
    return made


def names_of(module: Module) -> list[str]:
    """Names of its values: inputs, then nodes."""
    inputs = [f"x{number + 1}" if module.inputs > 1 else "x" for number in range(module.inputs)]
    return inputs + [f"h{number + 1}" for number in range(len(module.nodes))]


def task_of(module: Module) -> TaskSource:
    """Write the module as a task file in the format of `kernelbench_tasks`."""
    names, lines = names_of(module), list[str]()
    for number, node in enumerate(module.nodes):
        operation = OPERATIONS[node.operation]
        read = [names[place] for place in node.reads]
        text = operation.text.format(a=read[0], b=read[-1], n=node.number, w=f"{operation.name}_{number + 1}")
        last = number == len(module.nodes) - 1
        lines.append(f"return {text}" if last else f"{names[module.inputs + number]} = {text}")
    made = [f"self.{name} = {text}" for name, text in weights_of(module)]
    return TaskSource(name_of(module), _file(module, names[: module.inputs], made, lines))


def name_of(module: Module) -> str:
    """A task's name: its operations, truncated."""
    return "_".join(module.operations)[:80]


def arguments_of(made: Sequence[str]) -> list[str]:
    """The widths that a constructor takes: those that its weights use."""
    return [name for name in ("cols", "out") if any(name in line for line in made)]


def _file(module: Module, names: Sequence[str], made: Sequence[str], lines: Sequence[str]) -> str:
    dims, arguments = dict(module.dims), arguments_of(made)
    listed = ", ".join(f"{name}: int = {dims[name].default}" for name in arguments)
    sizes = [*module.leading, "cols"]
    tensors = ", ".join(f"torch.randn({', '.join(sizes)})" for _ in names)
    space = "\n".join(f'    "{name}": {_dim(dim)},' for name, dim in dims.items())
    typed = ", ".join(f"{name}: torch.Tensor" for name in names)
    build = "".join(f"        {line}\n" for line in made)
    constructor = (
        f"    def __init__(self, {', '.join(f'{name}: int' for name in arguments)}):\n        super().__init__()\n{build}\n"
        if made
        else ""
    )
    steps = "".join(f"        {line}\n" for line in lines)
    functional = "import torch.nn.functional as F\n" if "F." in steps else ""
    return (
        f'"""{", ".join(module.operations).replace("_", " ").capitalize()}."""\n\nimport torch\nimport torch.nn as nn\n{functional}\n'
        f"from kernelbench_tasks import Dim\n\nDIMS = {{\n{space}\n}}\n\n\nclass Model(nn.Module):\n{constructor}"
        f"    def forward(self, {typed}) -> torch.Tensor:\n{steps}\n\n"
        f"def get_inputs({', '.join(f'{name}: int = {dims[name].default}' for name in sizes)}) -> list[torch.Tensor]:\n"
        f"    return [{tensors}]\n\n\ndef get_init_inputs({listed}) -> list[int]:\n    return [{', '.join(arguments)}]\n"
    )


def _dim(dim: Dim) -> str:
    step = f", multiple_of={dim.multiple_of}" if dim.multiple_of > 1 else ""
    return f"Dim({dim.min}, {dim.max}{step}, default={dim.default})"
