"""The Triton kernels of a capture as plain `@triton.jit` functions with a grid and launch settings of their own.

Inductor keeps each kernel as a string, under a decorator that chooses block sizes by measuring and carries properties of
one GPU. Here the string becomes code, the decorator goes, and block sizes are computed from sizes by a few lines that
stand beside the kernels. Triton itself then specializes on alignment, so no pointer or size is assumed to be a multiple
of anything.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.compiler.calls import rewrite
from agent.compiler.capture import Capture
from agent.compiler.library import Library, Printer, function_name, fused_words, names_of_arguments
from agent.errors import ProposalFailed

_GRIDS = {"Grid1D": ("XBLOCK",), "Grid2D": ("XBLOCK", "YBLOCK")}
_BLOCKS = frozenset({"XBLOCK", "YBLOCK", "R0_BLOCK"})

HELPERS = {
    "pointwise": '''\
def pointwise_block(elements):
    """Elements that a program computes: few, until every multiprocessor has several programs."""
    return 256 if elements < 256 * 1024 else 1024
''',
    "tile": '''\
def tile_blocks(columns, rows):
    """Width and height of the tile that a program computes."""
    width = min(32, triton.next_power_of_2(columns))
    return width, min(1024 // width, triton.next_power_of_2(rows))
''',
    "reduction": '''\
def reduction_blocks(rows, length, along_rows):
    """Rows and elements of a row that a program holds at a time, and its warps.

    `along_rows`: neighbours in memory belong to neighbouring rows, so that a program should take many of them.
    """
    if along_rows:
        return min(64, triton.next_power_of_2(rows)), min(32, triton.next_power_of_2(length)), 4
    deep = min(2048, triton.next_power_of_2(length))
    wide = max(1, min(512 // deep, triton.next_power_of_2(rows)))
    return wide, deep, max(1, min(8, wide * deep // 256))
''',
    "persistent_reduction": '''\
def persistent_block(rows, length):
    """Rows that a program holds as a whole, and its warps."""
    wide = max(1, min(1024 // length, triton.next_power_of_2(rows)))
    return wide, max(1, min(16, wide * length // 256))
''',
}


@dataclass(frozen=True)
class TritonKernel:
    """A kernel read out of Inductor's module.

    Attributes:
        raw: its name there.
        kind: "pointwise", "tile" (pointwise on a grid of two dimensions), "reduction" or "persistent_reduction".
        text: the function without decorators.
        parameters: what it is called with, in order.
        blocks: its block sizes, which are compile-time constants.
        grid: the block sizes that divide the grid's dimensions, in order.
        outer: whether the reduction runs across rows of memory.
        length: elements of a row where the kernel holds whole rows, else 0.
    """

    raw: str
    kind: str
    text: str
    parameters: tuple[str, ...]
    blocks: tuple[str, ...]
    grid: tuple[str, ...]
    outer: bool
    length: int


def library(capture: Capture) -> Library:
    """Collect, rename and print the kernels of all variants.

    Raises:
        ProposalFailed: if a kernel is of a kind that has no plain form here (templates, cooperative reductions).
    """
    parts: list[str] = []
    names: set[str] = set()
    kinds: set[str] = set()
    printers: list[Mapping[str, Printer]] = []
    for index, variant in enumerate(capture.variants):
        suffix = f"_v{index + 1}" if len(capture.variants) > 1 else ""
        kernels = read_kernels(variant.module)
        # A first pass with printers that only name the kernels finds out what each is called with.
        calls = rewrite(variant, {kernel.raw: _plain for kernel in kernels}, "cuda").calls
        mine: dict[str, Printer] = {}
        for position, kernel in enumerate(kernels):
            name = function_name(kernel.raw, position, len(kernels)) + suffix
            own_calls = [call for call in calls if call.kernel == kernel.raw]
            parts.append(print_kernel(kernel, name, names_of_arguments(kernel.parameters, own_calls)))
            mine[kernel.raw] = launcher(kernel, name)
            names.add(name)
            kinds.add(kernel.kind)
        printers.append(mine)
    helpers = [text for kind, text in HELPERS.items() if kind in kinds]
    names.update(text.split("(")[0].removeprefix("def ") for text in helpers)
    return Library(
        imports=_imports("\n".join(parts)) if parts else (),
        parts=(*helpers, *parts),
        names=frozenset(names),
        printers=tuple(printers),
        scratch=tuple(frozenset[str]() for _ in capture.variants),
    )


def _imports(code: str) -> tuple[str, ...]:
    lines = ["import triton", "import triton.language as tl"]
    if "triton_helpers." in code:
        lines.append(
            "from torch._inductor.runtime import triton_helpers  # small functions that ship with torch"
        )
    aliases = (("libdevice", "libdevice"), ("math as tl_math", "tl_math"))
    wanted = [text for text, alias in aliases if f"{alias}." in code]
    if wanted:
        lines.append(f"from torch._inductor.runtime.triton_helpers import {', '.join(wanted)}")
    return tuple(lines)


def read_kernels(module: str) -> list[TritonKernel]:
    """The `name = async_compile.triton('name', '''...''')` of a module, in order."""
    found = []
    for node in ast.parse(module).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        function = ast.unparse(node.value.func)
        if not function.startswith("async_compile."):
            continue
        strings = [
            a.value for a in node.value.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
        ]
        target = node.targets[0]
        if function != "async_compile.triton" or len(strings) < 2 or not isinstance(target, ast.Name):
            raise ProposalFailed(
                f"the compiler made a kernel with {function}, which has no plain Triton form here"
            )
        found.append(_read(target.id, strings[1]))
    return found


def _read(raw: str, source: str) -> TritonKernel:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ProposalFailed(f"a generated Triton kernel does not parse: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1:
        raise ProposalFailed(f"a generated Triton module has {len(functions)} functions, not one")
    function = functions[0]
    calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]
    heuristic = next((call for call in calls if "triton_heuristics." in ast.unparse(call.func)), None)
    if heuristic is None:
        raise ProposalFailed("a generated Triton kernel has no launch heuristic")
    kind = ast.unparse(heuristic.func).rpartition(".")[2]
    if kind not in ("pointwise", "reduction", "persistent_reduction"):
        raise ProposalFailed(f"a {kind.replace('_', ' ')} kernel has no plain Triton form here")
    keywords = {item.arg: item.value for item in heuristic.keywords if item.arg}
    grid = _GRIDS.get(_constant(keywords.get("inductor_meta"), "grid_type", "Grid1D"))
    blocks = tuple(item.arg for item in function.args.args if item.annotation is not None)
    if grid is None or not set(blocks) <= _BLOCKS or (kind != "pointwise" and len(grid) > 1):
        raise ProposalFailed(
            f"a {kind} kernel with constants {', '.join(blocks)} has no plain Triton form here"
        )
    text = textwrap.dedent("\n".join(source.splitlines()[function.lineno - 1 : function.end_lineno]))
    fixed = re.search(r"^\s+R0_BLOCK: tl\.constexpr = (\d+)", text, re.MULTILINE)
    if kind == "persistent_reduction" and fixed is None:
        raise ProposalFailed("a persistent reduction does not say how long a row is")
    return TritonKernel(
        raw=raw,
        kind="tile" if len(grid) == 2 else kind,
        text=text,
        parameters=tuple(item.arg for item in function.args.args if item.annotation is None),
        blocks=blocks,
        grid=grid,
        outer="OUTER" in ast.unparse(keywords["reduction_hint"]) if "reduction_hint" in keywords else False,
        length=int(fixed[1]) if fixed else 0,
    )


def _constant(node: ast.expr | None, wanted: str, default: str) -> str:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == wanted and isinstance(value, ast.Constant):
                return str(value.value)
    return default


def print_kernel(kernel: TritonKernel, name: str, renames: Mapping[str, str]) -> str:
    """The kernel as a plain `@triton.jit` function with readable parameters."""
    text = re.sub(rf"\b{kernel.raw}\b", name, kernel.text)
    text = cast_sizes(text, {parameter for parameter in kernel.parameters if "ptr" not in parameter})
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    for parameter in kernel.parameters:
        new = renames.get(parameter, parameter)
        if new == parameter or not ("ptr" in parameter or parameter.startswith("ks")):
            continue
        while new in words:
            new += "_"
        words.add(new)
        text = re.sub(rf"\b{parameter}\b", new, text)
    head, *body = _without_unused(text.splitlines())
    title = f'    """Computes, in one kernel: {fused_words(kernel.raw)}."""'
    return "\n".join(
        [
            "@triton.jit",
            *textwrap.wrap(head, 108, subsequent_indent=" " * 8, break_on_hyphens=False),
            title,
            *body,
        ]
    )


def cast_sizes(text: str, sizes: Collection[str]) -> str:
    """Writes ``(3 + ks0).to(tl.int32)`` as ``tl.cast((3 + ks0), tl.int32)`` wherever nothing but sizes and numbers is converted.

    Triton makes an argument of 1 a constant, and constants, as what is computed of them, have no method ``to``.
    """
    made, done = [], 0
    for conversion in re.finditer(r"\.to\((tl\.\w+)\)", text):
        begin = _begin_of(text, conversion.start())
        subject = text[begin : conversion.start()]
        if begin >= done and subject and set(re.findall(r"[A-Za-z_]\w*", subject)) <= {*sizes}:
            made += [text[done:begin], f"tl.cast({subject}, {conversion[1]})"]
            done = conversion.end()
    return "".join([*made, text[done:]])


def _begin_of(text: str, end: int) -> int:
    """Where the name, or what stands in parentheses, begins that ends there; ``end`` for a call's result and all else."""
    begin, depth = end, 0
    while begin and (depth or text[begin - 1] == ")"):
        begin -= 1
        depth += {")": 1, "(": -1}.get(text[begin], 0)
        if not depth:
            return end if begin and re.match(r"[\w.\])]", text[begin - 1]) else begin
    while begin and re.match(r"\w", text[begin - 1]):
        begin -= 1
    return begin if not (begin and text[begin - 1] == ".") else end


