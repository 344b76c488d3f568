"""Puts the library's kernels into generated code: one self-contained text that calls them in place of torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

from agent.bundle.sections import bound_names, used_names
from agent.folding import BEGIN, END

_FOLDER = Path(__file__).resolve().parent
_KERNELS = (
    "launching.py",
    "repeating.py",
    "parts.py",
    "hopper.py",
    "products.py",
    "geometry.py",
    "hopper_convolutions.py",
    "convolutions.py",
    "direct.py",
    "choice.py",
    "windows.py",
    "rows.py",
    "attention.py",
    "streamed.py",
    "ranks.py",
    "distances.py",
    "scans.py",
    "scatters.py",
    "bags.py",
    "tiny.py",
    "thin.py",
    "gathered.py",
    "contractions.py",
    "lists.py",
    "recurrent.py",
    "calls.py",
)
_REWRITING = (
    "nodes.py",
    "operations.py",
    "recurrent.py",
    "inplace.py",
    "means.py",
    "reductions.py",
    "norms.py",
    "exchanges.py",
    "orders.py",
    "bags.py",
    "scatters.py",
    "gathers.py",
    "contractions.py",
    "taps.py",
    "heads.py",
    "lists.py",
    "elements.py",
    "packed.py",
    "expressions.py",
    "epilogues.py",
    "joined.py",
    "scans.py",
    "weights.py",
    "decoding.py",
    "matches.py",
    "rewrite.py",
)
_CALL = re.compile(
    r"\b(?:extern_kernels\.(mm|addmm|bias_addmm|bmm|baddbmm|convolution)"
    r"|torch\.ops\.kernelwright\.(convolution|convolutions|mean_pool|max_pool|softmax|attention|decoding|distances|ranked|top|scatter|bags|count|packed|running_logsumexp|scan|gathered|contraction|sums|recurrent)\.default)\("
)
_TEXT = re.compile(r"(?<=, )'([^'\n]*)'")
_OURS = {"bias_addmm": "addmm"}
#: How Inductor's `call` launches a kernel, and what else a call that can be repeated may do. An operation of torch's it may not.
_RUN = re.compile(r"^( +)(\w+)\.run\(([^=\n]*, stream=\w+)\)$", re.MULTILINE)
_PLAIN = re.compile(
    r"(noted_run|noted_empty|library_\w+|assert_size_stride|assert_alignment|get_raw_stream|reinterpret_tensor"
    r"|max|min|arg\w+\.size|args\.clear|torch\.cuda\._DeviceGuard|torch\.cuda\.set_device)"
)
#: Names and parameters of the functions that calls are given: pointwise operations after a convolution, elements of packed weights,
#: weights of an attention; states of a scan, and scores, keys and values of an attention of few queries, whose texts begin with their
#: parameters.
_FUNCTIONS = {
    "convolution": ("_after", "x, a, b"),
    "convolutions": ("_after", "x, a, b"),
    "packed": ("_element", "row, j, first, there, row_there, p0, p1, p2, p3"),
    "scan": ("_state", ""),
    "attention": ("_weight", "x, m"),
    "decoding": ("_part", ""),
}


#: Follows the library in a module whose calls can be noted.
_CALL_AGAIN = "_kw_call = repeated_call(call)\n"


def with_library(module: str) -> tuple[str, tuple[str, ...]]:
    """Inductor's module with the operations that the library has computed by our kernels, and which they are.

    Returns:
        The module unchanged and an empty tuple where it has none.
    """
    found = set()

    def ours(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found.add(name := _OURS.get(name, name))
        return f"library_{name}("

    text = _CALL.sub(ours, module)
    if not found:
        return module, ()
    functions: dict[tuple[str, str], str] = {}

    def with_names(line: str) -> str:
        """A call with names of functions in place of their texts."""
        of = next((name for name in _FUNCTIONS if f"library_{name}(" in line), None)

        def named(match: re.Match[str]) -> str:
            key = str(of), match[1]
            if not match[1]:
                return "None"
            name = functions.setdefault(key, f"{_FUNCTIONS[key[0]][0]}_{len(functions)}")
            return f"({name}, {name}_along)" if _joins(match[1]) else name

        return _TEXT.sub(named, line) if of else line

    text = "\n".join(with_names(line) for line in text.rstrip().splitlines())
    defined = "".join(function_text(name, body, _FUNCTIONS[of][1]) for (of, body), name in functions.items())
    noted = "" if "\ndef call_backward(" in text else _noted(text)
    again = f"\n\n{_CALL_AGAIN}" if noted else ""
    whole = f"{noted or text}\n{defined}{again}"
    return f"{noted or text}\n\n\n{kernels(used_names(ast.parse(whole)))}{defined}{again}", tuple(
        sorted(found)
    )


def _noted(module: str) -> str:
    """A module whose `call` allocates and launches where both are noted; empty if it does more than can be told from its text."""
    bound = [one for one in ast.parse(module).body if "call" in bound_names(one)]
    if len(bound) != 1 or not isinstance(bound[0], ast.FunctionDef) or bound[0].decorator_list:
        return ""
    lines = module.split("\n")
    first, last = bound[0].lineno - 1, bound[0].end_lineno
    text = "\n".join(lines[first:last]).replace("empty_strided_cuda(", "noted_empty(")
    text = _RUN.sub(r"\1noted_run(\2, \3)", text)
    nodes = [*ast.walk(ast.parse(text))]
    called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    if stored or not all(map(_PLAIN.fullmatch, called)):
        return ""
    return "\n".join([*lines[:first], text, *lines[last:]])


def function_text(name: str, body: str, parameters: str) -> str:
    """A kernel's function of statements as `agent.kernels.rewriting` gives them.

    Of one that joins two states of a scan there is another, which scans a tile by it: Triton takes no function for that from a kernel's caller.
    """
    if not parameters:
        parameters, _, body = body.partition(": ")
    *statements, result = body.split("; ")
    lines = [*statements, f"return {result}"]
    text = "\n\n@triton.jit\ndef {}({}):\n    {}\n".format(name, parameters, "\n    ".join(lines))
    if _joins(parameters):
        states = "x, y" if "b1" in parameters else "x"
        text += _ALONG.format(name=name, states=states, tile=f"({states})" if "y" in states else states)
    return text


def _joins(text: str) -> bool:
    """Whether a function joins states of a scan."""
    return text.startswith("a0, ")


_ALONG = """

