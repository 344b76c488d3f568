"""Writes generated modules as short Triton programs: one pass over blocks of rows, which a small model can read whole.

The compiler's files for four such modules take 2,084 to 6,600 of SmolLM2's tokens, mostly guards and settings; these programs take 337 to
1,148. Each module gets two programs that differ in rows and warps, and the referee's times tell them apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from rl.data.lowering import NotMade
from rl.data.modules import (
    VERSION,
    Module,
    Node,
    arguments_of,
    generate,
    names_of,
    task_of,
    weights_of,
)
from rl.data.proposals import Proposal
from rl.errors import ConfigError

#: Rows of a program and its warps.
_BLOCKS = ((1, 4), (2, 4), (4, 4), (4, 8), (8, 8))
_SUM = "tl.sum(tl.where(inside, {}, 0.0), axis=1, keep_dims=True)"
_LARGEST = 'tl.max(tl.where(inside, {}, float("-inf")), axis=1, keep_dims=True)'
_EXPRESSIONS = {
    "relu": "tl.where({a} < 0.0, 0.0, {a})",
    "gelu": "0.5 * {a} * (1.0 + tl.erf({a} * 0.7071067811865476))",
    "gelu_tanh": "{a} * tl.sigmoid(1.5957691216057308 * ({a} + 0.044715 * {a} * {a} * {a}))",
    "silu": "{a} * tl.sigmoid({a})",
    "sigmoid": "tl.sigmoid({a})",
    "softplus": "tl.where({a} > 20.0, {a}, tl.log(1.0 + tl.exp(tl.minimum({a}, 20.0))))",
    "elu": "tl.where({a} > 0.0, {a}, tl.exp({a}) - 1.0)",
    "hardswish": "{a} * tl.minimum(tl.maximum({a} + 3.0, 0.0), 6.0) / 6.0",
    "absolute": "tl.abs({a})",
    "sine": "tl.sin({a})",
    "leaky_relu": "tl.where({a} > 0.0, {a}, {a} * {n})",
    "scale": "{a} * {n}",
    "shift": "{a} + {n}",
    "clamp": "tl.where({a} < -{n}, -{n}, tl.where({a} > {n}, {n}, {a}))",
    "add": "{a} + {b}",
    "subtract": "{a} - {b}",
    "multiply": "{a} * {b}",
    "maximum": "tl.where(({a} > {b}) | ({a} != {a}), {a}, {b})",
    "gate": "{a} * tl.sigmoid({b})",
    "bias": "{a} + {w}",
    "gain": "{a} * {w}",
    "row_sum": "{sum}",
    "row_mean": "{sum} / cols",
    "row_max": "{top}",
    "row_min": "-{top_of_negative}",
    "row_rms": "tl.sqrt({sum_of_squares} / cols + 1e-6)",
    "rms_norm": "{a} * tl.rsqrt({sum_of_squares} / cols + 1e-6)",
    "center": "{a} - {sum} / cols",
}
#: Lines before an operation's result, and the result.
_LINES = {
    "tanh": (
        ("{h}_e = tl.exp(-2.0 * tl.abs({a}))", "{h}_far = (1.0 - {h}_e) / (1.0 + {h}_e)", "{h}_s = {a} * {a}",
         "{h}_near = {a} * (1.0 - {h}_s * (0.33333333 - {h}_s * (0.13333333 - {h}_s * (0.05396825 - {h}_s * 0.02186949))))"),
        "tl.where(tl.abs({a}) < 0.25, {h}_near, tl.where({a} < 0.0, -{h}_far, {h}_far))",
    ),
    "mish": (("{h}_e = tl.exp(tl.minimum({a}, 20.0))", "{h}_n = {h}_e * ({h}_e + 2.0)"), "{a} * {h}_n / ({h}_n + 2.0)"),
    "row_logsumexp": (
        ("{h}_top = {top}", "{h}_e = tl.where(inside, tl.exp({a} - {h}_top), 0.0)"),
        "{h}_top + tl.log(tl.sum({h}_e, axis=1, keep_dims=True))",
    ),
    "softmax": (
        ("{h}_top = {top}", "{h}_e = tl.where(inside, tl.exp({a} - {h}_top), 0.0)"),
        "{h}_e / tl.sum({h}_e, axis=1, keep_dims=True)",
    ),
    "log_softmax": (
        ("{h}_top = {top}", "{h}_e = tl.where(inside, tl.exp({a} - {h}_top), 0.0)"),
        "{a} - {h}_top - tl.log(tl.sum({h}_e, axis=1, keep_dims=True))",
    ),
    "layer_norm": (
        ("{h}_rest = tl.where(inside, {a} - {sum} / cols, 0.0)", "{h}_variance = tl.sum({h}_rest * {h}_rest, axis=1, keep_dims=True) / cols"),
        "{h}_rest * tl.rsqrt({h}_variance + 1e-5) * {w}_weight + {w}_bias",
    ),
    "over_largest": (("{h}_top = {top_of_absolute}",), "{a} / (1.0 + {h}_top)"),
}  # fmt: skip


def program_of(module: Module, rows: int, warps: int) -> str:
    """Write the module as a candidate file.

    Args:
        rows: of one program of the kernel; warps: of the same.

    Raises:
        NotMade: it has a product of matrices.
    """
    if "linear" in module.operations:
        raise NotMade("it has a product of matrices, which a pass over rows does not compute")
    names, weights, widths = names_of(module), weights_of(module), module.widths()
    inputs = names[: module.inputs]
    loads = [f"{name} = tl.load({name}_ptr + at, mask=inside, other=0.0)" for name in inputs]
    held = [
        part
        for name, text in weights
        for part in ([f"{name}.weight", f"{name}.bias"] if "LayerNorm" in text else [name])
    ]
    for part in held:
        name = part.replace(".", "_")
        loads.append(f"{name} = tl.load({name}_ptr + col, mask=col < cols, other=0.0)")
    lines = list[str]()
    for number, node in enumerate(module.nodes):
        lines += _lines(
            node, names[module.inputs + number], [names[place] for place in node.reads], number + 1
        )
    is_wide, last = widths[-1] == "cols", names[-1]
    store = (
        f"tl.store(out_ptr + at, {last}, mask=inside)"
        if is_wide
        else f"tl.store(out_ptr + row, {last}, mask=row < rows)"
    )
    pointers = [f"{name.replace('.', '_')}_ptr" for name in (*inputs, *held, "out")]
    made = [f"self.{name} = {text}" for name, text in weights]
    arguments = ", ".join(arguments_of(made))
    return _FILE.format(
        words=", ".join(module.operations).replace("_", " "),
        pointers=", ".join(pointers),
        body="\n".join(f"    {line}" for line in (*loads, *lines, store)),
        constructor=_CONSTRUCTOR.format(
            arguments=arguments, made="\n".join(f"        {line}" for line in made)
        )
        if made
        else "",
        inputs=", ".join(inputs),
        dense="\n".join(f"        {name} = {name}.contiguous()" for name in inputs),
        first=inputs[0],
        out=f"torch.empty_like({inputs[0]})"
        if is_wide
        else f"{inputs[0]}.new_empty((*{inputs[0]}.shape[:-1], 1))",
        given=", ".join([*inputs, *(f"self.{part}" for part in held), "out"]),
        rows=rows,
        warps=warps,
    )


def _lines(node: Node, name: str, reads: list[str], number: int) -> list[str]:
    """What computes a node."""
    a, w = reads[0], f"{node.operation}_{number}"
    given = {
        "a": a, "b": reads[-1], "n": node.number, "w": w, "h": name, "sum": _SUM.format(a),
        "sum_of_squares": _SUM.format(f"{a} * {a}"), "top": _LARGEST.format(a),
        "top_of_negative": _LARGEST.format(f"-{a}"), "top_of_absolute": _LARGEST.format(f"tl.abs({a})"),
    }  # fmt: skip
    before, result = _LINES.get(node.operation) or ((), _EXPRESSIONS[node.operation])
    return [*(line.format(**given) for line in before), f"{name} = {result.format(**given)}"]


def written(device: str, seed: int, count: int) -> Iterator[Proposal]:
    """Two programs for each of the first `count` modules of a seed.

    Raises:
        ConfigError: the device does not run Triton.
    """
    if count and device != "cuda":
        raise ConfigError(f"--short writes Triton programs, which --device {device} does not run")
    for index in range(count):
        module = generate(seed, index)
        draw = random.Random(f"kernelwright.written/{VERSION}/{seed}/{index}")  # noqa: S311
        for rows, warps in draw.sample(_BLOCKS, 2):
            yield Proposal(
                id=f"written/{device}/{VERSION}.{seed}/{index}/{rows}x{warps}",
                task=task_of(module),
                device=device,
                make=partial(program_of, module, rows, warps),
                origin="human",
                source="written",
                about={"seed": seed, "index": index, "generator": VERSION, "rows": rows, "warps": warps},
                dims={dim: size.as_dict() for dim, size in module.dims},
                operations=module.operations,
            )


_CONSTRUCTOR = """\
    def __init__(self, {arguments}):
        super().__init__()
{made}

"""
_FILE = '''\
"""One pass over blocks of rows: {words}."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel({pointers}, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row * cols + col
{body}


class ModelNew(nn.Module):
{constructor}    def forward(self, {inputs}):
{dense}
        cols = {first}.shape[-1]
        rows = {first}.numel() // cols
        out = {out}
        grid = (triton.cdiv(rows, {rows}),)
        rows_kernel[grid]({given}, rows, cols, ROWS={rows}, COLS=triton.next_power_of_2(cols), num_warps={warps})
        return out
'''