def _without_unused(lines: Sequence[str]) -> list[str]:
    """Drop assignments to names that nothing reads; Inductor prints some of them in every kernel."""
    kept = list(lines)
    for name in ("rindex", "roffset", "rbase", "rnumel", "RBLOCK"):
        reads = [line for line in kept if re.search(rf"\b{name}\b(?!\s*(:[^=]*)?=[^=])", line)]
        if not reads:
            kept = [line for line in kept if not re.match(rf"\s*{name}\b", line)]
    return kept


def _plain(arguments: Sequence[str]) -> str:
    return f"kernel({', '.join(arguments)})"


def launcher(kernel: TritonKernel, name: str) -> Printer:
    """How to print a launch: block sizes from the sizes in the call, then the kernel on its grid."""

    def launch(arguments: Sequence[str]) -> str:
        if len(arguments) != len(kernel.parameters):
            raise ProposalFailed(
                f"{name} takes {len(kernel.parameters)} arguments and is called with {len(arguments)}"
            )
        given = dict(zip(kernel.parameters, arguments, strict=True))
        columns, rows = given.get("xnumel", "1"), given.get("ynumel", "1")
        if kernel.kind == "pointwise":
            settings = f"block = pointwise_block({columns})"
            blocks, warps = {"XBLOCK": "block"}, "4"
        elif kernel.kind == "tile":
            settings = f"width, height = tile_blocks({columns}, {rows})"
            blocks, warps = {"XBLOCK": "width", "YBLOCK": "height"}, "4"
        elif kernel.kind == "reduction":
            settings = f"wide, deep, warps = reduction_blocks({columns}, {given.get('r0_numel', '1')}, {kernel.outer})"
            blocks, warps = {"XBLOCK": "wide", "R0_BLOCK": "deep"}, "warps"
        else:
            settings = f"wide, warps = persistent_block({columns}, {kernel.length})"
            blocks, warps = {"XBLOCK": "wide"}, "warps"
        sizes = {"XBLOCK": columns, "YBLOCK": rows}
        # A kernel without XBLOCK takes one row for each program.
        grid = [
            f"triton.cdiv({sizes[block]}, {blocks[block]})" if block in kernel.blocks else sizes[block]
            for block in kernel.grid
        ]
        passed = [*arguments, *(f"{block}={blocks[block]}" for block in kernel.blocks), f"num_warps={warps}"]
        wrapped = textwrap.wrap(", ".join(passed) + ",", 100, break_on_hyphens=False)
        shape = f"({grid[0]},)" if len(grid) == 1 else f"({', '.join(grid)})"
        return "\n".join([settings, f"{name}[{shape}](", *(f"    {row}" for row in wrapped), ")"])

    return launch