@triton.jit
def {name}_along({states}, AXIS: tl.constexpr):
    return tl.associative_scan({tile}, AXIS, {name})
"""


def as_replayed(source: str) -> str:
    """A candidate with the library's kernels for replay in a CUDA graph: launches cost little there, so more calls use them."""
    return source.replace("\nLAUNCH_S = 6e-6\n", "\nLAUNCH_S = 2e-6\n").replace(
        "\nCALL_S = 15e-6\n", "\nCALL_S = 0.0\n"
    )


def kernels(named: Set[str] | None = None) -> str:
    """The text of the kernels in one piece, between the lines of `agent.folding`.

    Args:
        named: what a file names, of which the text has what it needs; None for everything.
    """
    needed = None if named is None else _needed(frozenset(_uses().keys() & named))
    return f"{BEGIN}\n{joined('gpu', _KERNELS, needed)}{END}\n"


@cache
def _uses() -> dict[str, set[str]]:
    """What each name of the kernels' text uses."""
    statements = ast.parse(joined("gpu", _KERNELS)).body
    return {name: used_names(statement) for statement in statements for name in bound_names(statement)}


@cache
def _needed(named: frozenset[str]) -> frozenset[str]:
    """These names of the kernels' text and all that they use."""
    found: set[str] = set()
    wanted = [*named]
    while wanted:
        if (name := wanted.pop()) not in found:
            found.add(name)
            wanted += _uses().get(name, ())
    return frozenset(found)


@cache
def rewriting_text() -> str:
    """The text of `agent.kernels.rewriting` in one piece, for the capture program."""
    return joined("rewriting", _REWRITING)


@cache
def row_program_text() -> str:
    """The text of `agent.kernels.cpu.row_program` with what it reads graphs by, for the capture program."""
    return joined("cpu", ("row_reading.py", "row_program.py"))


def row_module(told: Any) -> str:
    """A module in place of Inductor's: a row program's C++, and a `call` of it.

    Args:
        told: what `agent.kernels.cpu.row_program` found, untrusted.

    Raises:
        KeyError, TypeError, ValueError: it has another form.
    """
    code, inputs, outputs = str(told["code"]), [int(place) for place in told["inputs"]], list(told["outputs"])
    made = {
        "full": "empty_output(x)",
        "col": "x.new_empty((*x.shape[:-1], 1))",
        "flat": "x.new_empty(x.shape[:-1])",
        "col count": "x.new_empty((*x.shape[:-1], 1), dtype=torch.int64)",
        "flat count": "x.new_empty(x.shape[:-1], dtype=torch.int64)",
    }
    if not inputs or not outputs or "'''" in code:
        raise ValueError("the row program has another form")
    source = (_FOLDER / "cpu" / "simd.h").read_text(encoding="utf-8") + code
    outs = [f"out{place}" for place in range(len(outputs))]
    lines = [f"    {name} = {made[kind]}" for name, kind in zip(outs, outputs, strict=True)]
    pointers = ", ".join(
        [*(f"given[{place}].data_ptr()" for place in inputs), *(f"{name}.data_ptr()" for name in outs)]
    )
    return _ROW_MODULE.format(
        runtime=joined("cpu", ("runtime.py",)),
        source=source,
        count=len(inputs) + len(outs) + 2,
        main=int(told["main"]),
        made="\n".join(lines),
        pointers=pointers,
        outs=", ".join(outs),
    )


_ROW_MODULE = """\
{runtime}
import struct

CPP_SOURCE = r'''
{source}'''

_rows = build_kernel("rows", CPP_SOURCE)
_packed = struct.Struct("@{count}q").pack


def call(given):
    x = given[{main}]
    cols = x.shape[-1]
{made}
    _rows(_packed({pointers}, x.numel() // cols, cols))
    return ({outs},)
"""


@cache
def joined(folder: str, names: Sequence[str], needed: frozenset[str] | None = None) -> str:
    """Files of this package, each after those that it imports, as one text with each file's docstring as a comment.

    Args:
        folder: of this package.
        names: of files.
        needed: names of whose definitions the text consists; None for all.
    """
    imports, parts = dict[str, None](), []
    for name in names:
        source = (_FOLDER / folder / name).read_text(encoding="utf-8")
        docstring, *statements = ast.parse(source).body
        lines = source.splitlines()
        kept, start = [], docstring.end_lineno or 0
        for statement in statements:
            # A statement and the comments and empty lines above it.
            text, start = "\n".join(lines[start : statement.end_lineno]), statement.end_lineno or 0
            if needed is not None and needed.isdisjoint(bound_names(statement)):
                continue
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                kept.append(text)
            elif not (text := ast.unparse(statement)).startswith("from agent."):
                imports[text] = None
        if kept:
            words = [
                f"# {line}".rstrip() for line in (ast.get_docstring(ast.parse(source)) or "").splitlines()
            ]
            parts.append("\n".join([*words, *"\n".join(kept).strip("\n").splitlines()]))
    return "\n\n\n".join(["\n".join(imports), *parts]) + "\n"
